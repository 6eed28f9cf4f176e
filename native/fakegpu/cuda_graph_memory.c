/* Physical memory of graphs: blocks of whole chunks per card, used in turn by the allocations of all graphs of the process. */
#include <stdlib.h>
#include <string.h>

#include "cuda_graph.h"

struct graph_block {
    struct graph_block *next;
    CUdevice device;
    CUcontext context; /* goes with it */
    uint64_t bytes;
    uint64_t launch; /* that took it from the card */
    struct graph_memory *user;
    CUstream freed_on; /* another stream may have it only after `free_at` */
    uint64_t free_at;
};

/* By CU_GRAPH_MEM_ATTR_*: used, its highest, reserved, its highest. */
static uint64_t amounts[FAKE_MAX_DEVICES][4];
static struct graph_block *blocks;

static void change(CUdevice device, int current, int64_t by) {
    uint64_t *amount = &amounts[device][current], *high = &amounts[device][current + 1];
    *amount += (uint64_t)by;
    if (*amount > *high) {
        *high = *amount;
    }
}

struct graph_memory *graph_memory_make(CUdevice device, size_t size) {
    struct graph_memory *memory = calloc(1, sizeof *memory);
    struct region *region = memory == NULL ? NULL : region_make(REGION_GRAPH, NULL, device, size);
    if (region == NULL) {
        free(memory);
        return NULL;
    }
    region->detail = memory;
    *memory = (struct graph_memory){.region = region, .size = size, .device = device, .references = 1};
    return memory;
}

void graph_memory_release(struct graph_memory *memory) {
    if (--memory->references == 0) {
        region_unmake(memory->region);
        free(memory);
    }
}

struct graph_memory *graph_memory_at(CUdeviceptr pointer) {
    struct region *region = region_find(pointer);
    return region != NULL && region->kind == REGION_GRAPH && region->start == pointer ? region->detail : NULL;
}

static struct graph_block *free_block(CUdevice device, CUstream stream, uint64_t bytes) {
    struct graph_block *best = NULL;
    uint64_t now = store_now();
    for (struct graph_block *block = blocks; block != NULL; block = block->next) {
        bool usable = block->user == NULL && block->device == device && block->bytes >= bytes &&
                      (block->freed_on == stream || block->free_at <= now);
        if (usable && (best == NULL || block->bytes < best->bytes)) {
            best = block;
        }
    }
    return best;
}

CUresult graph_memory_take(struct graph_memory *memory, CUstream stream, uint64_t launch) {
    uint64_t bytes = round_up(memory->size, FAKE_POOL_CHUNK);
    struct graph_block *block = free_block(memory->device, stream, bytes);
    if (block == NULL) {
        block = calloc(1, sizeof *block);
        CUresult result = block == NULL ? CUDA_ERROR_OUT_OF_MEMORY : card_take(device_card(memory->device), FAKE_PROCESS, bytes);
        if (result != CUDA_SUCCESS) {
            free(block);
            return result;
        }
        *block = (struct graph_block){
            .next = blocks, .device = memory->device, .context = stream->context, .bytes = bytes, .launch = launch};
        blocks = block;
        change(memory->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, (int64_t)bytes);
    }
    block->user = memory;
    memory->block = block;
    memory->live = true;
    memory->references++;
    memory->region->context = stream->context;
    change(memory->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, (int64_t)bytes);
    return CUDA_SUCCESS;
}

void graph_memory_let_go(struct graph_memory *memory, CUstream stream, uint64_t when) {
    struct graph_block *block = memory->block;
    change(memory->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, -(int64_t)round_up(memory->size, FAKE_POOL_CHUNK));
    block->user = NULL;
    block->freed_on = stream;
    block->free_at = when;
    memory->block = NULL;
    memory->live = false;
    graph_memory_release(memory);
}

void graph_memory_busy(struct graph_memory *memory, CUstream stream, uint64_t until) {
    memory->block->freed_on = stream;
    memory->block->free_at = until;
}

/* Returns those blocks that `wanted` says and that nobody uses. */
static void return_blocks(bool (*wanted)(const struct graph_block *block, const void *detail), const void *detail) {
    for (struct graph_block **link = &blocks; *link != NULL;) {
        struct graph_block *block = *link;
        if (block->user != NULL || !wanted(block, detail)) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        store_give(device_card(block->device), FAKE_PROCESS, block->bytes);
        change(block->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, -(int64_t)block->bytes);
        free(block);
    }
}

static bool of_launch(const struct graph_block *block, const void *detail) {
    return block->launch == *(const uint64_t *)detail;
}

static bool of_context(const struct graph_block *block, const void *detail) {
    return block->context == detail;
}

static bool idle_on_device(const struct graph_block *block, const void *detail) {
    return block->device == *(const CUdevice *)detail && block->free_at <= store_now();
}

void graph_memory_undo(uint64_t launch) {
    return_blocks(of_launch, &launch);
}

void graphs_context_gone(CUcontext context) {
    for (struct graph_block *block = blocks; block != NULL; block = block->next) {
        if (block->context == context && block->user != NULL) {
            graph_memory_let_go(block->user, NULL, 0);
        }
    }
    return_blocks(of_context, context);
}

CUresult graph_memory_free(CUdeviceptr pointer) {
    struct graph_memory *memory = graph_memory_at(pointer);
    if (memory == NULL || !memory->live) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* For others not before the launch that allocated it is done, which graph_memory_busy() has noted. */
    graph_memory_let_go(memory, memory->block->freed_on, memory->block->free_at);
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGraphMemTrim, (CUdevice device)) {
    ENTER();
    if (!device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    driver_lock();
    return_blocks(idle_on_device, &device);
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetGraphMemAttribute, (CUdevice device, int attribute, void *value)) {
    ENTER();
    if (!device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (attribute < CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    memcpy(value, &amounts[device][attribute], sizeof(uint64_t));
    driver_unlock();
    return CUDA_SUCCESS;
}

/* Only the highest amounts can be set, and only back: to zero, which means to what there is now. */
ENTRY(cuDeviceSetGraphMemAttribute, (CUdevice device, int attribute, void *value)) {
    ENTER();
    if (!device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    uint64_t wanted = 1;
    if (value != NULL) {
        memcpy(&wanted, value, sizeof wanted);
    }
    if ((attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH && attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) || wanted != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    amounts[device][attribute] = amounts[device][attribute - 1];
    driver_unlock();
    return CUDA_SUCCESS;
}
