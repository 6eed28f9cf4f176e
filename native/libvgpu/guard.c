/* See guard.h. The order of things: the first dlsym of a driver name, or the first call of a hook, reads the limits; the first hook that
 * counts something maps the state and takes a slot. A forked child starts again from there, because CUDA does too.
 */
#include "guard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "clock.h"
#include "ledger.h"
#include "mirror.h"
#include "overhead.h"
#include "state.h"

#define MAX_ORDINALS 64

static pthread_mutex_t deciding = PTHREAD_MUTEX_INITIALIZER;
static atomic_int decided = -1; /* enum guard_mode, -1 before */
static struct places places;
static struct limits first_limits;
/* Replaced, never changed: readers hold no lock. The old one stays; resizes are rare. */
static struct limits *_Atomic current = &first_limits;

static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;
static atomic_int attached_by; /* the process that has a slot; another pid after fork */
static struct vgpu_state *_Atomic mapped;
static atomic_int index_of_ordinal[MAX_ORDINALS]; /* index + 1; 0 = not asked yet */
static atomic_int device_of_index[VGPU_MAX_DEVICES]; /* CUdevice + 1; 0 = not seen */
static _Atomic int64_t policy_looked_at;

extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *handle);
extern void *__dso_handle;

enum guard_mode guard_mode(void) {
    int known = atomic_load_explicit(&decided, memory_order_acquire);
    if (known >= 0) {
        return (enum guard_mode)known;
    }
    pthread_mutex_lock(&deciding);
    if (atomic_load(&decided) < 0) {
        places_find(&places);
        limits_read(&places, &first_limits);
        const struct limits *limits = &first_limits;
        enum guard_mode mode = GUARD_ON;
        if (limits->source == LIMITS_NONE) {
            mode = GUARD_OFF;
        } else if (limits->source == LIMITS_REFUSED) {
            mode = GUARD_REFUSES;
        }
        atomic_store_explicit(&decided, (int)mode, memory_order_release);
    }
    pthread_mutex_unlock(&deciding);
    return (enum guard_mode)atomic_load(&decided);
}

const struct limits *guard_limits(void) { return atomic_load_explicit(&current, memory_order_acquire); }
const struct places *guard_places(void) { return &places; }
struct vgpu_state *guard_state(void) { return atomic_load(&mapped); }

static void in_the_child(void) {
    /* CUDA does not survive fork: nothing that the parent allocated is the child's. */
    state_forget_after_fork();
    mirror_forget_after_fork();
    ledger_forget_after_fork();
    overhead_forget_after_fork();
    atomic_store(&mapped, NULL);
    atomic_store(&attached_by, 0);
    for (int ordinal = 0; ordinal < MAX_ORDINALS; ordinal++) {
        atomic_store(&index_of_ordinal[ordinal], 0);
    }
    pthread_mutex_init(&attaching, NULL);
    pthread_mutex_init(&deciding, NULL);
}

/* The limits as everybody should see them: in the state, for the monitor, and in HAMi's mirror. */
static void publish_limits(struct vgpu_state *state) {
    const struct limits *limits = guard_limits();
    if (!state_lock(state)) {
        return;
    }
    if (limits->generation >= state->policy_generation) {
        state->policy_generation = limits->generation;
        for (uint32_t index = 0; index < limits->device_count; index++) {
            state->devices[index].limit = limits->devices[index].memory;
            if (limits->devices[index].uuid[0] != '\0') {
                memcpy(state->devices[index].uuid, limits->devices[index].uuid, VGPU_UUID_SIZE);
            }
        }
        if (limits->source == LIMITS_POLICY) {
            state->device_count = limits->device_count;
        }
    }
    state_unlock(state);
}

static uint32_t known_devices(const struct vgpu_state *state) {
    return state->device_count <= VGPU_MAX_DEVICES ? state->device_count : VGPU_MAX_DEVICES;
}

static void open_mirror(const struct vgpu_state *state) {
    char uuids[VGPU_MAX_DEVICES][VGPU_UUID_SIZE];
    for (uint32_t index = 0; index < VGPU_MAX_DEVICES; index++) {
        memcpy(uuids[index], state->devices[index].uuid, VGPU_UUID_SIZE);
    }
    mirror_open(places.mirror, guard_limits(), known_devices(state), (const char(*)[VGPU_UUID_SIZE])uuids);
    mirror_process(state_own_slot(), (int32_t)getpid(), 1);
}

static bool attach(void) {
    pthread_mutex_lock(&attaching);
    bool ready = atomic_load(&attached_by) == (int)getpid();
    if (!ready) {
        if (atomic_load(&attached_by) != 0) {
            /* A child of a raw clone(): nobody called our fork handler. */
            state_forget_after_fork();
            mirror_forget_after_fork();
            ledger_forget_after_fork();
            overhead_forget_after_fork();
        } else {
            static atomic_bool registered;
            if (!atomic_exchange(&registered, true)) {
                __register_atfork(NULL, NULL, in_the_child, __dso_handle);
            }
        }
        struct vgpu_state *state = state_attach(&places, true);
        if (state != NULL) {
            atomic_store(&mapped, state);
            publish_limits(state);
            open_mirror(state);
            atomic_store(&attached_by, (int)getpid());
            ready = true;
        }
    }
    pthread_mutex_unlock(&attaching);
    return ready;
}

