/* See overhead.h. */
#include "overhead.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cards.h"
#include "clock.h"
#include "contexts.h"
#include "graphs.h"
#include "guard.h"
#include "ledger.h"
#include "pools.h"
#include "process_list.h"
#include "state.h"
#include "test_points.h"

#define NEAR (128 * MIB)     /* loading code grows by up to 96 MiB at once */
#define REFRESH_MS 1000      /* far from the limit */
#define ROOM_FOR_PROCESSES 128

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER;
static atomic_int nvml_opened; /* 0 not tried, 1 there, -1 not to be had */
static nvmlDevice_t handles[VGPU_MAX_DEVICES];

static atomic_long in_flight;
static atomic_long completed;
static _Atomic card_set suspected; /* cards that are to be measured before the next allocation */
static _Atomic int64_t measured_at[VGPU_MAX_DEVICES];
static _Atomic uint64_t floors[VGPU_MAX_DEVICES];
static _Atomic uint64_t measured[VGPU_MAX_DEVICES]; /* our overhead as we charged it ourselves */
static atomic_bool unsettled[VGPU_MAX_DEVICES]; /* the last measurement was not quiet */
static atomic_bool anything_unsettled;
static _Atomic uint64_t suspicions_seen[VGPU_MAX_DEVICES]; /* of the state's counter */

void overhead_operation_begins(void) { atomic_fetch_add(&in_flight, 1); }

void overhead_operation_ends(void) {
    atomic_fetch_add(&completed, 1);
    atomic_fetch_sub(&in_flight, 1);
}

void overhead_suspect(void) { atomic_store_explicit(&suspected, ~(card_set)0, memory_order_relaxed); }

static uint64_t shared_suspicions(void) {
    struct vgpu_state *state = guard_state();
    return state == NULL ? 0 : __atomic_load_n(&state->suspicions, __ATOMIC_ACQUIRE);
}

void overhead_suspect_all(void) {
    struct vgpu_state *state = guard_state();
    if (state != NULL) {
        __atomic_fetch_add(&state->suspicions, 1, __ATOMIC_ACQ_REL);
    }
}

bool overhead_is_due(int index, uint64_t room) {
    return room < NEAR || (atomic_load_explicit(&suspected, memory_order_relaxed) & card_alone(index)) != 0 ||
           shared_suspicions() != atomic_load_explicit(&suspicions_seen[index], memory_order_relaxed) ||
           clock_coarse_ms() - atomic_load_explicit(&measured_at[index], memory_order_relaxed) >= REFRESH_MS;
}

void overhead_raise_floor(int index, uint64_t by) {
    /* What is charged now may be an older floor already: floors add up. */
    pthread_mutex_lock(&measuring);
    uint64_t raised = ledger_own(index, LEDGER_OVERHEAD) + by;
    atomic_store(&floors[index], raised);
    atomic_store(&measured[index], raised);
    ledger_set(index, LEDGER_OVERHEAD, raised, 0);
    pthread_mutex_unlock(&measuring);
}

void overhead_drop_floor(int index) { atomic_store(&floors[index], 0); }

static bool nvml_is_there(void) {
    int known = atomic_load_explicit(&nvml_opened, memory_order_acquire);
    if (known != 0) {
        return known > 0;
    }
    pthread_mutex_lock(&opening);
    if (atomic_load(&nvml_opened) == 0) {
        bool there = intercept_nvml() && real.nvmlDeviceGetHandleByUUID != NULL && real.nvmlInit_v2() == NVML_SUCCESS;
        atomic_store_explicit(&nvml_opened, there ? 1 : -1, memory_order_release);
    }
    pthread_mutex_unlock(&opening);
    return atomic_load(&nvml_opened) > 0;
}

static nvmlDevice_t handle_of(int index) {
    if (!nvml_is_there()) {
        return NULL;
    }
    pthread_mutex_lock(&opening);
    nvmlDevice_t handle = handles[index];
    if (handle == NULL) {
        const char *uuid = guard_limits()->devices[index].uuid;
        struct vgpu_state *state = guard_state();
        char text[VGPU_UUID_SIZE];
        memcpy(text, uuid[0] == '\0' && state != NULL ? state->devices[index].uuid : uuid, sizeof text);
        text[sizeof text - 1] = '\0';
        if (text[0] != '\0' && real.nvmlDeviceGetHandleByUUID(text, &handle) == NVML_SUCCESS) {
            handles[index] = handle;
        } else {
            handle = NULL;
        }
    }
    pthread_mutex_unlock(&opening);
    return handle;
}

int overhead_nvml_index(const char *uuid) {
    nvmlDevice_t handle;
    unsigned int index;
    if (!nvml_is_there() || real.nvmlDeviceGetIndex == NULL || real.nvmlDeviceGetHandleByUUID(uuid, &handle) != NVML_SUCCESS ||
        real.nvmlDeviceGetIndex(handle, &index) != NVML_SUCCESS || index >= VGPU_MAX_DEVICES) {
        return GUARD_REFUSE;
    }
    return (int)index;
}

