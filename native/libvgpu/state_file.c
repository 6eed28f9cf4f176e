/* The state file itself: opening, checking, making it, and the locks on its bytes. See state_internal.h.
 *
 * Whether a file is valid depends on its bytes alone and only whoever holds the making lock changes that, so a process that finds it valid
 * after it locked a slot knows that nobody is about to make it anew: makers look for locked slots first.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "state_internal.h"
#include "test_points.h"

#ifndef F_OFD_GETLK /* headers of old C libraries; the kernel has them since 3.15 */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define MAKING_LOCK (VGPU_LOCK_BASE - 1)
#define MAKING_WAIT_MS 5000

static int lock_range(int fd, int command, short type, off_t start, off_t length, struct flock *answer) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    int result;
    do {
        result = fcntl(fd, command, &range);
    } while (result != 0 && errno == EINTR);
    if (answer != NULL) {
        *answer = range;
    }
    return result;
}

enum byte_lock state_file_lock_slot(int fd, uint32_t slot) {
    if (lock_range(fd, F_OFD_SETLK, F_WRLCK, VGPU_LOCK_BASE + slot, 1, NULL) == 0) {
        return BYTE_LOCKED;
    }
    return errno == EAGAIN || errno == EACCES ? BYTE_TAKEN : BYTE_ERROR;
}

void state_file_unlock_slot(int fd, uint32_t slot) {
    lock_range(fd, F_OFD_SETLK, F_UNLCK, VGPU_LOCK_BASE + slot, 1, NULL);
}

/* The kernel names any one lock of the range, not the lowest: what lies on both sides of it is asked for again. */
bool state_file_find_living(int fd, uint32_t count, bool living[VGPU_MAX_SLOTS]) {
    struct {
        uint32_t from, to;
    } open_ranges[VGPU_MAX_SLOTS + 2];
    uint32_t waiting = 0;
    memset(living, 0, VGPU_MAX_SLOTS * sizeof *living);
    if (count > 0) {
        open_ranges[waiting].from = 0;
        open_ranges[waiting++].to = count;
    }
    while (waiting > 0) {
        uint32_t from = open_ranges[--waiting].from;
        uint32_t to = open_ranges[waiting].to;
        struct flock found;
        if (lock_range(fd, F_OFD_GETLK, F_WRLCK, VGPU_LOCK_BASE + from, to - from, &found) != 0) {
            return false;
        }
        if (found.l_type == F_UNLCK) {
            continue;
        }
        int64_t first = found.l_start - VGPU_LOCK_BASE;
        int64_t after = found.l_len == 0 ? to : first + found.l_len;
        uint32_t lives_from = first < (int64_t)from ? from : (uint32_t)first;
        uint32_t lives_to = after > (int64_t)to ? to : (uint32_t)after;
        if (lives_from >= lives_to) {
            return false; /* a kernel that answers something else than what was asked */
        }
        for (uint32_t slot = lives_from; slot < lives_to; slot++) {
            living[slot] = true;
        }
        if (from < lives_from) {
            open_ranges[waiting].from = from;
            open_ranges[waiting++].to = lives_from;
        }
        if (lives_to < to) {
            open_ranges[waiting].from = lives_to;
            open_ranges[waiting++].to = to;
        }
    }
    return true;
}

