/* A CUDA driver that does nothing, and its NVML: one card, handles that are numbers, memory that is only addresses.
 *
 * A call of the stand-in driver takes microseconds, because it reads files that other processes share. That hides what libvgpu itself
 * takes, and what libvgpu asks the driver takes as long there. Here every answer is there at once: what a call takes longer with libvgpu
 * is libvgpu. Only what benchmarks/isolation_calls.py calls, and what libvgpu then asks, is here. One thread at a time.
 */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "cuda_abi.h"
#include "nvml_abi.h"

#define API __attribute__((visibility("default")))
#define MIB ((uint64_t)1 << 20)
#define CARD (UINT64_C(1) << 40)
#define CONTEXT (518 * MIB)
#define CHUNK (32 * MIB)

static char context, pool, stream, module, function, card; /* handles: only their addresses count */
static int retained;
/* Small pieces begin within a page: a round number of them would else fill its pages exactly, and each next one would need a new page. */
#define FIRST_SMALL ((UINT64_C(1) << 44) + MIB / 16)
#define FIRST_LARGE (UINT64_C(1) << 45)
static uint64_t next_small = FIRST_SMALL, next_large = FIRST_LARGE;
static uint64_t last_small, last_large; /* where the newest piece began; what is freed last is given out next, as drivers do */

API CUresult cuInit(unsigned int flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    (void)device;
    memset(uuid, 0, sizeof *uuid);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    (void)attribute;
    (void)device;
    *value = 1;
    return CUDA_SUCCESS;
}

/* --- contexts, streams, kernels ------------------------------------------------------------------------------------------ */

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    (void)device;
    *flags = 0;
    *active = retained;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device) {
    (void)device;
    retained = 1;
    *made = (CUcontext)(void *)&context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext wanted) { return wanted == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

API CUresult cuCtxGetCurrent(CUcontext *current) {
    *current = (CUcontext)(void *)&context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }

API CUresult cuStreamCreate(CUstream *made, unsigned int flags) {
    (void)flags;
    *made = (CUstream)(void *)&stream;
    return CUDA_SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule *made, const void *image) {
    (void)image;
    *made = (CUmodule)(void *)&module;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *made, CUmodule of, const char *name) {
    (void)of;
    (void)name;
    *made = (CUfunction)(void *)&function;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction of) {
    (void)attribute;
    (void)of;
    *value = 0;
    return CUDA_SUCCESS;
}

API CUresult cuLaunchKernel(CUfunction started, unsigned int x, unsigned int y, unsigned int z, unsigned int block_x, unsigned int block_y,
                            unsigned int block_z, unsigned int shared, CUstream on, void **parameters, void **extra) {
    (void)started, (void)x, (void)y, (void)z, (void)block_x, (void)block_y, (void)block_z, (void)shared, (void)on, (void)parameters;
    (void)extra;
    return CUDA_SUCCESS;
}

/* --- memory ------------------------------------------------------------------------------------------------------------------ */

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    if (size <= MIB) {
        last_small = next_small;
        *pointer = next_small;
        next_small += (size + 511) / 512 * 512;
    } else {
        last_large = next_large;
        *pointer = next_large;
        next_large += (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    if (pointer == last_small) {
        next_small = last_small;
    } else if (pointer == last_large) {
        next_large = last_large;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    *available = CARD - CONTEXT;
    *total = CARD;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream on) {
    (void)on;
    return cuMemAlloc_v2(pointer, size);
}

API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream on) {
    (void)on;
    return cuMemFree_v2(pointer);
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *found, CUdevice device) {
    (void)device;
    *found = (CUmemoryPool)(void *)&pool;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *found, CUdevice device) { return cuDeviceGetDefaultMemPool(found, device); }

API CUresult cuMemPoolGetAttribute(CUmemoryPool of, int attribute, void *value) {
    (void)of;
    (void)attribute;
    memcpy(value, &(uint64_t){CHUNK}, sizeof(uint64_t));
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool of, int attribute, void *value) {
    (void)of;
    (void)attribute;
    (void)value;
    return CUDA_SUCCESS;
}

/* --- NVML ---------------------------------------------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlInit_v2(void) { return NVML_SUCCESS; }

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *found) {
    (void)uuid;
    *found = (nvmlDevice_t)(void *)&card;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t of, unsigned int *count, nvmlProcessInfo_v2_t *list) {
    (void)of;
    memset(list, 0, sizeof *list);
    list->pid = (unsigned int)getpid();
    list->usedGpuMemory = CONTEXT + (next_small - FIRST_SMALL) + (next_large - FIRST_LARGE);
    *count = 1;
    return NVML_SUCCESS;
}