bool guard_on(void) {
    if (guard_mode() == GUARD_OFF) {
        intercept_cuda();
        return false;
    }
    return intercept_cuda();
}

bool guard_attached(void) {
    if (atomic_load_explicit(&attached_by, memory_order_acquire) != 0) {
        return true; /* a raw clone() is noticed where it costs nothing: guard_attached_now() */
    }
    return guard_mode() == GUARD_ON && attach();
}

bool guard_attached_now(void) {
    return atomic_load_explicit(&attached_by, memory_order_acquire) == (int)getpid() || (guard_mode() == GUARD_ON && attach());
}

struct vgpu_state *guard_view(void) {
    if (guard_mode() != GUARD_ON) {
        return NULL;
    }
    struct vgpu_state *state = atomic_load(&mapped);
    if (state != NULL) {
        return state;
    }
    state = state_attach(&places, false);
    if (state != NULL) {
        publish_limits(state);
    }
    return state;
}

/* UUIDs are compared by their hexadecimal part: CUDA gives 16 bytes, NVML text with the prefix GPU- or MIG-. */
static const char *hexadecimal_part(const char *uuid) {
    return strncmp(uuid, "GPU-", 4) == 0 || strncmp(uuid, "MIG-", 4) == 0 ? uuid + 4 : uuid;
}

static void format_uuid(const CUuuid *uuid, char text[VGPU_UUID_SIZE]) {
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    snprintf(text, VGPU_UUID_SIZE, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4],
             b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

int guard_index_of_uuid(const char *uuid) {
    const struct limits *limits = guard_limits();
    if (limits->source == LIMITS_POLICY) {
        for (uint32_t index = 0; index < limits->device_count; index++) {
            if (strcasecmp(hexadecimal_part(limits->devices[index].uuid), hexadecimal_part(uuid)) == 0) {
                return (int)index;
            }
        }
        return GUARD_REFUSE;
    }
    return overhead_nvml_index(uuid);
}

static int find_index(CUdevice device) {
    CUuuid uuid;
    CUresult told = real.cuDeviceGetUuid_v2 != NULL ? real.cuDeviceGetUuid_v2(&uuid, device)
                    : real.cuDeviceGetUuid != NULL  ? real.cuDeviceGetUuid(&uuid, device)
                                                    : CUDA_ERROR_NOT_SUPPORTED;
    if (told != CUDA_SUCCESS) {
        return GUARD_FORWARD;
    }
    char text[VGPU_UUID_SIZE] = {0};
    format_uuid(&uuid, text);
    int index = guard_index_of_uuid(text);
    bool by_environment = guard_limits()->source == LIMITS_ENV;
    if (index < 0 && by_environment) {
        index = device < VGPU_MAX_DEVICES ? device : GUARD_REFUSE; /* no NVML: CUDA's order is the best that is known */
    }
    struct vgpu_state *state = guard_state();
    if (index >= 0 && by_environment && state != NULL && state_lock(state)) {
        memcpy(state->devices[index].uuid, text, sizeof text);
        if (state->device_count <= (uint32_t)index) {
            state->device_count = (uint32_t)index + 1;
        }
        state_unlock(state);
        open_mirror(state);
    }
    return index;
}

int guard_index_of(CUdevice device) {
    if (!guard_attached()) {
        return GUARD_REFUSE;
    }
    if (device < 0 || device >= MAX_ORDINALS) {
        return GUARD_FORWARD;
    }
    int known = atomic_load_explicit(&index_of_ordinal[device], memory_order_relaxed);
    if (known > 0) {
        return known - 1;
    }
    int index = find_index(device);
    if (index >= 0) {
        atomic_store(&index_of_ordinal[device], index + 1);
        atomic_store(&device_of_index[index], device + 1);
    }
    return index;
}

int guard_current_index(void) {
    CUdevice device;
    if (real.cuCtxGetDevice(&device) != CUDA_SUCCESS) {
        return GUARD_FORWARD;
    }
    return guard_index_of(device);
}

CUdevice guard_device_of(int index) { return atomic_load(&device_of_index[index]) - 1; }

void guard_follow_policy(bool now) {
    int64_t time = clock_coarse_ms();
    if (!now && time - atomic_load_explicit(&policy_looked_at, memory_order_relaxed) < 1000) {
        return;
    }
    atomic_store(&policy_looked_at, time);
    struct vgpu_state *state = guard_state();
    if (guard_limits()->source != LIMITS_POLICY || state == NULL) {
        return;
    }
    pthread_mutex_lock(&deciding);
    struct limits *newer = malloc(sizeof *newer);
    bool changed = false;
    if (newer != NULL) {
        *newer = *guard_limits();
        changed = limits_reread(&places, newer);
        if (changed) {
            atomic_store_explicit(&current, newer, memory_order_release);
        } else {
            free(newer);
        }
    }
    pthread_mutex_unlock(&deciding);
    if (changed) {
        publish_limits(state);
        mirror_limits(newer);
    }
}
