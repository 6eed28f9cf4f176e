/* Blocks and chunks of pools: allocating, freeing, giving back. See cuda_pool.h. */
#include <stdlib.h>

#include "cuda_pool.h"

#define STEP 512u
#define SPAN_ROOM (4096 * FAKE_MIB) /* of addresses */

/* ---- blocks ---- */

/* Makes `address` the start of a block. */
static bool split_at(struct span *span, CUdeviceptr address)
{
    for (struct block *block = span->blocks; block != NULL; block = block->next) {
        if (address >= block->start + block->length)
            continue;
        if (address == block->start)
            return true;
        struct block *rest = malloc(sizeof *rest);
        if (rest == NULL)
            return false;
        *rest = *block;
        rest->start = address;
        rest->length = block->start + block->length - address;
        block->length = address - block->start;
        block->next = rest;
        return true;
    }
    return true;
}

static bool same_kind(const struct block *one, const struct block *other)
{
    return one->state == other->state && one->state != BLOCK_USED &&
           (one->state != BLOCK_PENDING || (one->key == other->key && one->context == other->context));
}

static void merge(struct span *span)
{
    for (struct block *block = span->blocks; block != NULL;) {
        struct block *next = block->next;
        if (next != NULL && same_kind(block, next)) {
            block->length += next->length;
            block->next = next->next;
            free(next);
        } else {
            block = next;
        }
    }
}

static bool reusable(const struct block *block, const void *key)
{
    return block->state == BLOCK_FREE || (block->state == BLOCK_PENDING && block->key == key);
}

/* The start of the first run of reusable blocks that is long enough; 0 if there is none. */
static CUdeviceptr find_room(const struct span *span, size_t length, const void *key)
{
    CUdeviceptr start = 0;
    size_t run = 0;
    for (const struct block *block = span->blocks; block != NULL; block = block->next) {
        if (!reusable(block, key)) {
            run = 0;
            continue;
        }
        if (run == 0)
            start = block->start;
        run += block->length;
        if (run >= length)
            return start;
    }
    return 0;
}

/* All blocks from start to end become one. */
static bool occupy(struct span *span, CUdeviceptr start, size_t length, size_t size, CUcontext context)
{
    if (!split_at(span, start) || !split_at(span, start + length))
        return false;
    struct block *first = span->blocks;
    while (first->start != start)
        first = first->next;
    while (first->length < length) {
        struct block *next = first->next;
        first->length += next->length;
        first->next = next->next;
        free(next);
    }
    first->state = BLOCK_USED;
    first->size = size;
    first->context = context;
    first->key = NULL;
    return true;
}

static struct block *block_around(const struct span *span, CUdeviceptr address)
{
    struct block *block = span->blocks;
    while (block != NULL && address >= block->start + block->length)
        block = block->next;
    return block;
}

bool pool_find(struct region *region, CUdeviceptr address, struct extent *extent)
{
    const struct span *span = region->detail;
    const struct block *block = block_around(span, address);
    if (block == NULL || block->state != BLOCK_USED || address >= block->start + block->size)
        return false;
    extent->start = block->start;
    extent->size = block->size;
    extent->pool = span->pool;
    return true;
}

/* ---- chunks ---- */

static struct span *span_make(CUmemoryPool pool, size_t length)
{
    struct span *span = calloc(1, sizeof *span);
    struct block *block = calloc(1, sizeof *block);
    struct region *region = span != NULL && block != NULL ? region_make(REGION_POOL, NULL, pool->device, length) : NULL;
    if (region == NULL) {
        free(span);
        free(block);
        return NULL;
    }
    block->start = region->start;
    block->length = length;
    block->state = BLOCK_ABSENT;
    region->detail = span;
    span->region = region;
    span->pool = pool;
    span->blocks = block;
    span->next = pool->spans;
    pool->spans = span;
    return span;
}

static void give_back(CUmemoryPool pool, uint64_t bytes)
{
    if (pool->counted)
        store_give(device_card(pool->device), pool->kind, bytes);
    pool->reserved -= bytes;
}

static bool chunk_is_free(const struct span *span, CUdeviceptr chunk)
{
    const struct block *block = block_around(span, chunk);
    return block != NULL && block->state == BLOCK_FREE && block->start + block->length >= chunk + FAKE_POOL_CHUNK;
}

