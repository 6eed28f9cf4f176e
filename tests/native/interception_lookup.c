/* cuGetProcAddress of the tests' driver: which entry point a name means depends on the version and the stream mode that are asked
 * for, as in the real one. Also what no hook is for: launches, and a kind of cuMemAlloc that is newer than libvgpu. With
 * -DINTERCEPTION_ALIASED two names have one address, as in drivers that kept an old name for an unchanged function.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "cuda_abi.h"

#define SAME(name) {#name, 2000, (void *)name, (void *)name}
#define KIND(symbol, since, name) {#symbol, since, (void *)name, (void *)name}
#define MODES(symbol, since, name, per_thread) {#symbol, since, (void *)name, (void *)per_thread}

#define HOOK(name, params) int name params;
#define NEED(name, params) int name params;
#define NVML_HOOK(name, params)
#define NVML_NEED(name, params)
#include "entry_points.def"
#undef HOOK
#undef NEED

int cuLaunchKernel(void);
int cuLaunchKernel_ptsz(void);
int cuGraphLaunch(void);
int cuGraphLaunch_ptsz(void);
int cuLaunchKernel(void) { return 1; }
int cuLaunchKernel_ptsz(void) { return 2; }
int cuGraphLaunch(void) { return 3; }
int cuGraphLaunch_ptsz(void) { return 4; }
int cuMemAlloc_v9(void);
int cuMemAlloc_v9(void) { return 5; }

#ifdef INTERCEPTION_ALIASED
int cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    return 6;
}
__attribute__((alias("cuIpcOpenMemHandle"))) int cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags);
#endif

/* Drivers look themselves up while they are being loaded, also when it is libvgpu that loads them. */
__attribute__((constructor)) static void look_myself_up(void) {
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (self != NULL) {
        dlsym(self, "cuMemAlloc_v2");
        dlclose(self);
    }
}

struct row {
    const char *symbol;
    int since;
    void *legacy;
    void *per_thread;
};

/* Rows of one symbol stand newest first. */
static const struct row rows[] = {
    KIND(cuGetProcAddress, 12000, cuGetProcAddress_v2),
    KIND(cuGetProcAddress, 11030, cuGetProcAddress),
    SAME(cuInit),
    KIND(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2),
    KIND(cuDeviceTotalMem, 2000, cuDeviceTotalMem),
    KIND(cuMemGetInfo, 3020, cuMemGetInfo_v2),
    KIND(cuMemGetInfo, 2000, cuMemGetInfo),
    KIND(cuCtxCreate, 13000, cuCtxCreate_v4),
    KIND(cuCtxCreate, 11040, cuCtxCreate_v3),
    KIND(cuCtxCreate, 3020, cuCtxCreate_v2),
    KIND(cuCtxCreate, 2000, cuCtxCreate),
    KIND(cuCtxSynchronize, 13000, cuCtxSynchronize_v2),
    KIND(cuCtxSynchronize, 2000, cuCtxSynchronize),
    KIND(cuMemAlloc, 99000, cuMemAlloc_v9),
    KIND(cuMemAlloc, 3020, cuMemAlloc_v2),
    KIND(cuMemAlloc, 2000, cuMemAlloc),
    KIND(cuMemFree, 3020, cuMemFree_v2),
    KIND(cuMemFree, 2000, cuMemFree),
    MODES(cuStreamSynchronize, 7000, cuStreamSynchronize, cuStreamSynchronize_ptsz),
    KIND(cuStreamSynchronize, 2000, cuStreamSynchronize),
    MODES(cuMemAllocAsync, 11020, cuMemAllocAsync, cuMemAllocAsync_ptsz),
    MODES(cuMemFreeAsync, 11020, cuMemFreeAsync, cuMemFreeAsync_ptsz),
    KIND(cuArray3DCreate, 3020, cuArray3DCreate_v2),
    KIND(cuArray3DCreate, 2000, cuArray3DCreate),
    KIND(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags),
    KIND(cuGraphInstantiate, 11000, cuGraphInstantiate_v2),
    KIND(cuGraphInstantiate, 10000, cuGraphInstantiate),
    KIND(cuMemCreate, 10020, cuMemCreate),
    KIND(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2),
    KIND(cuIpcOpenMemHandle, 4010, cuIpcOpenMemHandle),
    SAME(cuDeviceGetCount),
    SAME(cuCtxGetCurrent),
    MODES(cuLaunchKernel, 7000, cuLaunchKernel, cuLaunchKernel_ptsz),
    MODES(cuGraphLaunch, 10000, cuGraphLaunch, cuGraphLaunch_ptsz),
};

static int look_up(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    if (symbol == NULL || found == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int outcome = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *found = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && *found == NULL; i++) {
        if (strcmp(rows[i].symbol, symbol) != 0) {
            continue;
        }
        outcome = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (version >= rows[i].since) {
            *found = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? rows[i].per_thread : rows[i].legacy;
        }
    }
    if (*found != NULL) {
        outcome = CU_GET_PROC_ADDRESS_SUCCESS;
    }
    if (status != NULL) {
        *status = outcome;
    }
    return *found != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

int cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags) {
    return look_up(symbol, found, version, flags, NULL);
}

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    return look_up(symbol, found, version, flags, status);
}
