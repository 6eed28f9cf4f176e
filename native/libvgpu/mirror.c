/* Our numbers in HAMi's region format 1.2. See mirror.h.
 *
 * Monitors map the file, so it never shrinks; its path may come from the tenant's environment, so only an empty file or a region is ever
 * written. Before every write the descriptor is checked to be still the mirror's: a program that closed it may have given the number
 * to a file of its own. Every process writes its own slot and what is the same for all, so there is nothing to lock but the process count.
 */
#include "mirror.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

#define REGION_MAGIC 19920718
#define REGION_DEVICES 16
#define REGION_SLOTS 1024
#define HIGH_DESCRIPTOR 512

struct region_usage {
    uint64_t context, module, data, offset, total, spare[3];
};

struct region_process {
    int32_t pid, host_pid;
    struct region_usage used[REGION_DEVICES];
    uint64_t monitor_used[REGION_DEVICES];
    struct {
        uint64_t decoder, encoder, sm, spare[3];
    } utilisation[REGION_DEVICES];
    int32_t status, padding;
    uint64_t seqlock; /* even, always: what changes together is one write */
    uint64_t spare[2];
};

struct region_head {
    int32_t magic;
    uint32_t major, minor;
    int32_t sm_init;
    uint64_t owner_pid;
    char semaphore[32]; /* stays 0: HAMi's own library does not share a file with ours */
    uint64_t device_count;
    char uuids[REGION_DEVICES][96];
    uint64_t limit[REGION_DEVICES];
    uint64_t sm_limit[REGION_DEVICES];
};

struct region_tail {
    int32_t process_count, utilisation_switch, recent_kernel, priority;
    int64_t last_kernel_time;
    char semaphore[32];
};

#define PROCESSES_AT 1856
#define TAIL_AT 2008896
#define REGION_SIZE 2008952
#define FILE_SIZE (REGION_SIZE + 1) /* as HAMi makes it */

_Static_assert(sizeof(struct region_process) == 1960, "process");
_Static_assert(offsetof(struct region_process, status) == 1928, "status");
_Static_assert(sizeof(struct region_head) == PROCESSES_AT, "head");
_Static_assert(PROCESSES_AT + REGION_SLOTS * sizeof(struct region_process) == TAIL_AT, "processes");
_Static_assert(TAIL_AT + sizeof(struct region_tail) == REGION_SIZE, "tail");
_Static_assert(REGION_DEVICES == VGPU_MAX_DEVICES && REGION_SLOTS == VGPU_MAX_SLOTS, "our numbers fit");

static struct {
    _Atomic int fd;
    _Atomic dev_t device;
    _Atomic ino_t inode;
    _Atomic int64_t posted; /* slot << 32 | pid of the last process written from here */
} mirror = {.fd = -1};

static bool is_mirror(int fd) {
    struct stat found;
    return fd >= 0 && fstat(fd, &found) == 0 && found.st_dev == mirror.device && found.st_ino == mirror.inode;
}

bool mirror_is_open(void) { return mirror.fd >= 0; }

/* Beyond RLIMIT_FSIZE a write raises a signal that ends the program. */
static bool may_write(off_t end) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= (rlim_t)end);
}

static bool write_to(int fd, const void *bytes, size_t size, off_t at) {
    if (!may_write(at + (off_t)size)) {
        return false;
    }
    ssize_t done;
    do {
        done = pwrite(fd, bytes, size, at);
    } while (done < 0 && errno == EINTR);
    return done == (ssize_t)size;
}

static void write_at(const void *bytes, size_t size, size_t at) {
    int saved = errno;
    int fd = mirror.fd;
    if (is_mirror(fd)) {
        write_to(fd, bytes, size, (off_t)at);
    } else {
        mirror.fd = -1; /* the program closed it: it does without a mirror from now on */
    }
    errno = saved;
}

static int open_path(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT) {
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_CREAT | O_EXCL, 0666);
        if (fd >= 0) {
            fchmod(fd, 0666); /* for the container's other users, whatever this one's umask is */
        } else if (errno == EEXIST) {
            fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
        }
    }
    int high = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR) : -1;
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    return fd;
}

static void fill_limits(const struct limits *limits, uint64_t memory[REGION_DEVICES], uint64_t cores[REGION_DEVICES]) {
    for (uint32_t i = 0; i < REGION_DEVICES; i++) {
        bool known = i < limits->device_count;
        memory[i] = known ? limits->devices[i].memory : 0;
        cores[i] = known && limits->devices[i].cores != 0 ? limits->devices[i].cores : 100;
    }
}

/* The head goes in with its magic, the size follows with the tail: monitors ask for the size first, and a file whose maker died in
 * between is known by its magic and finished by the next. What monitors write (switch, recent kernel) is left alone in a whole region. */
static bool write_region(int fd, off_t size, const struct region_head *head, int32_t priority) {
    if (!write_to(fd, head, sizeof *head, 0)) {
        return false;
    }
    if (size >= REGION_SIZE) {
        return write_to(fd, &priority, sizeof priority, TAIL_AT + (off_t)offsetof(struct region_tail, priority));
    }
    struct {
        struct region_tail tail;
        char last;
    } end = {.tail = {.utilisation_switch = 1, .recent_kernel = 2, .priority = priority, .last_kernel_time = (int64_t)time(NULL)}};
    return write_to(fd, &end, FILE_SIZE - TAIL_AT, TAIL_AT);
}

