/* Device addresses: which there are, which are taken, and by what.
 *
 * They are host addresses from large reserved mappings, so that a device pointer never is anything else's address and small memory can
 * hold bytes; the host gives no memory until something is written. A mapping is divided into 2 MiB pages by a bitmap. From an address to
 * its region it goes through a two-level table of those pages: the same time however much there is.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "cuda_internal.h"

#define ARENA_PAGES 32768u /* 64 GiB */
#define LOW_ARENA_PAGES 512u
#define LOW_ARENA_HINT 0x20000000ul
#define LOW_END (1ull << 32)

struct arena {
    struct arena *next;
    CUdeviceptr start;
    size_t pages;
    size_t hint; /* no free page before this one */
    bool low;
    uint64_t taken[]; /* a bit per page */
};

#define LEAF_BITS 13u
#define TOP_BITS 14u /* addresses of 48 bits */

static struct arena *arenas;
static struct region **pages_top[1u << TOP_BITS];
static uint64_t last_buffer_id;

static bool is_taken(const struct arena *arena, size_t page)
{
    return arena->taken[page / 64] >> page % 64 & 1;
}

static void mark(struct arena *arena, size_t page, size_t count, bool taken)
{
    for (size_t i = page; i < page + count; i++)
        if (taken)
            arena->taken[i / 64] |= 1ull << i % 64;
        else
            arena->taken[i / 64] &= ~(1ull << i % 64);
}

static struct arena *arena_make(size_t pages, bool low)
{
    size_t length = (pages + 1) * FAKE_PAGE; /* one more to align it */
    void *mapped = mmap(low ? (void *)LOW_ARENA_HINT : NULL, length, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    struct arena *arena = calloc(1, sizeof *arena + (pages + 63) / 64 * sizeof(uint64_t));
    if (arena == NULL || (low && (uintptr_t)mapped + length > LOW_END)) {
        munmap(mapped, length);
        free(arena);
        return NULL;
    }
    (void)madvise(mapped, length, MADV_DONTDUMP);
    arena->start = round_up((uintptr_t)mapped, FAKE_PAGE);
    arena->pages = pages;
    arena->low = low;
    arena->next = arenas;
    arenas = arena;
    return arena;
}

/* The first free run of `count` pages; arena->pages if there is none. */
static size_t find_run(struct arena *arena, size_t count)
{
    size_t run = 0;
    bool seen_free = false;
    for (size_t page = arena->hint; page < arena->pages;) {
        if (page % 64 == 0 && arena->taken[page / 64] == UINT64_MAX) {
            run = 0;
            page += 64;
            continue;
        }
        if (is_taken(arena, page)) {
            run = 0;
        } else {
            if (!seen_free)
                arena->hint = page;
            seen_free = true;
            if (++run == count)
                return page + 1 - count;
        }
        page++;
    }
    if (!seen_free)
        arena->hint = arena->pages;
    return arena->pages;
}

void addresses_clear(CUdeviceptr start, size_t length, bool shown)
{
    void *bytes = (void *)(uintptr_t)start;
    if (shown)
        (void)mmap(bytes, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    else
        (void)madvise(bytes, length, MADV_DONTNEED);
}

static CUdeviceptr addresses_take(size_t pages, bool low)
{
    size_t page = 0;
    struct arena *arena;
    for (arena = arenas; arena != NULL; arena = arena->next)
        if (arena->low == low && (page = find_run(arena, pages)) < arena->pages)
            break;
    if (arena == NULL) {
        size_t usual = low ? LOW_ARENA_PAGES : ARENA_PAGES;
        arena = arena_make(pages > usual ? pages : usual, low);
        if (arena == NULL)
            return 0;
        page = 0;
    }
    mark(arena, page, pages, true);
    return arena->start + page * FAKE_PAGE;
}

static void addresses_give(CUdeviceptr start, size_t pages, bool shown)
{
    for (struct arena *arena = arenas; arena != NULL; arena = arena->next)
        if (start >= arena->start && start < arena->start + arena->pages * FAKE_PAGE) {
            size_t page = (start - arena->start) / FAKE_PAGE;
            mark(arena, page, pages, false);
            if (page < arena->hint)
                arena->hint = page;
            addresses_clear(start, pages * FAKE_PAGE, shown);
            return;
        }
}

static bool table_set(CUdeviceptr start, size_t pages, struct region *region)
{
    for (size_t number = start / FAKE_PAGE; number < start / FAKE_PAGE + pages; number++) {
        struct region ***leaf = &pages_top[number >> LEAF_BITS & ((1u << TOP_BITS) - 1)];
        if (*leaf == NULL && (*leaf = calloc(1u << LEAF_BITS, sizeof **leaf)) == NULL)
            return false;
        (*leaf)[number & ((1u << LEAF_BITS) - 1)] = region;
    }
    return true;
}

struct region *region_find(CUdeviceptr address)
{
    uint64_t number = address / FAKE_PAGE;
    if (number >> (LEAF_BITS + TOP_BITS) != 0)
        return NULL;
    struct region **leaf = pages_top[number >> LEAF_BITS];
    return leaf == NULL ? NULL : leaf[number & ((1u << LEAF_BITS) - 1)];
}

static struct region *make(enum region_kind kind, CUcontext context, CUdevice device, size_t size, bool low)
{
    struct region *region = calloc(1, sizeof *region);
    if (region == NULL || size == 0 || size > 1ull << 46) {
        free(region);
        return NULL;
    }
    region->kind = kind;
    region->context = context;
    region->device = device;
    region->size = size;
    region->length = round_up(size, FAKE_PAGE);
    region->start = addresses_take(region->length / FAKE_PAGE, low);
    if (region->start == 0 || !table_set(region->start, region->length / FAKE_PAGE, region)) {
        free(region);
        return NULL;
    }
    region->buffer_id = ++last_buffer_id;
    if (context != NULL) {
        region->next = context->regions;
        region->link = &context->regions;
        if (region->next != NULL)
            region->next->link = &region->next;
        context->regions = region;
    }
    return region;
}

struct region *region_make(enum region_kind kind, CUcontext context, CUdevice device, size_t size)
{
    return make(kind, context, device, size, false);
}

struct region *region_make_low(enum region_kind kind, CUcontext context, CUdevice device, size_t size)
{
    return make(kind, context, device, size, true);
}

void region_unmake(struct region *region)
{
    if (region->link != NULL) {
        *region->link = region->next;
        if (region->next != NULL)
            region->next->link = region->link;
    }
    table_set(region->start, region->length / FAKE_PAGE, NULL);
    addresses_give(region->start, region->length / FAKE_PAGE, region->shown);
    free(region);
}
