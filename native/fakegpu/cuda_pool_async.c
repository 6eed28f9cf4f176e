/* cuMemAllocAsync and its kin: memory in the order of a stream. While the stream captures a graph they make nodes instead. */
#include "cuda_pool.h"

static CUresult allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, bool own_pool, CUstream stream, bool per_thread)
{
    if (pointer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (capture_active(stream, per_thread))
        return capture_alloc(pointer, size, own_pool ? NULL : pool, stream, per_thread);
    CUcontext context;
    const void *key;
    driver_lock();
    CUresult result = stream_resolve(stream, per_thread, &context, &key);
    if (result == CUDA_SUCCESS && own_pool)
        pool = pool_of_device(context->device);
    if (result == CUDA_SUCCESS && (size == 0 || !pool_known(pool) || pool->imported))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = pool_allocate(pool, size, context, key, pointer);
    driver_unlock();
    return result;
}

static CUresult free_in_order(CUdeviceptr pointer, CUstream stream, bool per_thread)
{
    if (capture_active(stream, per_thread))
        return capture_free(pointer, stream, per_thread);
    CUcontext context;
    const void *key;
    driver_lock();
    CUresult result = stream_resolve(stream, per_thread, &context, &key);
    struct region *region = region_find(pointer);
    if (result == CUDA_SUCCESS && region == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        if (region->kind == REGION_POOL)
            result = pool_free(region, pointer, context, key);
        else if (region->kind == REGION_GRAPH)
            result = graph_memory_free(pointer);
        else if (region->kind == REGION_IPC && region->share == NULL && pointer == region->start)
            region_release(region); /* of an imported pool */
        else
            result = CUDA_ERROR_INVALID_VALUE;
    }
    driver_unlock();
    return result;
}

ENTRY(cuMemAllocAsync, (CUdeviceptr *pointer, size_t size, CUstream stream))
{
    ENTER();
    return allocate(pointer, size, NULL, true, stream, false);
}

ENTRY(cuMemAllocAsync_ptsz, (CUdeviceptr *pointer, size_t size, CUstream stream))
{
    ENTER();
    return allocate(pointer, size, NULL, true, stream, true);
}

ENTRY(cuMemAllocFromPoolAsync, (CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream))
{
    ENTER();
    return allocate(pointer, size, pool, false, stream, false);
}

ENTRY(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream))
{
    ENTER();
    return allocate(pointer, size, pool, false, stream, true);
}

ENTRY(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream))
{
    ENTER();
    return free_in_order(pointer, stream, false);
}

ENTRY(cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream))
{
    ENTER();
    return free_in_order(pointer, stream, true);
}
