/* cuMemMapArrayAsync: memory of cuMemCreate under sparse and deferred arrays. A mapping keeps the memory on the card. */
#include <stdlib.h>
#include <string.h>

#include "cuda_array.h"
#include "cuda_vmm.h"

enum { RESOURCE_ARRAY = 0, RESOURCE_MIPMAP = 1 };
enum { OPERATION_MAP = 1, OPERATION_UNMAP = 2 };

/* One order to map or unmap, in the driver's layout. */
struct map_order {
    int resource_type;
    union {
        CUmipmappedArray mipmap;
        CUarray array;
    } resource;
    int subresource_type;
    union {
        unsigned int level[8]; /* level, layer, offset x y z, extent x y z */
        struct {
            unsigned int layer;
            unsigned long long offset, size;
        } tail;
    } subresource;
    int operation;
    int handle_type;
    CUmemGenericAllocationHandle handle;
    unsigned long long offset;
    unsigned int devices;
    unsigned int flags;
    unsigned int reserved[2];
};

_Static_assert(sizeof(struct map_order) == 96, "the driver's layout");

struct array_mapping {
    struct array_mapping *next;
    struct physical *physical;
    struct place place;
    int subresource_type;
    unsigned int subresource[8];
};

void array_mappings_drop(struct array_memory *memory)
{
    while (memory->mappings != NULL) {
        struct array_mapping *mapping = memory->mappings;
        memory->mappings = mapping->next;
        physical_unmap(mapping->physical, &mapping->place);
        free(mapping);
    }
}

static void unmap(struct array_memory *memory, const struct map_order *order)
{
    for (struct array_mapping **link = &memory->mappings; *link != NULL; link = &(*link)->next) {
        struct array_mapping *mapping = *link;
        if (mapping->subresource_type != order->subresource_type ||
            memcmp(mapping->subresource, order->subresource.level, sizeof mapping->subresource) != 0)
            continue;
        *link = mapping->next;
        physical_unmap(mapping->physical, &mapping->place);
        free(mapping);
        return;
    }
}

static CUresult map(struct array_memory *memory, const struct map_order *order)
{
    struct physical *physical = physical_find(order->handle);
    if (physical == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct array_mapping *mapping = calloc(1, sizeof *mapping);
    if (mapping == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical_map(physical, &mapping->place);
    unmap(memory, order); /* what was mapped there before */
    mapping->physical = physical;
    mapping->subresource_type = order->subresource_type;
    memcpy(mapping->subresource, order->subresource.level, sizeof mapping->subresource);
    mapping->next = memory->mappings;
    memory->mappings = mapping;
    return CUDA_SUCCESS;
}

static CUresult carry_out(const struct map_order *order)
{
    struct array_memory *memory = NULL;
    if (order->resource_type == RESOURCE_ARRAY) {
        CUarray array = array_find(order->resource.array);
        memory = array != NULL ? &array->memory : NULL;
    } else if (order->resource_type == RESOURCE_MIPMAP) {
        CUmipmappedArray mipmap = mipmap_find(order->resource.mipmap);
        memory = mipmap != NULL ? &mipmap->memory : NULL;
    }
    if (memory == NULL || !memory->deferred)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    if (order->operation == OPERATION_MAP)
        result = map(memory, order);
    else if (order->operation == OPERATION_UNMAP)
        unmap(memory, order);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}

static CUresult map_all(const struct map_order *orders, unsigned int count, CUstream stream, bool per_thread)
{
    if (orders == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_add_work(stream, per_thread, 1000);
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)
        result = carry_out(&orders[i]);
    return result;
}

ENTRY(cuMemMapArrayAsync, (void *list, unsigned int count, CUstream stream))
{
    ENTER();
    return map_all(list, count, stream, false);
}

ENTRY(cuMemMapArrayAsync_ptsz, (void *list, unsigned int count, CUstream stream))
{
    ENTER();
    return map_all(list, count, stream, true);
}
