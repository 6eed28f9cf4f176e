/* Physical memory of graphs: chunks per card, used in turn by the graphs of the process.
 *
 * The allocations of one launch are packed side by side, so that eight of 1 MiB are in one chunk; what is left of a chunk is for that
 * launch alone. Nothing says how the real driver shares a chunk between graphs that have memory at the same time: here they do not.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_graph.h"

struct graph_chunk {
    struct graph_chunk *next;
    CUdevice device;
    CUcontext context; /* of the launch that had it last: goes with it */
    uint64_t taken_by; /* launch that took it from the card */
    uint64_t launch;   /* that had it last, and how much it put there */
    uint64_t filled;
    const void *exec;      /* of that launch: runs of one graph follow one another on whatever stream */
    unsigned int users;    /* living allocations that have a part of it */
    CUstream freed_on;     /* another stream may have it only after `free_at` */
    uint64_t free_at;
};

/* By CU_GRAPH_MEM_ATTR_*: used, its highest, reserved, its highest. */
static uint64_t amounts[FAKE_MAX_DEVICES][4];
static struct graph_chunk *chunks;
static struct graph_memory *living;

static void change(CUdevice device, int current, int64_t by) {
    uint64_t *amount = &amounts[device][current], *high = &amounts[device][current + 1];
    *amount += (uint64_t)by;
    if (*amount > *high) {
        *high = *amount;
    }
}

