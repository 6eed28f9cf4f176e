/* See process_list.h. */
#include "process_list.h"

#include <string.h>

/* The old shape is the shorter one: widened in place, from the end. */
static void widen(nvmlProcessInfo_v2_t *infos, unsigned int count) {
    for (unsigned int i = count; i-- > 0;) {
        nvmlProcessInfo_v1_t old;
        memcpy(&old, (const char *)infos + i * sizeof old, sizeof old);
        infos[i] = (nvmlProcessInfo_v2_t){.pid = old.pid, .usedGpuMemory = old.usedGpuMemory};
    }
}

nvmlReturn_t process_list(enum list_kind kind, nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
    nvmlReturn_t told;
    switch (kind) {
    case LIST_V1:
        told = real.nvmlDeviceGetComputeRunningProcesses(device, count, (nvmlProcessInfo_v1_t *)infos);
        if (told == NVML_SUCCESS) {
            widen(infos, *count);
        }
        return told;
    case LIST_V2:
        return real.nvmlDeviceGetComputeRunningProcesses_v2(device, count, infos);
    default:
        return real.nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
    }
}

nvmlReturn_t process_list_newest(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
    unsigned int room = *count;
    nvmlReturn_t told = process_list(LIST_V3, device, count, infos);
    for (int kind = LIST_V2; kind >= LIST_V1 && told == NVML_ERROR_FUNCTION_NOT_FOUND; kind--) {
        *count = room;
        told = process_list((enum list_kind)kind, device, count, infos);
    }
    return told;
}
