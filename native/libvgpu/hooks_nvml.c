/* NVML as the container shall see it: the memory of its share, the processes that are its own.
 *
 * nvidia-smi and monitors read here, without CUDA: they take no slot. The real function is called first, so that its checks (version,
 * handle, permission) and its errors are the caller's.
 */
#include <stdlib.h>
#include <string.h>

#include "guard.h"
#include "intercept.h"
#include "process_list.h"
#include "state.h"
#include "views.h"

/* More processes than one card's container can have slots for, plus what others run there where NVML shows that. */
#define MOST_PROCESSES 4096u

static nvmlReturn_t refuse_or_find(void) {
    if (guard_mode() == GUARD_REFUSES) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    return intercept_nvml() ? NVML_SUCCESS : NVML_ERROR_LIBRARY_NOT_FOUND;
}

nvmlReturn_t nvmlInit(void) {
    nvmlReturn_t ready = refuse_or_find();
    if (ready != NVML_SUCCESS) {
        return ready;
    }
    return real.nvmlInit();
}

nvmlReturn_t nvmlInit_v2(void) {
    nvmlReturn_t ready = refuse_or_find();
    if (ready != NVML_SUCCESS) {
        return ready;
    }
    return real.nvmlInit_v2();
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    nvmlReturn_t ready = refuse_or_find();
    if (ready != NVML_SUCCESS) {
        return ready;
    }
    return real.nvmlInitWithFlags(flags);
}

/* The index of a card in policy and state, or GUARD_FORWARD. */
static int index_of(nvmlDevice_t device) {
    char uuid[VGPU_UUID_SIZE] = {0};
    if (guard_mode() == GUARD_OFF || real.nvmlDeviceGetUUID == NULL) {
        return GUARD_FORWARD;
    }
    if (real.nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS) {
        return GUARD_FORWARD;
    }
    return guard_index_of_uuid(uuid);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    if (!intercept_nvml()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = real.nvmlDeviceGetMemoryInfo(device, memory);
    struct memory_view view;
    if (result != NVML_SUCCESS || memory == NULL || !view_of(index_of(device), memory->total, &view)) {
        return result;
    }
    memory->total = view.total;
    memory->used = view.used;
    memory->free = view.free;
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    if (!intercept_nvml()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = real.nvmlDeviceGetMemoryInfo_v2(device, memory);
    struct memory_view view;
    if (result != NVML_SUCCESS || memory == NULL || !view_of(index_of(device), memory->total, &view)) {
        return result;
    }
    memory->total = view.total;
    memory->used = view.used;
    memory->free = view.free;
    memory->reserved = 0; /* what the driver keeps of the card is nobody's share */
    return result;
}

/* The living slot that NVML means by `pid`, or NULL. Inside a pid namespace NVML gives the container's pids, without one the host's. */
static const struct vgpu_slot *slot_of(const struct vgpu_state *state, unsigned int pid) {
    uint32_t slots = state->slots_used <= VGPU_MAX_SLOTS ? state->slots_used : VGPU_MAX_SLOTS;
    const struct vgpu_slot *by_host_pid = NULL;
    for (uint32_t i = 0; i < slots; i++) {
        const struct vgpu_slot *slot = &state->slots[i];
        bool living = slot->pid > 0 && (slot->status == 1 || slot->status == 2);
        if (living && (unsigned int)slot->pid == pid) {
            return slot;
        }
        if (living && slot->host_pid > 0 && (unsigned int)slot->host_pid == pid) {
            by_host_pid = slot;
        }
    }
    return by_host_pid;
}

/* Keeps of `infos` what is the container's own, each process once, with its pid and its sum. Returns how many. */
static unsigned int keep_own(nvmlProcessInfo_v2_t *infos, unsigned int count, int index) {
    struct vgpu_state *state = guard_view();
    if (state == NULL || index < 0 || !state_lock(state)) {
        return 0;
    }
    unsigned int kept = 0;
    for (unsigned int i = 0; i < count; i++) {
        const struct vgpu_slot *slot = slot_of(state, infos[i].pid);
        bool again = slot == NULL;
        for (unsigned int j = 0; j < kept && !again; j++) {
            again = infos[j].pid == (unsigned int)slot->pid;
        }
        if (again) {
            continue;
        }
        nvmlProcessInfo_v2_t info = infos[i];
        info.pid = (unsigned int)slot->pid;
        info.usedGpuMemory = state_slot_sum(slot, (uint32_t)index);
        infos[kept++] = info;
    }
    state_unlock(state);
    return kept;
}

/* The container's own processes, in the newer shape, from whichever function of the driver was called; to be freed. NULL if that failed,
 * *result says why. */
static nvmlProcessInfo_v2_t *own_list(enum list_kind kind, nvmlDevice_t device, int index, unsigned int *count, nvmlReturn_t *result) {
    nvmlProcessInfo_v2_t *infos = calloc(MOST_PROCESSES, sizeof *infos);
    if (infos == NULL) {
        *result = NVML_ERROR_UNKNOWN;
        return NULL;
    }
    *count = MOST_PROCESSES;
    *result = process_list(kind, device, count, infos);
    if (*result != NVML_SUCCESS) {
        free(infos);
        return NULL;
    }
    *count = keep_own(infos, *count, index);
    return infos;
}

static nvmlReturn_t forward(enum list_kind kind, nvmlDevice_t device, unsigned int *count, void *room) {
    return kind == LIST_V1 ? real.nvmlDeviceGetComputeRunningProcesses(device, count, room) : process_list(kind, device, count, room);
}

/* Answers as NVML does: *count is how many there are; too little room is an error, and then nothing is written. */
static nvmlReturn_t list_processes(enum list_kind kind, nvmlDevice_t device, unsigned int *count, void *room) {
    int index = count != NULL ? index_of(device) : GUARD_FORWARD;
    if (index == GUARD_FORWARD) {
        return forward(kind, device, count, room);
    }
    unsigned int own = 0;
    nvmlReturn_t result = NVML_SUCCESS;
    nvmlProcessInfo_v2_t *infos = own_list(kind, device, index, &own, &result);
    if (infos == NULL) {
        return result;
    }
    if (own > *count || (own > 0 && room == NULL)) {
        result = *count > 0 && room == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (unsigned int i = 0; result == NVML_SUCCESS && i < own; i++) {
        nvmlProcessInfo_v1_t old = {.pid = infos[i].pid, .usedGpuMemory = infos[i].usedGpuMemory};
        if (kind == LIST_V1) {
            memcpy((char *)room + i * sizeof old, &old, sizeof old);
        } else {
            memcpy((char *)room + i * sizeof infos[i], &infos[i], sizeof infos[i]);
        }
    }
    if (result != NVML_ERROR_INVALID_ARGUMENT) {
        *count = own;
    }
    free(infos);
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) {
    if (!intercept_nvml()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    return list_processes(LIST_V1, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
    if (!intercept_nvml()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    return list_processes(LIST_V2, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
    if (!intercept_nvml()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    return list_processes(LIST_V3, device, count, infos);
}