struct graph_memory *graph_memory_make(CUdevice device, size_t size) {
    size_t count = (size_t)(round_up(size, FAKE_POOL_CHUNK) / FAKE_POOL_CHUNK);
    struct graph_memory *memory = calloc(1, sizeof *memory + count * sizeof(struct graph_chunk *));
    struct region *region = memory == NULL ? NULL : region_make(REGION_GRAPH, NULL, device, size);
    if (region == NULL) {
        free(memory);
        return NULL;
    }
    region->detail = memory;
    memory->region = region;
    memory->size = size;
    memory->device = device;
    memory->references = 1;
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

/* A chunk that the launch has opened and that has room. */
static struct graph_chunk *open_chunk(CUdevice device, uint64_t launch, uint64_t bytes) {
    struct graph_chunk *chunk = chunks;
    while (chunk != NULL && (chunk->device != device || chunk->launch != launch || chunk->filled + bytes > FAKE_POOL_CHUNK)) {
        chunk = chunk->next;
    }
    return chunk;
}

static struct graph_chunk *idle_chunk(CUdevice device, const struct graph_launch *launch) {
    uint64_t now = store_now();
    for (struct graph_chunk *chunk = chunks; chunk != NULL; chunk = chunk->next) {
        bool ours = chunk->freed_on == launch->stream || chunk->exec == launch->exec;
        if (chunk->device == device && chunk->users == 0 && (ours || chunk->free_at <= now)) {
            return chunk;
        }
    }
    return NULL;
}

static CUresult chunk_from_card(CUdevice device, uint64_t launch, struct graph_chunk **taken) {
    struct graph_chunk *chunk = calloc(1, sizeof *chunk);
    CUresult result = chunk == NULL ? CUDA_ERROR_OUT_OF_MEMORY : card_take(device_card(device), FAKE_PROCESS, FAKE_POOL_CHUNK);
    if (result != CUDA_SUCCESS) {
        free(chunk);
        return result;
    }
    *chunk = (struct graph_chunk){.next = chunks, .device = device, .taken_by = launch};
    chunks = chunk;
    change(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, (int64_t)FAKE_POOL_CHUNK);
    *taken = chunk;
    return CUDA_SUCCESS;
}

/* Finds a place for at most a chunk's worth. */
static CUresult place(CUdevice device, uint64_t bytes, const struct graph_launch *launch, struct graph_chunk **found) {
    *found = open_chunk(device, launch->number, bytes);
    if (*found == NULL) {
        *found = idle_chunk(device, launch);
        CUresult result = *found != NULL ? CUDA_SUCCESS : chunk_from_card(device, launch->number, found);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        (*found)->launch = launch->number;
        (*found)->exec = launch->exec;
        (*found)->context = launch->stream->context;
        (*found)->filled = 0;
    }
    (*found)->filled += bytes;
    if ((*found)->users++ == 0) {
        change(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, (int64_t)FAKE_POOL_CHUNK);
    }
    return CUDA_SUCCESS;
}

static void leave_chunks(struct graph_memory *memory) {
    while (memory->chunk_count > 0) {
        if (--memory->chunks[--memory->chunk_count]->users == 0) {
            change(memory->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, -(int64_t)FAKE_POOL_CHUNK);
        }
    }
}

CUresult graph_memory_take(struct graph_memory *memory, const struct graph_launch *launch) {
    for (uint64_t left = memory->size; left > 0;) {
        uint64_t bytes = left < FAKE_POOL_CHUNK ? left : FAKE_POOL_CHUNK;
        CUresult result = place(memory->device, bytes, launch, &memory->chunks[memory->chunk_count]);
        if (result != CUDA_SUCCESS) {
            leave_chunks(memory);
            return result;
        }
        memory->chunk_count++;
        left -= bytes;
    }
    memory->live = true;
    memory->references++;
    memory->region->context = launch->stream->context;
    memory->next_living = living;
    living = memory;
    return CUDA_SUCCESS;
}

void graph_memory_busy(struct graph_memory *memory, CUstream stream, uint64_t until) {
    for (size_t i = 0; i < memory->chunk_count; i++) {
        struct graph_chunk *chunk = memory->chunks[i];
        if (until >= chunk->free_at) {
            chunk->freed_on = stream;
            chunk->free_at = until;
        }
    }
}

/* Frees it for those who may have it after the launch that allocated it, as graph_memory_busy() has noted. */
static void let_go(struct graph_memory *memory) {
    leave_chunks(memory);
    struct graph_memory **link = &living;
    while (*link != memory) {
        link = &(*link)->next_living;
    }
    *link = memory->next_living;
    memory->live = false;
    graph_memory_release(memory);
}

void graph_memory_let_go(struct graph_memory *memory, CUstream stream, uint64_t when) {
    graph_memory_busy(memory, stream, when);
    let_go(memory);
}

/* Returns the unused chunks that `wanted` selects. */
static void return_chunks(bool (*wanted)(const struct graph_chunk *chunk, const void *detail), const void *detail) {
    for (struct graph_chunk **link = &chunks; *link != NULL;) {
        struct graph_chunk *chunk = *link;
        if (chunk->users > 0 || !wanted(chunk, detail)) {
            link = &chunk->next;
            continue;
        }
        *link = chunk->next;
        store_give(device_card(chunk->device), FAKE_PROCESS, FAKE_POOL_CHUNK);
        change(chunk->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, -(int64_t)FAKE_POOL_CHUNK);
        free(chunk);
    }
}

static bool taken_by(const struct graph_chunk *chunk, const void *detail) {
    return chunk->taken_by == *(const uint64_t *)detail;
}

static bool of_context(const struct graph_chunk *chunk, const void *detail) {
    return chunk->context == detail;
}

static bool idle_on_device(const struct graph_chunk *chunk, const void *detail) {
    return chunk->device == *(const CUdevice *)detail && chunk->free_at <= store_now();
}

void graph_memory_undo(uint64_t launch) {
    return_chunks(taken_by, &launch);
}

void graphs_context_gone(CUcontext context) {
    for (struct graph_memory *memory = living, *next; memory != NULL; memory = next) {
        next = memory->next_living;
        if (memory->region->context == context) {
            let_go(memory);
        }
    }
    return_chunks(of_context, context);
}

CUresult graph_memory_free(CUdeviceptr pointer) {
    struct graph_memory *memory = graph_memory_at(pointer);
    if (memory == NULL || !memory->live) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let_go(memory);
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGraphMemTrim, (CUdevice device)) {
    ENTER();
    if (!device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    driver_lock();
    return_chunks(idle_on_device, &device);
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
