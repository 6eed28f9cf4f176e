/* The files `state` and `slots`: opening, the lock, who owns which slot, and what fork does to all that. See store_internal.h. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults.h"
#include "store_internal.h"

extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
extern void *__dso_handle;

static struct {
    pthread_mutex_t mutex;
    bool fork_watched;
    int pid; /* whose these are: a child made without fork() comes without its handlers */
    int state_fd;
    int slots_fd; /* never closed while the process may own a slot: closing any descriptor of the file gives its locks away */
    int slot;
    struct store_state *map;
} store = {.mutex = PTHREAD_MUTEX_INITIALIZER, .state_fd = -1, .slots_fd = -1, .slot = -1};

static pthread_once_t folder_once = PTHREAD_ONCE_INIT;
static char folder[3072];

static void find_folder(void)
{
    const char *given = getenv("FAKEGPU_DIR");
    snprintf(folder, sizeof folder, "%s", given && *given ? given : "/run/fakegpu");
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') {
        folder[--length] = 0;
    }
}

const char *store_folder(void)
{
    pthread_once(&folder_once, find_folder);
    return folder;
}

bool store_path(char *path, unsigned long size, const char *name)
{
    int length = snprintf(path, size, "%s/%s", store_folder(), name);
    return length > 0 && (unsigned long)length < size;
}

static void read_boot_id(char *id, size_t size)
{
    memset(id, 0, size);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t length = read(fd, id, size - 1);
    id[length > 0 ? strcspn(id, "\n") : 0] = 0;
    close(fd);
}

/* Other users' processes share the files, whatever the umask of the first one was. */
static int open_shared(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct stat facts;
    if (fd >= 0 && fstat(fd, &facts) == 0 && (facts.st_mode & 0666) != 0666) {
        (void)fchmod(fd, 0666);
    }
    return fd;
}

static bool lock_fd(int fd, short type)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    int result;
    do {
        result = fcntl(fd, F_OFD_SETLKW, &range);
    } while (result < 0 && errno == EINTR);
    return result == 0;
}

static void fit_cards(struct store_state *map)
{
    const struct fake_device *devices;
    int count = store_devices(&devices);
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        const char *uuid = i < count ? devices[i].uuid : "";
        struct store_card *card = &map->cards[i];
        if (i < count && strncmp(card->uuid, uuid, sizeof card->uuid) != 0) {
            memset(card, 0, sizeof *card);
            snprintf(card->uuid, sizeof card->uuid, "%s", uuid);
            for (uint32_t n = 0; n < STORE_OWNERS; n++) {
                map->owners[n].peak[i] = 0;
            }
        }
    }
}

static void make_state(struct store_state *map)
{
    __atomic_store_n(&map->magic, 0, __ATOMIC_RELEASE);
    memset(map, 0, sizeof *map);
    map->version = STORE_VERSION;
    map->size = (uint32_t)sizeof *map;
    map->virtual_now = 1000000000;
    read_boot_id(map->boot_id, sizeof map->boot_id);
    __atomic_store_n(&map->magic, STORE_MAGIC, __ATOMIC_RELEASE);
}

static bool is_ours(const struct store_state *map)
{
    char boot_id[sizeof map->boot_id];
    read_boot_id(boot_id, sizeof boot_id);
    return map->magic == STORE_MAGIC && map->version == STORE_VERSION && map->size == sizeof *map &&
           strncmp(map->boot_id, boot_id, sizeof boot_id) == 0;
}

/* Returns 1 with the lock held and the file mapped, 0 to look again, -1 on failure. A file of another length is another program's: it may
 * be mapped there, so it is left alone and another put in its place. One of our length is made again in place, it can only be our own
 * old one. */
