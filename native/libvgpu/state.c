/* This process's place in the state file: mapping it and taking a slot. See state.h.
 *
 * The file is opened twice. One open file is behind the map of the state, which forked children inherit and may go on reading. The other
 * has the slot's lock and lives only by a page that is mapped from it: children do not get that page (MADV_DONTFORK, whichever
 * way they are made), exec and death take it away, and there is no descriptor that a program could close or a child could keep.
 */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state_internal.h"
#include "test_points.h"

#define ATTACH_TRIES 4

/* Written with attach_lock held. The atomic ones are read without it. */
static struct {
    pid_t pid; /* who attached: another one is a child that nobody told about the fork */
    _Atomic int slot;
    _Atomic bool made_here;
    char path[4096];
    _Atomic dev_t device;
    _Atomic ino_t inode;
    struct vgpu_state *map;
} own = {.slot = -1};

static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;

int state_own_slot(void) { return own.slot; }

bool state_take_made_here(void) { return atomic_exchange(&own.made_here, false); }

/* The parent's lock page is not here: there is nothing to give back. */
static void forget(void) {
    own.slot = -1;
    own.pid = 0;
    own.made_here = false;
}

void state_forget_after_fork(void) {
    /* Another thread of the parent may have held it: in the child there is no such thread. */
    attach_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    forget();
}

static bool is_mapped_file(const struct stat *found) { return found->st_dev == own.device && found->st_ino == own.inode; }

/* Opened for the question only. Looked at before and after: another thread may close or re-use descriptors that it does not know, and
 * an answer about some other file would declare all neighbours dead. */
bool state_find_living(uint32_t count, bool living[VGPU_MAX_SLOTS]) {
    int fd = open(own.path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return false;
    }
    struct stat found;
    bool known = fstat(fd, &found) == 0 && is_mapped_file(&found) && state_file_find_living(fd, count, living) &&
                 fstat(fd, &found) == 0 && is_mapped_file(&found);
    close(fd);
    return known;
}

/* Clock ticks since boot; with the pid it names a process beyond doubt. 0 if /proc is not there. */
static uint64_t start_time(void) {
    char text[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    if (file == NULL) {
        return 0;
    }
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *after_name = strrchr(text, ')'); /* the name may hold blanks and parentheses */
    unsigned long long ticks = 0;
    if (after_name == NULL ||
        sscanf(after_name + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &ticks) != 1) {
        return 0;
    }
    return ticks;
}

/* With the slot's byte locked by us. What its last owner had is gone from the totals after this. */
static void move_in(struct vgpu_state *state, uint32_t index, uint64_t started) {
    struct vgpu_slot *slot = &state->slots[index];
    state->writing = 1;
    state_clear_slot(slot);
    TEST_POINT("state.slot.cleared");
    slot->epoch++;
    slot->pid = getpid();
    slot->start_time = started;
    if (state_slots_used(state) <= index) {
        __atomic_store_n(&state->slots_used, index + 1, __ATOMIC_RELAXED);
    }
    TEST_POINT("state.slot.named");
    slot->status = 1;
    state_recompute(state);
    state->writing = 0;
}

enum take { TAKEN, NOT_THIS_ONE, IMPOSSIBLE };

/* Slots of the dead with usage are left to the sweep as long as there are others: the driver may still count that memory. */
static enum take take_slot(int fd, struct vgpu_state *state, uint32_t index, bool clean_only, uint64_t started) {
    /* A glance before anything is locked: what the living and the dead have is passed over without a system call. */
    if (clean_only && !state_slot_is_empty(&state->slots[index])) {
        return NOT_THIS_ONE;
    }
    switch (state_file_lock_slot(fd, index)) {
    case BYTE_TAKEN:
        return NOT_THIS_ONE;
    case BYTE_ERROR:
        return IMPOSSIBLE;
    case BYTE_LOCKED:
        break;
    }
    TEST_POINT("state.slot.locked");
    if (!state_file_header_valid(state) || !state_lock(state)) {
        state_file_unlock_slot(fd, index);
        return IMPOSSIBLE;
    }
    bool take = !clean_only || state_slot_is_empty(&state->slots[index]);
    if (take) {
        move_in(state, index, started);
    }
    state_unlock(state);
    if (!take) {
        state_file_unlock_slot(fd, index);
        return NOT_THIS_ONE;
    }
    own.slot = (int)index;
    return TAKEN;
}

static bool take_any_slot(int fd, struct vgpu_state *state) {
    uint64_t started = start_time();
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t index = 0; index < VGPU_MAX_SLOTS; index++) {
            enum take result = take_slot(fd, state, index, pass == 0, started);
            if (result != NOT_THIS_ONE) {
                return result == TAKEN;
            }
        }
    }
    return false;
}

/* A page that keeps an open file, and the locks on it, for as long as this process has this memory. */
static void *keep_open(int fd) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *kept = mmap(NULL, page, PROT_NONE, MAP_SHARED, fd, 0);
    if (kept == MAP_FAILED) {
        return NULL;
    }
    if (madvise(kept, page, MADV_DONTFORK) != 0) {
        munmap(kept, page);
        return NULL;
    }
    return kept;
}

/* The page comes first: once a slot is taken nothing can fail any more. */
static bool hold_slot(const struct places *places) {
    struct stat found;
    int fd = state_file_open(places, &found);
    if (fd < 0) {
        return false;
    }
    void *kept = is_mapped_file(&found) ? keep_open(fd) : NULL;
    bool taken = kept != NULL && take_any_slot(fd, own.map);
    if (kept != NULL && !taken) {
        munmap(kept, (size_t)sysconf(_SC_PAGESIZE));
    }
    close(fd);
    return taken;
}

/* The map of this very file is used again in a forked child: others hold pointers into it. A map of a file that was replaced since stays
 * where it is for the same reason. */
static bool map_file(int fd, const struct stat *found, const char *path) {
    if (own.map != NULL && is_mapped_file(found)) {
        return true;
    }
    void *map = mmap(NULL, sizeof(struct vgpu_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        return false;
    }
    own.map = map;
    own.device = found->st_dev;
    own.inode = found->st_ino;
    snprintf(own.path, sizeof own.path, "%s", path);
    return true;
}

static bool map_valid_file(const struct places *places) {
    struct stat found;
    int fd = state_file_open(places, &found);
    if (fd < 0) {
        return false;
    }
    bool made = false;
    bool mapped = state_file_prepare(fd, &made) && map_file(fd, &found, places->state);
    if (made) {
        own.made_here = true;
    }
    close(fd);
    return mapped;
}

static bool attach(const struct places *places, bool slot) {
    pid_t pid = getpid();
    if (own.pid != pid) {
        forget();
    } else if (!slot || own.slot >= 0) {
        return true;
    }
    /* Again only if the file was replaced or spoiled between its two openings; all slots taken, or no mutex, is final. */
    for (int tries = 0; tries < ATTACH_TRIES; tries++) {
        if (!map_valid_file(places)) {
            return false;
        }
        if (!slot || hold_slot(places)) {
            own.pid = pid;
            return true;
        }
        struct stat found;
        if (state_file_header_valid(own.map) && stat(places->state, &found) == 0 && is_mapped_file(&found)) {
            return false;
        }
    }
    return false;
}

struct vgpu_state *state_attach(const struct places *places, bool slot) {
    int saved = errno;
    pthread_mutex_lock(&attach_lock);
    struct vgpu_state *result = attach(places, slot) ? own.map : NULL;
    pthread_mutex_unlock(&attach_lock);
    errno = saved;
    return result;
}
