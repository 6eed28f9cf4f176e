/* Pools of other processes: a pool goes over by descriptor, its pointers by 64 bytes of data. The process that made the pool pays for
 * all of it while it lives; what importers see ends with it.
 */
#include <stdio.h>
#include <string.h>

#include "cuda_ipc_share.h"
#include "cuda_pool.h"

#define POINTER_MAGIC 0x31545250504b46ull

struct pointer_data {
    uint64_t magic;
    char card[48]; /* UUID */
    uint64_t size;
};

_Static_assert(sizeof(struct pointer_data) <= sizeof(CUmemPoolPtrExportData), "64 bytes");

ENTRY(cuMemPoolExportToShareableHandle, (void *shareable, CUmemoryPool pool, int type, unsigned long long flags))
{
    ENTER();
    if (shareable == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (pool_known(pool) && pool->counted && pool->handle_types == type) {
        if (pool->share == NULL) {
            /* Its memory stays in our own account, so the share has none. */
            struct share_info info = {.kind = SHARE_POOL};
            pool->share = share_make(device_card(pool->device), &info);
        }
        int descriptor = pool->share != NULL ? share_export(pool->share) : -1;
        result = descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
        if (descriptor >= 0)
            *(int *)shareable = descriptor;
    }
    driver_unlock();
    return result;
}

ENTRY(cuMemPoolImportFromShareableHandle, (CUmemoryPool *pool, void *shareable, int type, unsigned long long flags))
{
    ENTER();
    if (pool == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct share *share = share_open_descriptor((int)(intptr_t)shareable);
    if (share != NULL && share_info(share)->kind == SHARE_POOL) {
        CUmemoryPool made = pool_make(share_device(share), true, CU_MEM_ALLOCATION_TYPE_PINNED);
        if (made != NULL) {
            made->imported = true;
            *pool = made;
            result = CUDA_SUCCESS;
        }
    }
    if (share != NULL)
        share_let_go(share);
    driver_unlock();
    return result;
}

ENTRY(cuMemPoolExportPointer, (CUmemPoolPtrExportData *data, CUdeviceptr pointer))
{
    ENTER();
    struct extent extent;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (data != NULL && extent_find(pointer, &extent) && extent.pool != NULL && extent.start == pointer && extent.pool->share != NULL) {
        struct pointer_data content = {.magic = POINTER_MAGIC, .size = extent.size};
        snprintf(content.card, sizeof content.card, "%.*s", (int)sizeof content.card - 1, device_info(extent.device)->uuid);
        memset(data, 0, sizeof *data);
        memcpy(data, &content, sizeof content);
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

ENTRY(cuMemPoolImportPointer, (CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data))
{
    ENTER();
    if (pointer == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct pointer_data content;
    memcpy(&content, data, sizeof content);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (pool_known(pool) && pool->imported && content.magic == POINTER_MAGIC &&
        strncmp(content.card, device_info(pool->device)->uuid, sizeof content.card - 1) == 0) {
        struct region *region = region_make(REGION_IPC, NULL, pool->device, content.size);
        result = region != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (region != NULL)
            *pointer = region->start;
    }
    driver_unlock();
    return result;
}