/* NVML's list of the processes on a card; NULL if it does not tell. Free it if it is not `room`. */
static nvmlProcessInfo_v2_t *list_processes(int index, nvmlProcessInfo_v2_t *room, unsigned int *count) {
    nvmlDevice_t handle = handle_of(index);
    if (handle == NULL) {
        return NULL;
    }
    *count = ROOM_FOR_PROCESSES;
    nvmlReturn_t told = process_list_newest(handle, count, room);
    if (told == NVML_SUCCESS) {
        return room;
    }
    if (told != NVML_ERROR_INSUFFICIENT_SIZE) {
        return NULL;
    }
    unsigned int enough = *count * 2 + ROOM_FOR_PROCESSES;
    nvmlProcessInfo_v2_t *more = calloc(enough, sizeof *more);
    *count = enough;
    if (more != NULL && process_list_newest(handle, count, more) == NVML_SUCCESS) {
        return more;
    }
    free(more);
    return NULL;
}

static uint64_t bytes_of(const nvmlProcessInfo_v2_t *process) {
    return process->usedGpuMemory == NVML_VALUE_NOT_AVAILABLE ? 0 : process->usedGpuMemory;
}

/* How often the other processes' slots changed so far. */
static void note_changes(uint64_t changes[VGPU_MAX_SLOTS]) {
    struct vgpu_state *state = guard_state();
    if (state == NULL || !state_lock(state)) {
        return; /* then they cannot be compared later either */
    }
    for (uint32_t at = 0; at < state->slots_used && at < VGPU_MAX_SLOTS; at++) {
        changes[at] = state->slots[at].changes;
    }
    state_unlock(state);
}

/* What the driver counts for a process of the container. */
static uint64_t counted_for(const struct vgpu_slot *slot, const nvmlProcessInfo_v2_t *list, unsigned int count) {
    uint64_t bytes = 0;
    for (unsigned int process = 0; process < count; process++) {
        bool its = list[process].pid == (unsigned int)slot->pid ||
                   (slot->host_pid != 0 && list[process].pid == (unsigned int)slot->host_pid);
        bytes += its ? bytes_of(&list[process]) : 0;
    }
    return bytes;
}

/* Charges the other processes of the container with what the driver counts for them beyond what they have charged themselves with, until
 * they measure again. Only those that did nothing while the driver was asked: the others are at it themselves. */
static void charge_others(int index, const nvmlProcessInfo_v2_t *list, unsigned int count, const uint64_t *changes) {
    struct vgpu_state *state = guard_state();
    if (state == NULL || !state_lock(state)) {
        return;
    }
    uint32_t slots = state->slots_used <= VGPU_MAX_SLOTS ? state->slots_used : VGPU_MAX_SLOTS;
    for (uint32_t at = 0; at < slots; at++) {
        struct vgpu_slot *slot = &state->slots[at];
        if (slot->pid == 0 || (int)at == state_own_slot() || slot->changes != changes[at]) {
            continue;
        }
        uint64_t charged = state_slot_sum(slot, (uint32_t)index) - slot->usage[index].managed;
        uint64_t counted = counted_for(slot, list, count);
        if (counted > charged) {
            ledger_charge_other(state, (int)at, index, counted - charged);
        }
    }
    state_unlock(state);
}

static bool own_bytes(const nvmlProcessInfo_v2_t *list, unsigned int count, uint64_t *bytes) {
    struct vgpu_state *state = guard_state();
    int slot = state_own_slot();
    unsigned int host_pid = state != NULL && slot >= 0 ? (unsigned int)state->slots[slot].host_pid : 0;
    unsigned int pid = (unsigned int)getpid();
    bool found = false;
    *bytes = 0;
    for (unsigned int process = 0; process < count; process++) {
        if (list[process].pid == pid || (host_pid != 0 && list[process].pid == host_pid)) {
            *bytes += bytes_of(&list[process]);
            found = true;
        }
    }
    return found;
}

static uint64_t counted_by_us(int index) {
    return ledger_own(index, LEDGER_LINEAR) + ledger_own(index, LEDGER_POOL) + ledger_own(index, LEDGER_VMM) +
           ledger_own(index, LEDGER_ARRAY) + graphs_reserved(index);
}

uint64_t overhead_own(int index) { return atomic_load(&measured[index]); }

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void set(int index, uint64_t bytes, uint64_t reserved) {
    atomic_store(&measured[index], bytes);
    TEST_POINT("overhead.measure.before_set");
    ledger_set(index, LEDGER_OVERHEAD, bytes, reserved);
}