static bool may_be_written(int fd, const struct stat *found) {
    if (!S_ISREG(found->st_mode) || !may_write(FILE_SIZE)) {
        return false;
    }
    struct {
        int32_t magic;
        uint32_t major;
    } start;
    if (found->st_size == 0) {
        return true;
    }
    return (found->st_size >= REGION_SIZE || found->st_size <= PROCESSES_AT) && pread(fd, &start, sizeof start, 0) == sizeof start &&
           start.magic == REGION_MAGIC && start.major == 1;
}

static void take_file(const char *path, const struct region_head *head, int32_t priority) {
    int fd = open_path(path);
    struct stat found;
    if (fd < 0) {
        return;
    }
    if (fstat(fd, &found) != 0 || !may_be_written(fd, &found) || !write_region(fd, found.st_size, head, priority)) {
        close(fd);
        return;
    }
    mirror.device = found.st_dev;
    mirror.inode = found.st_ino;
    mirror.posted = -1;
    mirror.fd = fd;
}

void mirror_open(const char *path, const struct limits *limits, uint32_t device_count, const char (*uuids)[VGPU_UUID_SIZE]) {
    if (path[0] == '\0') {
        return;
    }
    struct region_head head = {.magic = REGION_MAGIC, .major = 1, .minor = 2};
    head.device_count = device_count < REGION_DEVICES ? device_count : REGION_DEVICES;
    for (uint64_t i = 0; i < head.device_count; i++) {
        memcpy(head.uuids[i], uuids[i], sizeof head.uuids[i]);
    }
    fill_limits(limits, head.limit, head.sm_limit);
    int saved = errno;
    if (mirror_is_open()) {
        write_at(&head, sizeof head, 0);
    } else {
        take_file(path, &head, limits->priority);
    }
    errno = saved;
}

/* Two processes that raise the count at the same time must not leave the lower one: they take turns, each for a moment. */
static void raise_process_count(int32_t count) {
    int saved = errno;
    int fd = mirror.fd;
    if (is_mirror(fd)) {
        const off_t at = TAIL_AT + (off_t)offsetof(struct region_tail, process_count);
        struct flock turn = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = sizeof count};
        for (int tries = 0; tries < 100 && fcntl(fd, F_OFD_SETLK, &turn) != 0; tries++) {
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        }
        int32_t known = 0;
        if (pread(fd, &known, sizeof known, at) != sizeof known || known < count || known > REGION_SLOTS) {
            write_to(fd, &count, sizeof count, at);
        }
        turn.l_type = F_UNLCK;
        fcntl(fd, F_OFD_SETLK, &turn);
    }
    errno = saved;
}

static size_t process_at(int slot) { return PROCESSES_AT + (size_t)slot * sizeof(struct region_process); }

void mirror_process(int slot, int32_t pid, int32_t status) {
    if (!mirror_is_open() || slot < 0 || slot >= REGION_SLOTS) {
        return;
    }
    int64_t name = ((int64_t)slot << 32) | (uint32_t)pid;
    if (pid != 0 && mirror.posted == name) {
        write_at(&status, sizeof status, process_at(slot) + offsetof(struct region_process, status));
        return;
    }
    struct region_process process = {.pid = pid, .status = pid != 0 ? status : 0};
    write_at(&process, sizeof process, process_at(slot));
    if (pid != 0) {
        mirror.posted = name;
        raise_process_count(slot + 1);
    }
}

void mirror_usage(int slot, uint32_t device, const struct vgpu_usage *usage) {
    if (!mirror_is_open() || slot < 0 || slot >= REGION_SLOTS || device >= REGION_DEVICES) {
        return;
    }
    struct region_usage used = {
        .context = usage->overhead,
        .data = usage->linear + usage->managed + usage->pool + usage->vmm + usage->array + usage->graph,
    };
    /* Monitors show `total`. It is what counts against the limit, as in cuMemGetInfo and NVML, so what is reserved belongs to it. */
    used.total = used.context + used.data + usage->pending;
    write_at(&used, sizeof used, process_at(slot) + offsetof(struct region_process, used) + device * sizeof used);
}

void mirror_kernel_time(uint64_t seconds) {
    if (mirror_is_open()) {
        write_at(&seconds, sizeof seconds, TAIL_AT + offsetof(struct region_tail, last_kernel_time));
    }
}

void mirror_limits(const struct limits *limits) {
    if (!mirror_is_open()) {
        return;
    }
    struct {
        uint64_t memory[REGION_DEVICES], cores[REGION_DEVICES];
    } both;
    fill_limits(limits, both.memory, both.cores);
    write_at(&both, sizeof both, offsetof(struct region_head, limit));
    write_at(&limits->priority, sizeof limits->priority, TAIL_AT + offsetof(struct region_tail, priority));
}

void mirror_forget_after_fork(void) {
    int saved = errno;
    int fd = mirror.fd;
    if (is_mirror(fd)) {
        close(fd);
    }
    mirror.fd = -1;
    errno = saved;
}
