/* cuMemCreate: physical memory in 2 MiB granules, on the card from its making until nothing refers to it and nothing maps it. */
#include "cuda_vmm.h"

#include <stdlib.h>

#include "cuda_ipc_share.h"

#define FIRST_HANDLE 0x100000u /* so that no small number is one by chance */

struct physical {
    CUmemGenericAllocationHandle handle;
    unsigned int references;
    struct place *places; /* where it is mapped */
    size_t size;
    CUmemAllocationProp properties;
    CUdevice device;
    bool counted; /* in this process's account by ourselves: neither host memory nor shared */
    struct share *share;
};

static struct physical **table;
static size_t table_size, table_free; /* no free entry before table_free */

static struct physical *physical_make(size_t size, const CUmemAllocationProp *properties, CUdevice device)
{
    while (table_free < table_size && table[table_free] != NULL)
        table_free++;
    if (table_free == table_size) {
        size_t grown = table_size == 0 ? 64 : table_size * 2;
        struct physical **wider = realloc(table, grown * sizeof *wider);
        if (wider == NULL)
            return NULL;
        for (size_t i = table_size; i < grown; i++)
            wider[i] = NULL;
        table = wider;
        table_size = grown;
    }
    struct physical *physical = calloc(1, sizeof *physical);
    if (physical == NULL)
        return NULL;
    physical->handle = FIRST_HANDLE + table_free;
    physical->references = 1;
    physical->size = size;
    physical->properties = *properties;
    physical->device = device;
    table[table_free] = physical;
    return physical;
}

static void drop_if_unused(struct physical *physical)
{
    if (physical->references > 0 || physical->places != NULL)
        return;
    size_t index = physical->handle - FIRST_HANDLE;
    table[index] = NULL;
    if (index < table_free)
        table_free = index;
    if (physical->share != NULL)
        share_let_go(physical->share);
    else if (physical->counted)
        store_give(device_card(physical->device), FAKE_PROCESS, physical->size);
    free(physical);
}

struct physical *physical_find(CUmemGenericAllocationHandle handle)
{
    if (handle < FIRST_HANDLE || handle - FIRST_HANDLE >= table_size)
        return NULL;
    struct physical *physical = table[handle - FIRST_HANDLE];
    return physical != NULL && physical->references > 0 ? physical : NULL;
}

size_t physical_size(const struct physical *physical)
{
    return physical->size;
}

CUdevice physical_device(const struct physical *physical)
{
    return physical->device;
}

void physical_map(struct physical *physical, struct place *place)
{
    place->next = physical->places;
    physical->places = place;
    if (place->start != 0 && physical->share != NULL)
        share_show(physical->share, place->start, place->length, place->offset, false);
}

void physical_unmap(struct physical *physical, struct place *place)
{
    struct place **link = &physical->places;
    while (*link != place)
        link = &(*link)->next;
    *link = place->next;
    if (place->start != 0)
        addresses_clear(place->start, place->length, physical->share != NULL);
    drop_if_unused(physical);
}

CUmemGenericAllocationHandle physical_retain(struct physical *physical)
{
    physical->references++;
    return physical->handle;
}

/* ---- entry points ---- */

static CUresult check_properties(const CUmemAllocationProp *properties)
{
    if (properties == NULL || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if ((properties->requestedHandleTypes & ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC)
        return CUDA_ERROR_NOT_PERMITTED; /* no fabric here */
    CUdevice device;
    if (location_is_host(&properties->location) || location_device(&properties->location, &device))
        return CUDA_SUCCESS;
    return properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuMemGetAllocationGranularity, (size_t *granularity, const CUmemAllocationProp *properties, int option))
{
    ENTER();
    CUresult result = check_properties(properties);
    if (result != CUDA_SUCCESS)
        return result;
    if (granularity == NULL || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = FAKE_PAGE;
    return CUDA_SUCCESS;
}

ENTRY(cuMemCreate, (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties, unsigned long long flags))
{
    ENTER();
    CUresult result = check_properties(properties);
    if (result != CUDA_SUCCESS)
        return result;
    if (handle == NULL || flags != 0 || size == 0 || size % FAKE_PAGE != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUdevice device = 0;
    bool counted = location_device(&properties->location, &device);
    if (fault_lost(device_info(device)->uuid))
        return CUDA_ERROR_UNKNOWN;
    driver_lock();
    if (counted)
        result = card_take(device_card(device), FAKE_PROCESS, size);
    if (result == CUDA_SUCCESS) {
        struct physical *physical = physical_make(size, properties, device);
        if (physical != NULL) {
            physical->counted = counted;
            *handle = physical->handle;
        } else {
            if (counted)
                store_give(device_card(device), FAKE_PROCESS, size);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    driver_unlock();
    return result;
}

ENTRY(cuMemRelease, (CUmemGenericAllocationHandle handle))
{
    ENTER();
    driver_lock();
    struct physical *physical = physical_find(handle);
    if (physical != NULL) {
        physical->references--;
        drop_if_unused(physical);
    }
    driver_unlock();
    return physical != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle))
{
    ENTER();
    driver_lock();
    const struct physical *physical = physical_find(handle);
    bool found = physical != NULL && properties != NULL;
    if (found)
        *properties = physical->properties;
    driver_unlock();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- between processes ---- */

/* (locked) */
static int export_physical(struct physical *physical)
{
    if (physical->share == NULL) {
        struct share_info info = {.kind = SHARE_PHYSICAL,
                                  .bytes = physical->counted ? physical->size : 0,
                                  .size = physical->size,
                                  .properties = physical->properties};
        physical->share = share_make(device_card(physical->device), &info);
        if (physical->share == NULL)
            return -1;
        physical->counted = false; /* the share pays from now on */
        for (const struct place *place = physical->places; place != NULL; place = place->next)
            if (place->start != 0)
                share_show(physical->share, place->start, place->length, place->offset, true);
    }
    return share_export(physical->share);
}

ENTRY(cuMemExportToShareableHandle, (void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))
{
    ENTER();
    if (shareable == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct physical *physical = physical_find(handle);
    if (physical != NULL && (physical->properties.requestedHandleTypes & type) != 0) {
        int descriptor = export_physical(physical);
        result = descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
        if (descriptor >= 0)
            *(int *)shareable = descriptor;
    }
    driver_unlock();
    return result;
}

ENTRY(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *handle, void *shareable, int type))
{
    ENTER();
    if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct share *share = share_open_descriptor((int)(intptr_t)shareable);
    if (share != NULL && share_info(share)->kind == SHARE_PHYSICAL) {
        struct physical *physical = physical_make(share_info(share)->size, &share_info(share)->properties, share_device(share));
        if (physical != NULL) {
            physical->share = share;
            physical->properties.location.id = share_device(share); /* ordinals may differ between processes */
            *handle = physical->handle;
            share = NULL;
            result = CUDA_SUCCESS;
        }
    }
    if (share != NULL)
        share_let_go(share);
    driver_unlock();
    return result;
}
