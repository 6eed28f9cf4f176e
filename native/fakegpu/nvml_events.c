/* The stand-in NVML: event sets. They deliver critical errors (XIDs) that someone appends to the folder's file `xids`. */
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nvml_internal.h"
#include "store_internal.h"

#define XID_EVENT 8ull
#define SUPPORTED_EVENTS (1ull | 2ull | XID_EVENT | 16ull) /* single and double bit errors, XIDs, clocks; only XIDs ever come */
#define LOOK_EVERY_MS 20

struct nvmlEventSet_st {
    pthread_mutex_t mutex;
    off_t at; /* how far `xids` was read */
    struct {
        unsigned long long types;
        off_t from; /* length of `xids` when the card was registered */
    } cards[FAKE_MAX_DEVICES];
};
typedef struct nvmlEventSet_st *nvmlEventSet_t;

struct event {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance; /* not in the first form */
};

static off_t xids_length(void)
{
    char path[4096];
    struct stat facts;
    return store_path(path, sizeof path, "xids") && stat(path, &facts) == 0 ? facts.st_size : 0;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    BEGIN();
    NEED(set);
    struct nvmlEventSet_st *made = calloc(1, sizeof *made);
    if (!made) {
        return NVML_ERROR_UNKNOWN;
    }
    pthread_mutex_init(&made->mutex, NULL);
    made->at = xids_length();
    *set = made;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    BEGIN();
    NEED(set);
    pthread_mutex_destroy(&set->mutex);
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types);
EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(types);
    *types = SUPPORTED_EVENTS;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(set);
    if (types & ~SUPPORTED_EVENTS) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&set->mutex);
    if (!set->cards[card.index].types) {
        set->cards[card.index].from = xids_length();
    }
    set->cards[card.index].types |= types;
    pthread_mutex_unlock(&set->mutex);
    return NVML_SUCCESS;
}

/* Whether a line that begins at `start` is for this set. */
static bool take_line(nvmlEventSet_t set, const char *line, off_t start, struct event *event)
{
    const struct fake_device *devices;
    char uuid[96];
    unsigned long long xid;
    int count = store_devices(&devices);
    if (sscanf(line, "%95[^\t]\t%llu", uuid, &xid) != 2) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (strcmp(devices[i].uuid, uuid) == 0 && (set->cards[i].types & XID_EVENT) && start >= set->cards[i].from) {
            *event = (struct event){.device = nvml_handle(i, 0),
                                    .type = XID_EVENT,
                                    .data = xid,
                                    .gpu_instance = NVML_NO_INSTANCE,
                                    .compute_instance = NVML_NO_INSTANCE};
            return true;
        }
    }
    return false;
}

/* Reads on from where the set stands, to the first event that is for it. A line without its end is still being written. */
static bool next_event(nvmlEventSet_t set, struct event *event)
{
    char path[4096];
    char text[4096];
    if (xids_length() < set->at) {
        set->at = 0; /* another file */
    }
    int fd = store_path(path, sizeof path, "xids") ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    bool found = false;
    while (fd >= 0 && !found) {
        ssize_t size = pread(fd, text, sizeof text - 1, set->at);
        text[size > 0 ? size : 0] = 0;
        char *end = strchr(text, '\n');
        if (!end) {
            break;
        }
        *end = 0;
        found = take_line(set, text, set->at, event);
        set->at += end - text + 1;
    }
    if (fd >= 0) {
        close(fd);
    }
    return found;
}

static bool has_lost_card(nvmlEventSet_t set)
{
    const struct fake_device *devices;
    int count = store_devices(&devices);
    for (int i = 0; i < count; i++) {
        if (set->cards[i].types && fault_lost(devices[i].uuid)) {
            return true;
        }
    }
    return false;
}

/* Waits on the real clock, whatever clock the cards run on: those who wait are agents, not kernels. */
static nvmlReturn_t wait_for_event(nvmlEventSet_t set, const char *function, struct event *event, unsigned int milliseconds)
{
    nvmlReturn_t refused = nvml_begin(function);
    if (refused) {
        return refused;
    }
    NEED(set);
    uint64_t until = store_monotonic() + milliseconds * 1000000ull;
    for (;;) {
        pthread_mutex_lock(&set->mutex);
        bool found = next_event(set, event);
        bool lost = !found && has_lost_card(set);
        pthread_mutex_unlock(&set->mutex);
        uint64_t now = store_monotonic();
        if (found || lost) {
            return found ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
        }
        if (now >= until) {
            return NVML_ERROR_TIMEOUT;
        }
        uint64_t left = until - now;
        uint64_t pause = left < LOOK_EVERY_MS * 1000000ull ? left : LOOK_EVERY_MS * 1000000ull;
        struct timespec time = {.tv_nsec = (long)pause};
        nanosleep(&time, NULL);
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, void *data, unsigned int milliseconds);
EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, void *data, unsigned int milliseconds)
{
    struct event event;
    NEED(data);
    nvmlReturn_t result = wait_for_event(set, __func__, &event, milliseconds);
    if (result == NVML_SUCCESS) {
        memcpy(data, &event, offsetof(struct event, gpu_instance));
    }
    return result;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct event *data, unsigned int milliseconds);
EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct event *data, unsigned int milliseconds)
{
    NEED(data);
    return wait_for_event(set, __func__, data, milliseconds);
}
