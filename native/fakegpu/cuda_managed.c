/* Managed memory. The card has it, no process's account does, as with the real driver; when exactly it comes onto the card (at the
 * first touch there) the stand-in does not follow: it is there from the beginning, and gone when freed.
 */
#include "cuda_linear.h"

ENTRY(cuMemAllocManaged, (CUdeviceptr *pointer, size_t size, unsigned int flags))
{
    ENTER();
    if (pointer == NULL || size == 0 || (flags & (CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST)) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    result = capture_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    if (size > 1ull << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    struct region *region = region_make(REGION_MANAGED, context, context->device, size);
    if (region == NULL) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        *pointer = region->start;
        /* More than the card has left is no error: the rest stays with the host. */
        if (card_take(context->card, FAKE_MANAGED, region->length) == CUDA_SUCCESS)
            region->charged = region->length;
    }
    driver_unlock();
    return result;
}

static CUresult advise(CUdeviceptr pointer, size_t size)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    const struct region *region = region_find(pointer);
    if (region == NULL || region->kind != REGION_MANAGED || size == 0 || pointer + size > region->start + region->length)
        result = CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}

ENTRY(cuMemAdvise, (CUdeviceptr pointer, size_t size, int advice, CUdevice device))
{
    ENTER();
    (void)advice;
    (void)device;
    return advise(pointer, size);
}

ENTRY(cuMemAdvise_v2, (CUdeviceptr pointer, size_t size, int advice, CUmemLocation location))
{
    ENTER();
    (void)advice;
    (void)location;
    return advise(pointer, size);
}

static CUresult prefetch(CUdeviceptr pointer, size_t size, CUstream stream, bool per_thread)
{
    CUresult result = advise(pointer, size);
    return result == CUDA_SUCCESS ? stream_add_work(stream, per_thread, 1000) : result;
}

ENTRY(cuMemPrefetchAsync, (CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream))
{
    ENTER();
    (void)device;
    return prefetch(pointer, size, stream, false);
}

ENTRY(cuMemPrefetchAsync_ptsz, (CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream))
{
    ENTER();
    (void)device;
    return prefetch(pointer, size, stream, true);
}

ENTRY(cuMemPrefetchAsync_v2, (CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags, CUstream stream))
{
    ENTER();
    (void)location;
    (void)flags;
    return prefetch(pointer, size, stream, false);
}

ENTRY(cuMemPrefetchAsync_v2_ptsz, (CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags, CUstream stream))
{
    ENTER();
    (void)location;
    (void)flags;
    return prefetch(pointer, size, stream, true);
}
