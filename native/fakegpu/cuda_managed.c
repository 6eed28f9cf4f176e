/* Managed memory. A card has it, no process's account does, as with the real driver; when exactly it comes onto the card (at the first
 * touch there) the stand-in does not follow: it is on the card of its making from the beginning, all of it goes where it is prefetched to
 * or worked on, and it is gone when freed. Advice moves nothing.
 */
#include "cuda_linear.h"
#include "cuda_pool.h"

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

void managed_move(struct region *region, CUdevice device)
{
    if (region->kind == REGION_POOL) {
        pool_move(((struct span *)region->detail)->pool, device);
        return;
    }
    bool there = device >= 0 ? region->charged > 0 && region->device == device : region->charged == 0;
    if (region->kind != REGION_MANAGED || there)
        return;
    if (device >= 0 && card_take(device_card(device), FAKE_MANAGED, region->length) != CUDA_SUCCESS)
        return;
    if (region->charged > 0)
        store_give(device_card(region->device), FAKE_MANAGED, region->charged);
    region->charged = device >= 0 ? region->length : 0;
    region->device = device >= 0 ? device : region->device;
}

/* (locked) The managed memory that a range lies in, or NULL. */
static struct region *managed_at(CUdeviceptr pointer, size_t size)
{
    struct extent extent;
    if (size == 0 || !extent_find(pointer, &extent) || pointer + size > extent.start + extent.size)
        return NULL;
    bool managed = extent.region->kind == REGION_MANAGED || (extent.pool != NULL && extent.pool->kind == FAKE_MANAGED);
    return managed ? extent.region : NULL;
}

static CUresult advise(CUdeviceptr pointer, size_t size, const CUmemLocation *location)
{
    CUcontext context;
    CUdevice device;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!location_is_host(location) && !location_device(location, &device))
        return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    if (managed_at(pointer, size) == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}

/* As the first kinds of the functions say it: a device, or -1 for the host. */
static CUmemLocation by_number(CUdevice device)
{
    return (CUmemLocation){.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

ENTRY(cuMemAdvise, (CUdeviceptr pointer, size_t size, int advice, CUdevice device))
{
    ENTER();
    (void)advice;
    CUmemLocation location = by_number(device);
    return advise(pointer, size, &location);
}

ENTRY(cuMemAdvise_v2, (CUdeviceptr pointer, size_t size, int advice, CUmemLocation location))
{
    ENTER();
    (void)advice;
    return advise(pointer, size, &location);
}

static CUresult prefetch(CUdeviceptr pointer, size_t size, const CUmemLocation *location, CUstream stream, bool per_thread)
{
    CUresult result = advise(pointer, size, location);
    if (result != CUDA_SUCCESS)
        return result;
    CUdevice device = CU_DEVICE_CPU;
    (void)location_device(location, &device);
    driver_lock();
    struct region *region = managed_at(pointer, size);
    if (region != NULL)
        managed_move(region, device);
    driver_unlock();
    return stream_add_work(stream, per_thread, 1000);
}

ENTRY(cuMemPrefetchAsync, (CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream))
{
    ENTER();
    CUmemLocation location = by_number(device);
    return prefetch(pointer, size, &location, stream, false);
}

ENTRY(cuMemPrefetchAsync_ptsz, (CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream))
{
    ENTER();
    CUmemLocation location = by_number(device);
    return prefetch(pointer, size, &location, stream, true);
}

ENTRY(cuMemPrefetchAsync_v2, (CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags, CUstream stream))
{
    ENTER();
    (void)flags;
    return prefetch(pointer, size, &location, stream, false);
}

ENTRY(cuMemPrefetchAsync_v2_ptsz, (CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags, CUstream stream))
{
    ENTER();
    (void)flags;
    return prefetch(pointer, size, &location, stream, true);
}

/* ---- several ranges at once ---- */

struct batch {
    CUdeviceptr *pointers;
    size_t *sizes;
    size_t count;
    CUmemLocation *locations;
    size_t *firsts; /* of the ranges for each location */
    size_t location_count;
};

static CUresult prefetch_all(const struct batch *batch, CUstream stream, bool per_thread)
{
    if (batch->count == 0 || batch->pointers == NULL || batch->sizes == NULL || batch->locations == NULL || batch->firsts == NULL ||
        batch->location_count == 0 || batch->firsts[0] != 0)
        return CUDA_ERROR_INVALID_VALUE;
    size_t place = 0;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < batch->count && result == CUDA_SUCCESS; i++) {
        while (place + 1 < batch->location_count && batch->firsts[place + 1] <= i)
            place++;
        result = prefetch(batch->pointers[i], batch->sizes[i], &batch->locations[place], stream, per_thread);
    }
    return result;
}

#define PREFETCH_BATCH(name, per_thread)                                                                                          \
    ENTRY(name, (CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations, size_t *firsts,                    \
                 size_t location_count, unsigned long long flags, CUstream stream))                                               \
    {                                                                                                                             \
        ENTER();                                                                                                                  \
        struct batch batch = {pointers, sizes, count, locations, firsts, location_count};                                         \
        return flags != 0 ? CUDA_ERROR_INVALID_VALUE : prefetch_all(&batch, stream, per_thread);                                  \
    }

PREFETCH_BATCH(cuMemPrefetchBatchAsync, false)
PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz, true)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync, false)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz, true)