/* With `measuring` locked. */
static bool measure(int index, uint64_t reserved) {
    bool without_context = contexts_alive(index) == 0;
    if (without_context) {
        atomic_store(&floors[index], 0);
    }
    long before = atomic_load(&completed);
    long pools_before = pools_changes();
    bool quiet = atomic_load(&in_flight) == 0;
    uint64_t ours = counted_by_us(index);
    uint64_t changes[VGPU_MAX_SLOTS] = {0};
    note_changes(changes);
    nvmlProcessInfo_v2_t room[ROOM_FOR_PROCESSES];
    unsigned int count = 0;
    TEST_POINT("overhead.measure.before_list");
    nvmlProcessInfo_v2_t *list = list_processes(index, room, &count);
    uint64_t counted = 0;
    bool found = list != NULL && own_bytes(list, count, &counted);
    if (list != NULL) {
        charge_others(index, list, count, changes);
    }
    if (list != room) {
        free(list);
    }
    if (!found && without_context) {
        set(index, 0, reserved);
        return true;
    }
    if (!found) {
        atomic_fetch_add(&measured[index], reserved);
        ledger_settle(index, reserved, LEDGER_OVERHEAD, reserved);
        return false;
    }
    /* Pools and graphs grow and shrink in calls that are not counted as operations, to keep those short: their sizes tell, if they are
     * still those that `ours` has. */
    quiet = quiet && atomic_load(&in_flight) == 0 && atomic_load(&completed) == before && counted_by_us(index) == ours &&
            pools_reserved(index) == ledger_own(index, LEDGER_POOL) && pools_changes() == pools_before;
    uint64_t overhead = counted > ours ? counted - ours : 0;
    atomic_store(&unsettled[index], !quiet);
    if (!quiet) {
        atomic_store(&anything_unsettled, true);
        /* Something was allocated or freed meanwhile. What is above all that may be on its way is most likely overhead. */
        uint64_t pending = ledger_own(index, LEDGER_PENDING);
        overhead = larger(ledger_own(index, LEDGER_OVERHEAD), overhead > pending ? overhead - pending : 0);
    }
    set(index, larger(overhead, atomic_load(&floors[index])), reserved);
    return true;
}

bool overhead_measure(int index, uint64_t reserved) {
    atomic_store(&measured_at[index], clock_coarse_ms());
    atomic_fetch_and(&suspected, ~card_alone(index));
    atomic_store(&suspicions_seen[index], shared_suspicions());
    pools_refresh(index);
    /* One after the other: what was read earlier must not be written later. */
    pthread_mutex_lock(&measuring);
    bool told = measure(index, reserved);
    pthread_mutex_unlock(&measuring);
    return told;
}

void overhead_measure_each(card_set cards) {
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        if ((cards & card_alone(index)) != 0) {
            overhead_measure(index, 0);
        }
    }
}

void overhead_settle(void) {
    if (!atomic_load_explicit(&anything_unsettled, memory_order_relaxed) || atomic_load(&in_flight) != 0) {
        return;
    }
    atomic_store(&anything_unsettled, false);
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        if (atomic_load(&unsettled[index])) {
            overhead_measure(index, 0);
        }
    }
}

void overhead_count_processes(struct counted_processes *counted) {
    memset(counted->count, 0, sizeof counted->count);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    counted->asked_at = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
    const struct vgpu_state *state = guard_state();
    for (uint32_t device = 0; device < state->device_count && device < VGPU_MAX_DEVICES; device++) {
        nvmlProcessInfo_v2_t room[ROOM_FOR_PROCESSES];
        unsigned int count = 0;
        nvmlProcessInfo_v2_t *list = list_processes((int)device, room, &count);
        for (unsigned int at = 0; list != NULL && at < count && at < ROOM_FOR_PROCESSES; at++) {
            counted->of[device][at].pid = list[at].pid;
            counted->of[device][at].bytes = bytes_of(&list[at]);
            counted->count[device]++;
        }
        if (list != NULL && list != room) {
            free(list);
        }
    }
}

uint64_t overhead_still_counted(int32_t pid, uint32_t device, uint64_t dead_since, void *context) {
    const struct counted_processes *counted = context;
    if (counted->asked_at < dead_since) {
        return UINT64_MAX;
    }
    for (uint32_t at = 0; at < counted->count[device]; at++) {
        if (counted->of[device][at].pid == (uint32_t)pid) {
            return counted->of[device][at].bytes;
        }
    }
    return 0;
}

void overhead_forget_after_fork(void) {
    pthread_mutex_init(&opening, NULL);
    pthread_mutex_init(&measuring, NULL);
    atomic_store(&nvml_opened, 0);
    memset(handles, 0, sizeof handles);
    atomic_store(&in_flight, 0);
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        atomic_store(&floors[index], 0);
        atomic_store(&measured[index], 0);
    }
}
