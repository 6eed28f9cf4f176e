/* Reserved addresses and what is mapped at them. Bytes of a handle that was exported are the same wherever it is mapped; else they belong
 * to the addresses, and two mappings of one handle do not show each other's. */
#include <stdlib.h>

#include "cuda_vmm.h"

struct mapping {
    struct physical *physical;
    struct place place;
    size_t first, pages; /* in pages of the reservation */
    int access[FAKE_MAX_DEVICES];
};

/* region->detail of a REGION_RESERVED. */
struct reservation {
    size_t pages;
    struct mapping *at[]; /* what covers each page */
};

static struct reservation *reservation_of(CUdeviceptr address, size_t size, size_t *first)
{
    const struct region *region = region_find(address);
    if (region == NULL || region->kind != REGION_RESERVED || size == 0 || address % FAKE_PAGE != 0 || size % FAKE_PAGE != 0 ||
        size > region->start + region->length - address)
        return NULL;
    *first = (address - region->start) / FAKE_PAGE;
    return region->detail;
}

bool vmm_find(struct region *region, CUdeviceptr address, struct extent *extent)
{
    const struct reservation *reservation = region->detail;
    const struct mapping *mapping = reservation->at[(address - region->start) / FAKE_PAGE];
    if (mapping == NULL)
        return false;
    extent->start = region->start + mapping->first * FAKE_PAGE;
    extent->size = mapping->pages * FAKE_PAGE;
    extent->device = physical_device(mapping->physical);
    return true;
}

ENTRY(cuMemAddressReserve, (CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags))
{
    ENTER();
    (void)wish; /* only a hint, as with the real driver */
    if (pointer == NULL || flags != 0 || size == 0 || size % FAKE_PAGE != 0 || (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment > FAKE_PAGE)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    struct reservation *reservation = calloc(1, sizeof *reservation + size / FAKE_PAGE * sizeof *reservation->at);
    struct region *region = reservation != NULL ? region_make(REGION_RESERVED, NULL, 0, size) : NULL;
    if (region != NULL) {
        reservation->pages = size / FAKE_PAGE;
        region->detail = reservation;
        *pointer = region->start;
        result = CUDA_SUCCESS;
    } else {
        free(reservation);
    }
    driver_unlock();
    return result;
}

ENTRY(cuMemAddressFree, (CUdeviceptr pointer, size_t size))
{
    ENTER();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct region *region = region_find(pointer);
    if (region != NULL && region->kind == REGION_RESERVED && region->start == pointer && region->length == size) {
        struct reservation *reservation = region->detail;
        size_t page = 0;
        while (page < reservation->pages && reservation->at[page] == NULL)
            page++;
        if (page == reservation->pages) {
            free(reservation);
            region_unmake(region);
            result = CUDA_SUCCESS;
        }
    }
    driver_unlock();
    return result;
}

/* (locked) */
static CUresult map(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle)
{
    size_t first;
    struct reservation *reservation = reservation_of(pointer, size, &first);
    struct physical *physical = physical_find(handle);
    if (reservation == NULL || physical == NULL || offset > physical_size(physical) || size > physical_size(physical) - offset)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t page = first; page < first + size / FAKE_PAGE; page++)
        if (reservation->at[page] != NULL)
            return CUDA_ERROR_INVALID_VALUE;
    struct mapping *mapping = calloc(1, sizeof *mapping);
    if (mapping == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mapping->physical = physical;
    mapping->first = first;
    mapping->pages = size / FAKE_PAGE;
    for (size_t page = first; page < first + mapping->pages; page++)
        reservation->at[page] = mapping;
    mapping->place = (struct place){.start = pointer, .length = size, .offset = offset};
    physical_map(physical, &mapping->place);
    return CUDA_SUCCESS;
}

ENTRY(cuMemMap, (CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags))
{
    ENTER();
    if (flags != 0 || offset % FAKE_PAGE != 0)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    CUresult result = map(pointer, size, offset, handle);
    driver_unlock();
    return result;
}

/* Several mappings may be unmapped in one call, but only whole ones. (locked) */
static CUresult unmap(CUdeviceptr pointer, size_t size)
{
    size_t first;
    struct reservation *reservation = reservation_of(pointer, size, &first);
    if (reservation == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    size_t end = first + size / FAKE_PAGE;
    for (size_t page = first; page < end; page++) {
        const struct mapping *mapping = reservation->at[page];
        if (mapping == NULL || mapping->first < first || mapping->first + mapping->pages > end)
            return CUDA_ERROR_INVALID_VALUE;
    }
    while (first < end) {
        struct mapping *mapping = reservation->at[first];
        for (size_t page = first; page < first + mapping->pages; page++)
            reservation->at[page] = NULL;
        first += mapping->pages;
        physical_unmap(mapping->physical, &mapping->place);
        free(mapping);
    }
    return CUDA_SUCCESS;
}

ENTRY(cuMemUnmap, (CUdeviceptr pointer, size_t size))
{
    ENTER();
    driver_lock();
    CUresult result = unmap(pointer, size);
    driver_unlock();
    return result;
}

ENTRY(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *handle, void *address))
{
    ENTER();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    const struct region *region = region_find((uintptr_t)address);
    if (handle != NULL && region != NULL && region->kind == REGION_RESERVED) {
        const struct reservation *reservation = region->detail;
        const struct mapping *mapping = reservation->at[((uintptr_t)address - region->start) / FAKE_PAGE];
        if (mapping != NULL) {
            *handle = physical_retain(mapping->physical);
            result = CUDA_SUCCESS;
        }
    }
    driver_unlock();
    return result;
}

ENTRY(cuMemSetAccess, (CUdeviceptr pointer, size_t size, const CUmemAccessDesc *descriptions, size_t count))
{
    ENTER();
    if (descriptions == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    size_t first = 0;
    struct reservation *reservation = reservation_of(pointer, size, &first);
    if (reservation == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    for (size_t page = first; result == CUDA_SUCCESS && page < first + size / FAKE_PAGE; page++)
        if (reservation->at[page] == NULL)
            result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        if (descriptions[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            continue;
        if (!device_valid(descriptions[i].location.id))
            result = CUDA_ERROR_INVALID_DEVICE;
        for (size_t page = first; result == CUDA_SUCCESS && page < first + size / FAKE_PAGE; page++)
            reservation->at[page]->access[descriptions[i].location.id] = descriptions[i].flags;
    }
    driver_unlock();
    return result;
}

ENTRY(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer))
{
    ENTER();
    if (flags == NULL || location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    const struct region *region = region_find(pointer);
    if (region != NULL && region->kind == REGION_RESERVED) {
        const struct reservation *reservation = region->detail;
        const struct mapping *mapping = reservation->at[(pointer - region->start) / FAKE_PAGE];
        if (mapping != NULL) {
            *flags = (unsigned long long)mapping->access[location->id];
            result = CUDA_SUCCESS;
        }
    }
    driver_unlock();
    return result;
}
