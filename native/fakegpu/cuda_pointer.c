/* What a program can ask about an address. */
#include <string.h>

#include "cuda_host.h"
#include "cuda_linear.h"

bool extent_find(CUdeviceptr address, struct extent *extent)
{
    struct region *region = region_find(address);
    if (region == NULL)
        return false;
    *extent = (struct extent){.region = region, .start = region->start, .size = region->size, .device = region->device};
    switch (region->kind) {
    case REGION_SMALL:
        return small_find(region, address, extent);
    case REGION_POOL:
        return pool_find(region, address, extent);
    case REGION_RESERVED:
        return vmm_find(region, address, extent);
    default:
        return address < region->start + region->size;
    }
}

ENTRY(cuMemGetAddressRange_v2, (CUdeviceptr *start, size_t *size, CUdeviceptr pointer))
{
    ENTER();
    struct extent extent;
    driver_lock();
    bool found = extent_find(pointer, &extent);
    driver_unlock();
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    if (start != NULL)
        *start = extent.start;
    if (size != NULL)
        *size = extent.size;
    return CUDA_SUCCESS;
}

ENTRY(cuMemGetAddressRange, (CUdeviceptr_v1 *start, unsigned int *size, CUdeviceptr_v1 pointer))
{
    ENTER();
    struct extent extent;
    driver_lock();
    bool found = extent_find(pointer, &extent);
    driver_unlock();
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    if (start != NULL)
        *start = (CUdeviceptr_v1)extent.start;
    if (size != NULL)
        *size = (unsigned int)extent.size;
    return CUDA_SUCCESS;
}

/* ---- attributes: (locked) ---- */

#define WRITE(type, value)                        \
    do {                                          \
        type written_ = (type)(value);            \
        memcpy(data, &written_, sizeof written_); \
    } while (0)

static CUresult device_attribute(void *data, int attribute, CUdeviceptr pointer, const struct extent *extent)
{
    const struct region *region = extent->region;
    bool managed = region->kind == REGION_MANAGED;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        WRITE(CUcontext, region->context);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        WRITE(unsigned int, CU_MEMORYTYPE_DEVICE);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        WRITE(CUdeviceptr, pointer);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        WRITE(void *, managed ? (uintptr_t)pointer : 0);
        return managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case 7: /* an id that no other allocation of the process ever has */
        WRITE(unsigned long long, (region->buffer_id << 16) + (extent->start - region->start) / 512 + 1);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        WRITE(unsigned int, managed);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        WRITE(int, extent->device);
        return CUDA_SUCCESS;
    case 10: /* whether cuIpcGetMemHandle can be used */
        WRITE(unsigned int, region->kind == REGION_SMALL || region->kind == REGION_LARGE);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        WRITE(CUdeviceptr, extent->start);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        WRITE(size_t, extent->size);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        WRITE(unsigned int, 1);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        WRITE(CUmemoryPool, extent->pool);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult host_attribute(void *data, int attribute, CUdeviceptr pointer, const struct host_memory *host)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        WRITE(CUcontext, host->context);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        WRITE(unsigned int, CU_MEMORYTYPE_HOST);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        WRITE(CUdeviceptr, pointer);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        WRITE(unsigned int, 0);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        WRITE(int, host->context->device);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        WRITE(CUdeviceptr, (uintptr_t)host->start);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        WRITE(size_t, host->size);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        WRITE(unsigned int, 1);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        WRITE(CUmemoryPool, NULL);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult attribute_of(void *data, int attribute, CUdeviceptr pointer)
{
    struct extent extent;
    if (extent_find(pointer, &extent))
        return device_attribute(data, attribute, pointer, &extent);
    const struct host_memory *host = host_find((const void *)(uintptr_t)pointer);
    return host != NULL ? host_attribute(data, attribute, pointer, host) : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuPointerGetAttribute, (void *data, int attribute, CUdeviceptr pointer))
{
    ENTER();
    if (data == NULL || attribute <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    CUresult result = attribute_of(data, attribute, pointer);
    driver_unlock();
    return result;
}

static size_t attribute_size(int attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case 6:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case 10:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case 15:
    case 16:
        return 4;
    default:
        return 8;
    }
}

/* Several at once never fail for an unknown address: what is not known is 0 (the device: -2). */
ENTRY(cuPointerGetAttributes, (unsigned int count, int *attributes, void **data, CUdeviceptr pointer))
{
    ENTER();
    if (count == 0 || attributes == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    for (unsigned int i = 0; i < count; i++) {
        memset(data[i], 0, attribute_size(attributes[i]));
        if (attribute_of(data[i], attributes[i], pointer) != CUDA_SUCCESS && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            memcpy(data[i], &(int){-2}, sizeof(int));
    }
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuPointerSetAttribute, (const void *value, int attribute, CUdeviceptr pointer))
{
    ENTER();
    (void)attribute;
    struct extent extent;
    driver_lock();
    bool found = value != NULL && extent_find(pointer, &extent);
    driver_unlock();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