static int open_path(const char *path, int more_flags) {
    int fd;
    do {
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | more_flags, 0666);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

int state_file_open(const struct places *places, struct stat *found) {
    int fd = open_path(places->state, 0);
    if (fd < 0 && errno == ENOENT && !places->state_made_by_agent) {
        fd = open_path(places->state, O_CREAT | O_EXCL);
        if (fd >= 0) {
            fchmod(fd, 0666); /* processes of other users share the limit, whatever this one's umask is */
        } else if (errno == EEXIST) {
            fd = open_path(places->state, 0);
        }
    }
    if (fd < 0) {
        return -1;
    }
    if (fstat(fd, found) != 0 || !S_ISREG(found->st_mode)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* "" where it cannot be known (no /proc): then it is compared with nothing. */
static void read_boot_id(char boot_id[40]) {
    memset(boot_id, 0, 40);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    if (read(fd, boot_id, 36) != 36) {
        memset(boot_id, 0, 40);
    }
    close(fd);
}

/* The head of struct vgpu_state up to and with its mutex, for reading it without a map. */
struct head {
    uint64_t magic;
    uint32_t version, size;
    uint64_t features, nonce;
    char boot_id[40];
    uint64_t policy_generation;
    uint32_t device_count, slots_used;
    pthread_mutex_t lock;
};
_Static_assert(offsetof(struct head, slots_used) == offsetof(struct vgpu_state, slots_used), "head");
_Static_assert(offsetof(struct head, lock) == offsetof(struct vgpu_state, lock), "head");

static bool is_valid(const struct head *head) {
    if (head->magic != VGPU_STATE_MAGIC || head->version != VGPU_STATE_VERSION || head->size != sizeof(struct vgpu_state) ||
        head->device_count > VGPU_MAX_DEVICES || head->slots_used > VGPU_MAX_SLOTS || head->lock.__data.__kind != ROBUST_SHARED_KIND) {
        return false;
    }
    char now[40];
    read_boot_id(now);
    return now[0] == '\0' || head->boot_id[0] == '\0' || memcmp(now, head->boot_id, sizeof now) == 0;
}

bool state_file_header_valid(const struct vgpu_state *state) {
    struct head head = {
        .magic = __atomic_load_n(&state->magic, __ATOMIC_ACQUIRE),
        .version = state->version,
        .size = state->size,
        .device_count = __atomic_load_n(&state->device_count, __ATOMIC_RELAXED),
        .slots_used = __atomic_load_n(&state->slots_used, __ATOMIC_RELAXED),
        .lock.__data.__kind = state->lock.__data.__kind,
    };
    memcpy(head.boot_id, state->boot_id, sizeof head.boot_id);
    return is_valid(&head);
}

static bool file_header_valid(int fd) {
    struct head head;
    return pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head && is_valid(&head);
}

static bool has_all_pages(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 && found.st_size >= (off_t)sizeof(struct vgpu_state) &&
           found.st_blocks * 512 >= (off_t)sizeof(struct vgpu_state);
}

static bool take_making_lock(int fd) {
    for (int waited = 0; waited <= MAKING_WAIT_MS; waited++) {
        if (lock_range(fd, F_OFD_SETLK, F_WRLCK, MAKING_LOCK, 1, NULL) == 0) {
            return true;
        }
        if (errno != EAGAIN && errno != EACCES) {
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

/* Only where the file system cannot reserve pages: writing every byte once is the same. */
static bool write_zeros(int fd) {
    static const char zeros[4096];
    for (size_t at = 0; at < sizeof(struct vgpu_state);) {
        size_t left = sizeof(struct vgpu_state) - at;
        ssize_t done = pwrite(fd, zeros, left < sizeof zeros ? left : sizeof zeros, (off_t)at);
        if (done <= 0) {
            return false;
        }
        at += (size_t)done;
    }
    return true;
}

/* Growing beyond RLIMIT_FSIZE would raise a signal that ends the program. */
static bool may_grow(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= sizeof(struct vgpu_state));
}

static bool reserve_pages(int fd, bool may_overwrite) {
    if (has_all_pages(fd)) {
        return true;
    }
    if (!may_grow()) {
        return false;
    }
    int result;
    do {
        result = fallocate(fd, 0, 0, (off_t)sizeof(struct vgpu_state));
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
        return true;
    }
    if (errno != EOPNOTSUPP && errno != ENOSYS) {
        return false;
    }
    struct stat found;
    if (fstat(fd, &found) != 0) {
        return false;
    }
    return may_overwrite ? write_zeros(fd)
                         : found.st_size >= (off_t)sizeof(struct vgpu_state) || ftruncate(fd, (off_t)sizeof(struct vgpu_state)) == 0;
}

static uint64_t fresh_nonce(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t mixed = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
    mixed ^= (uint64_t)getpid() << 40;
    mixed *= 0x9E3779B97F4A7C15ull;
    return mixed ^ (mixed >> 32);
}

static bool initialise(int fd, bool all_zero) {
    struct vgpu_state *state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED) {
        return false;
    }
    __atomic_store_n(&state->magic, 0, __ATOMIC_SEQ_CST); /* first: a half-made file is never valid */
    TEST_POINT("state.init.magic_gone");
    if (!all_zero) {
        memset(state, 0, sizeof *state);
    }
    TEST_POINT("state.init.zeroed");
    state->version = VGPU_STATE_VERSION;
    state->size = sizeof *state;
    state->nonce = fresh_nonce();
    read_boot_id(state->boot_id);
    pthread_mutexattr_t attributes;
    bool made = pthread_mutexattr_init(&attributes) == 0;
    if (made) {
        made = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
               pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 && pthread_mutex_init(&state->lock, &attributes) == 0;
        pthread_mutexattr_destroy(&attributes);
    }
    TEST_POINT("state.init.before_magic");
    if (made) {
        __atomic_store_n(&state->magic, VGPU_STATE_MAGIC, __ATOMIC_SEQ_CST);
    }
    munmap(state, sizeof *state);
    TEST_POINT("state.init.done");
    return made;
}

static bool is_whole(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 && found.st_size >= (off_t)sizeof(struct vgpu_state) && file_header_valid(fd);
}

/* With the making lock held. A file that was cut off under the living is given its length back, for their sake. */
static bool repair(int fd, bool *made) {
    if (is_whole(fd)) {
        return reserve_pages(fd, false);
    }
    bool living[VGPU_MAX_SLOTS];
    if (!state_file_find_living(fd, VGPU_MAX_SLOTS, living)) {
        return false;
    }
    for (uint32_t slot = 0; slot < VGPU_MAX_SLOTS; slot++) {
        if (living[slot]) {
            return file_header_valid(fd) && reserve_pages(fd, false);
        }
    }
    struct stat found;
    bool was_empty = fstat(fd, &found) == 0 && found.st_size == 0;
    if (!reserve_pages(fd, true)) {
        return false;
    }
    TEST_POINT("state.init.reserved");
    *made = initialise(fd, was_empty);
    return *made;
}

bool state_file_prepare(int fd, bool *made) {
    if (has_all_pages(fd) && file_header_valid(fd)) {
        return true;
    }
    if (!take_making_lock(fd)) {
        return false;
    }
    TEST_POINT("state.init.locked");
    bool ready = repair(fd, made);
    lock_range(fd, F_OFD_SETLK, F_UNLCK, MAKING_LOCK, 1, NULL);
    return ready;
}
