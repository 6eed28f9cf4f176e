/* Calls that bring a card into reach without allocating on it: access for a card, peers, multicast, memory that others made. A card that was
 * not granted is refused by each of them. What allocates refuses it where it charges.
 */
#include "cards.h"
#include "guard.h"
#include "overhead.h"

static bool reaches_out(const CUmemAccessDesc *descriptions, size_t count) {
    for (size_t at = 0; descriptions != NULL && at < count; at++) {
        if (location_is_foreign(&descriptions[at].location)) {
            return true;
        }
    }
    return false;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *descriptions, size_t count) {
    if (guard_on() && reaches_out(descriptions, count)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return real.cuMemSetAccess(address, size, descriptions, count);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *descriptions, size_t count) {
    if (guard_on() && reaches_out(descriptions, count)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return real.cuMemPoolSetAccess(pool, descriptions, count);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    if (guard_on()) {
        CUdevice device = device_of_context(peer);
        if (device >= 0 && device_is_foreign(device)) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return real.cuCtxEnablePeerAccess(peer, flags);
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
    if (guard_on() && device_is_foreign(device)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return real.cuMulticastAddDevice(handle, device);
}

/* Where opened memory lies is told only once it is open. */
static bool lies_outside(CUdeviceptr pointer) {
    int device = -1;
    return real.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) == CUDA_SUCCESS && device >= 0 &&
           device_is_foreign(device);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    bool on = guard_on();
    CUresult result = real.cuMemPoolImportPointer(pointer, pool, data);
    if (on && result == CUDA_SUCCESS && lies_outside(*pointer)) {
        real.cuMemFree_v2(*pointer);
        *pointer = 0;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

static CUresult opened(CUdeviceptr *pointer, CUresult result) {
    if (result == CUDA_SUCCESS && lies_outside(*pointer)) {
        real.cuIpcCloseMemHandle(*pointer);
        *pointer = 0;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    bool on = guard_on();
    if (on) {
        overhead_suspect();
    }
    CUresult result = real.cuIpcOpenMemHandle(pointer, handle, flags);
    return on ? opened(pointer, result) : result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    bool on = guard_on();
    if (on) {
        overhead_suspect();
    }
    CUresult result = real.cuIpcOpenMemHandle_v2(pointer, handle, flags);
    return on ? opened(pointer, result) : result;
}