static void span_unmake(struct span *span)
{
    struct span **link = &span->pool->spans;
    while (*link != span)
        link = &(*link)->next;
    *link = span->next;
    for (struct block *block = span->blocks, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    region_unmake(span->region);
    free(span);
}

void pool_trim(CUmemoryPool pool, uint64_t keep)
{
    for (struct span *span = pool->spans, *next; span != NULL && pool->reserved > keep; span = next) {
        next = span->next;
        CUdeviceptr end = span->region->start + span->region->length;
        for (CUdeviceptr chunk = span->region->start; chunk < end && pool->reserved > keep; chunk += FAKE_POOL_CHUNK) {
            if (!chunk_is_free(span, chunk) || pool->reserved - FAKE_POOL_CHUNK < keep)
                continue;
            if (!split_at(span, chunk) || !split_at(span, chunk + FAKE_POOL_CHUNK))
                return;
            block_around(span, chunk)->state = BLOCK_ABSENT;
            give_back(pool, FAKE_POOL_CHUNK);
        }
        merge(span);
        if (span->blocks->next == NULL && span->blocks->state == BLOCK_ABSENT)
            span_unmake(span);
    }
}

void pool_empty(CUmemoryPool pool)
{
    give_back(pool, pool->reserved);
    pool->used = 0;
    while (pool->spans != NULL)
        span_unmake(pool->spans);
}

/* ---- allocating and freeing ---- */

struct pool_request {
    CUmemoryPool pool;
    size_t length;
    const void *key; /* stream */
};

/* Where a pool can have more: chunks that are not on the card, best behind room that is free already, so that nothing is lost at the
 * chunks' borders. */
struct growth {
    struct span *span; /* NULL: a new one */
    CUdeviceptr start;
    uint64_t bytes;
};

static struct growth plan_growth(const struct pool_request *request)
{
    for (struct span *span = request->pool->spans; span != NULL; span = span->next) {
        size_t run = 0; /* reusable, up to the block */
        for (const struct block *block = span->blocks; block != NULL; block = block->next) {
            if (block->state == BLOCK_ABSENT) {
                uint64_t bytes = round_up(request->length - run, FAKE_POOL_CHUNK);
                if (block->length >= bytes)
                    return (struct growth){span, block->start, bytes};
            }
            run = reusable(block, request->key) ? run + block->length : 0;
        }
    }
    return (struct growth){.bytes = round_up(request->length, FAKE_POOL_CHUNK)};
}

static CUresult take_growth(CUmemoryPool pool, uint64_t bytes)
{
    if (pool->most != 0 && pool->reserved + bytes > round_up(pool->most, FAKE_POOL_CHUNK))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return pool->counted ? card_take(device_card(pool->device), pool->kind, bytes) : CUDA_SUCCESS;
}

/* What lies free in any pool of the card. */
static void trim_all(CUdevice device)
{
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next)
        if (pool->counted && pool->device == device)
            pool_trim(pool, 0);
}

static CUresult grow(const struct pool_request *request, struct span **span)
{
    CUmemoryPool pool = request->pool;
    struct growth growth = plan_growth(request);
    CUresult result = take_growth(pool, growth.bytes);
    if (result != CUDA_SUCCESS && pool->counted) {
        trim_all(pool->device);
        growth = plan_growth(request);
        result = take_growth(pool, growth.bytes);
    }
    if (result != CUDA_SUCCESS)
        return result;
    pool->reserved += growth.bytes;
    if (growth.span == NULL) {
        growth.span = span_make(pool, growth.bytes > SPAN_ROOM ? growth.bytes : SPAN_ROOM);
        growth.start = growth.span == NULL ? 0 : growth.span->region->start;
    }
    if (growth.span == NULL || !split_at(growth.span, growth.start + growth.bytes)) {
        give_back(pool, growth.bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block_around(growth.span, growth.start)->state = BLOCK_FREE;
    merge(growth.span);
    *span = growth.span;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

void pool_move(CUmemoryPool pool, CUdevice device)
{
    if (pool->kind != FAKE_MANAGED || (pool->counted && pool->device == device))
        return;
    if (device >= 0 && card_take(device_card(device), pool->kind, pool->reserved) != CUDA_SUCCESS)
        return;
    if (pool->counted)
        store_give(device_card(pool->device), pool->kind, pool->reserved);
    pool->counted = device >= 0;
    pool->device = device >= 0 ? device : pool->device;
}

CUresult pool_allocate(CUmemoryPool pool, size_t size, CUcontext context, const void *key, CUdeviceptr *pointer)
{
    if (!pool->placed) {
        pool->device = context->device;
        pool->placed = true;
    }
    if (size > 1ull << 46 || (pool->most != 0 && pool->used + size > pool->most))
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t length = round_up(size, STEP);
    struct span *span = pool->spans;
    CUdeviceptr start = 0;
    while (span != NULL && (start = find_room(span, length, key)) == 0)
        span = span->next;
    if (span == NULL) {
        CUresult result = grow(&(struct pool_request){pool, length, key}, &span);
        if (result != CUDA_SUCCESS)
            return result;
        start = find_room(span, length, key);
    }
    if (!occupy(span, start, length, size, context))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->used += length;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    *pointer = start;
    return CUDA_SUCCESS;
}

CUresult pool_free(struct region *region, CUdeviceptr pointer, CUcontext context, const void *key)
{
    struct span *span = region->detail;
    CUmemoryPool pool = span->pool;
    struct block *block = block_around(span, pointer);
    if (block == NULL || block->state != BLOCK_USED || block->start != pointer)
        return CUDA_ERROR_INVALID_VALUE;
    pool->used -= block->length;
    block->state = key == NULL ? BLOCK_FREE : BLOCK_PENDING;
    block->key = key;
    block->context = context;
    merge(span);
    if (!pool->alive && pool->used == 0)
        pool_empty(pool);
    else if (key == NULL)
        pool_trim(pool, pool->threshold);
    return CUDA_SUCCESS;
}

void pools_synchronized(CUcontext context, const void *key)
{
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        if (pool->spans == NULL || (pool->kind == FAKE_PROCESS && pool->counted && pool->device != context->device))
            continue;
        for (struct span *span = pool->spans; span != NULL; span = span->next) {
            for (struct block *block = span->blocks; block != NULL; block = block->next)
                if (block->state == BLOCK_PENDING && (key == NULL ? block->context == context : block->key == key))
                    block->state = BLOCK_FREE;
            merge(span);
        }
        pool_trim(pool, pool->threshold);
    }
}
