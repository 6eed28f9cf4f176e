/* cuIpc...MemHandle: linear memory of another process. A handle names the share of the region and where in it the allocation starts. */
#include <string.h>

#include "cuda_ipc_share.h"
#include "cuda_linear.h"

#define LAZY_PEER_ACCESS 1u

struct handle_content {
    char id[SHARE_ID_SIZE];
    uint64_t offset, size;
};

_Static_assert(sizeof(struct handle_content) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");

ENTRY(cuIpcGetMemHandle, (CUipcMemHandle *handle, CUdeviceptr pointer))
{
    ENTER();
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct extent extent;
    result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (handle != NULL && extent_find(pointer, &extent) &&
        (extent.region->kind == REGION_SMALL || extent.region->kind == REGION_LARGE)) {
        struct region *region = extent.region;
        if (region->share == NULL) {
            struct share_info info = {.kind = SHARE_LINEAR, .bytes = region->charged, .size = region->length};
            region->share = share_make(device_card(region->device), &info);
            if (region->share != NULL) {
                share_show(region->share, region->start, region->length, 0, true);
                region->shown = true;
            }
        }
        if (region->share != NULL) {
            struct handle_content content = {.offset = extent.start - region->start, .size = extent.size};
            memcpy(content.id, share_id(region->share), sizeof content.id);
            memset(handle, 0, sizeof *handle);
            memcpy(handle, &content, sizeof content);
            result = CUDA_SUCCESS;
        } else {
            result = CUDA_ERROR_UNKNOWN;
        }
    }
    driver_unlock();
    return result;
}

/* Opened before in this context: the same addresses, counted. */
static struct region *already_open(CUcontext context, const char *id)
{
    for (struct region *region = context->regions; region != NULL; region = region->next)
        if (region->kind == REGION_IPC && region->share != NULL && strcmp(share_id(region->share), id) == 0)
            return region;
    return NULL;
}

/* (locked) */
static CUresult open_handle(CUcontext context, const struct handle_content *content, CUdeviceptr *pointer)
{
    struct region *region = already_open(context, content->id);
    if (region == NULL) {
        if (share_made_here(content->id))
            return CUDA_ERROR_INVALID_CONTEXT; /* not for a process's own memory */
        struct share *share = share_open(content->id);
        if (share == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        const struct share_info *info = share_info(share);
        if (info->kind == SHARE_LINEAR && content->offset < info->size)
            region = region_make(REGION_IPC, context, share_device(share), info->size);
        if (region == NULL) {
            share_let_go(share);
            return CUDA_ERROR_INVALID_VALUE;
        }
        region->share = share;
        region->shown = true;
        share_show(share, region->start, region->length, 0, false);
    }
    region->openings++;
    *pointer = region->start + content->offset;
    return CUDA_SUCCESS;
}

static CUresult open_checked(CUdeviceptr *pointer, const CUipcMemHandle *handle, unsigned int flags)
{
    if (pointer == NULL || flags != LAZY_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct handle_content content;
    memcpy(&content, handle, sizeof content);
    if (memchr(content.id, '\0', sizeof content.id) == NULL || content.id[0] == '\0')
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    result = open_handle(context, &content, pointer);
    driver_unlock();
    return result;
}

ENTRY(cuIpcOpenMemHandle, (CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags))
{
    ENTER();
    return open_checked(pointer, &handle, flags);
}

ENTRY(cuIpcOpenMemHandle_v2, (CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags))
{
    ENTER();
    return open_checked(pointer, &handle, flags);
}

ENTRY(cuIpcCloseMemHandle, (CUdeviceptr pointer))
{
    ENTER();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct region *region = region_find(pointer);
    if (region != NULL && region->kind == REGION_IPC && region->share != NULL) {
        if (--region->openings == 0)
            region_release(region);
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}