static int try_open_state(const char *path)
{
    int fd = open_shared(path);
    if (fd < 0) {
        return -1;
    }
    struct stat mine;
    struct stat named;
    if (!lock_fd(fd, F_WRLCK) || fstat(fd, &mine) < 0) {
        close(fd);
        return -1;
    }
    if (stat(path, &named) < 0 || named.st_ino != mine.st_ino || named.st_dev != mine.st_dev) {
        close(fd);
        return 0;
    }
    if (mine.st_size == 0 && ftruncate(fd, (off_t)sizeof(struct store_state)) < 0) {
        close(fd);
        return -1;
    }
    if (mine.st_size != 0 && mine.st_size != (off_t)sizeof(struct store_state)) {
        int removed = unlink(path);
        close(fd);
        return removed == 0 ? 0 : -1;
    }
    void *map = mmap(NULL, sizeof(struct store_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        close(fd);
        return -1;
    }
    if (!is_ours(map)) {
        make_state(map);
    }
    fit_cards(map);
    store.state_fd = fd;
    __atomic_store_n(&store.map, map, __ATOMIC_RELEASE);
    return 1;
}

static bool open_all(void)
{
    char path[4096];
    const struct fake_device *devices;
    if (store_devices(&devices) == 0) {
        return false; /* no node was made here: make no files either */
    }
    if (store.slots_fd < 0) {
        store.slots_fd = store_path(path, sizeof path, "slots") ? open_shared(path) : -1;
    }
    if (store.slots_fd < 0 || !store_path(path, sizeof path, "state")) {
        return false;
    }
    int result = 0;
    for (int tries = 0; result == 0 && tries < 100; tries++) {
        result = try_open_state(path);
    }
    return result == 1;
}

/* The parent's locks are not the child's, but its descriptors are: an OFD lock taken through the same one would lock no process out. That
 * of `slots` stays: closing it could give away the slot of this process's other copy of the store. */
static void forget_parent(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    store.mutex = fresh;
    if (store.map) {
        munmap(store.map, sizeof *store.map);
    }
    if (store.state_fd >= 0) {
        close(store.state_fd);
    }
    store.map = NULL;
    store.state_fd = store.slot = -1;
    __atomic_store_n(&store.pid, getpid(), __ATOMIC_RELEASE);
}

void store_after_fork(void)
{
    if (__atomic_load_n(&store.pid, __ATOMIC_ACQUIRE) != getpid()) {
        forget_parent();
    }
    fault_after_fork();
}

static void watch_forks(void)
{
    if (!store.fork_watched) {
        store.fork_watched = true;
        (void)__register_atfork(NULL, NULL, store_after_fork, __dso_handle);
    }
}

bool store_lock(void)
{
    int known = __atomic_load_n(&store.pid, __ATOMIC_ACQUIRE);
    if (known != 0 && known != getpid()) {
        store_after_fork();
    }
    pthread_mutex_lock(&store.mutex);
    __atomic_store_n(&store.pid, getpid(), __ATOMIC_RELEASE);
    watch_forks();
    bool locked = store.map ? lock_fd(store.state_fd, F_WRLCK) : open_all();
    if (!locked) {
        pthread_mutex_unlock(&store.mutex);
    }
    return locked;
}

void store_unlock(void)
{
    lock_fd(store.state_fd, F_UNLCK);
    pthread_mutex_unlock(&store.mutex);
}

struct store_state *store_map(void)
{
    return __atomic_load_n(&store.map, __ATOMIC_ACQUIRE);
}

bool store_map_is_own(void)
{
    return __atomic_load_n(&store.pid, __ATOMIC_ACQUIRE) == getpid() && store_map();
}

/* The OFD form of F_GETLK also reports locks of this very process, which the library for the other half of the driver may hold. */
bool store_slot_lives(uint32_t number, int *pid)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)number, .l_len = 1};
    if (fcntl(store.slots_fd, F_OFD_GETLK, &range) < 0) {
        return true; /* not known: never take memory from the living */
    }
    if (pid) {
        *pid = range.l_type == F_UNLCK || range.l_pid < 0 ? 0 : range.l_pid;
    }
    return range.l_type != F_UNLCK;
}

void store_sweep(void)
{
    bool any = false;
    for (uint32_t n = 0; n < store.map->slots_used; n++) {
        struct store_slot *slot = &store.map->slots[n];
        if (slot->pid != 0 && (int)n != store.slot && !store_slot_lives(n, NULL)) {
            memset(slot, 0, sizeof *slot);
            store_forget_work(n);
            any = true;
        }
    }
    if (any) {
        store_drop_dead_work();
    }
}

struct store_slot *store_own_slot(void)
{
    int number = __atomic_load_n(&store.slot, __ATOMIC_ACQUIRE);
    return number < 0 ? NULL : &store.map->slots[number];
}

struct store_slot *store_claim_slot(void)
{
    if (store.slot >= 0) {
        return &store.map->slots[store.slot];
    }
    store_sweep();
    store_drop_dead_work(); /* the last process that cleaned up may have been killed before this */
    store_check_peaks_file();
    for (uint32_t n = 0; n < FAKE_MAX_SLOTS; n++) {
        struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)n, .l_len = 1};
        if (store.map->slots[n].pid != 0 || store_slot_lives(n, NULL) || fcntl(store.slots_fd, F_SETLK, &range) < 0) {
            continue;
        }
        struct store_slot *slot = &store.map->slots[n];
        memset(slot, 0, sizeof *slot);
        store_forget_work(n);
        store_owner_name(slot->owner, sizeof slot->owner);
        slot->pid = getpid();
        if (store.map->slots_used <= n) {
            __atomic_store_n(&store.map->slots_used, n + 1, __ATOMIC_RELEASE);
        }
        __atomic_store_n(&store.slot, (int)n, __ATOMIC_RELEASE);
        return slot;
    }
    return NULL;
}
