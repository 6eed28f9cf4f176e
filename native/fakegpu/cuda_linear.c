/* cuMemAlloc and its kin, counted as the real driver counts: the number of 2 MiB pages under living allocations.
 *
 * What is larger than 1 MiB starts on a page and takes whole ones. Smaller ones lie in 512-byte steps in pages that they share with
 * others of their context, first fit; a page goes back to the card when the last in it is freed.
 */
#include "cuda_linear.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_ipc_share.h"

#define STEP 512u
#define STEPS (FAKE_PAGE / STEP)
#define SMALL_LIMIT FAKE_MIB
#define PITCH_STEP 512u

struct piece {
    uint16_t first; /* in steps */
    uint32_t size;  /* as asked for */
};

/* region->detail of a REGION_SMALL. */
struct small_page {
    struct small_page *next, *before; /* in context->small */
    struct region *region;
    struct piece *pieces; /* sorted by place */
    unsigned int count, room;
    unsigned int largest_gap; /* in steps, exact */
};

static unsigned int steps_of(const struct piece *piece)
{
    return (piece->size + STEP - 1) / STEP;
}

/* The free steps before piece `index`, or after the last one. */
static unsigned int gap_before(const struct small_page *page, unsigned int index, unsigned int *first)
{
    *first = index == 0 ? 0 : page->pieces[index - 1].first + steps_of(&page->pieces[index - 1]);
    return (index == page->count ? (unsigned int)STEPS : page->pieces[index].first) - *first;
}

static void measure_gaps(struct small_page *page)
{
    page->largest_gap = 0;
    for (unsigned int index = 0; index <= page->count; index++) {
        unsigned int first, gap = gap_before(page, index, &first);
        if (gap > page->largest_gap)
            page->largest_gap = gap;
    }
}

static struct small_page *small_page_make(CUcontext context, bool low)
{
    if (context_take(context, FAKE_PAGE) != CUDA_SUCCESS)
        return NULL;
    struct small_page *page = calloc(1, sizeof *page);
    struct region *region = NULL;
    if (page != NULL)
        region = low ? region_make_low(REGION_SMALL, context, context->device, FAKE_PAGE)
                     : region_make(REGION_SMALL, context, context->device, FAKE_PAGE);
    if (region == NULL) {
        free(page);
        context_give(context, FAKE_PAGE);
        return NULL;
    }
    region->detail = page;
    region->charged = FAKE_PAGE;
    page->region = region;
    page->largest_gap = STEPS;
    /* At the end: older pages are filled first, so that newer ones become free. */
    struct small_page *last = context->small;
    while (last != NULL && last->next != NULL)
        last = last->next;
    page->before = last;
    if (last != NULL)
        last->next = page;
    else
        context->small = page;
    return page;
}

static bool small_insert(struct small_page *page, size_t size, CUdeviceptr *pointer)
{
    unsigned int needed = (unsigned int)((size + STEP - 1) / STEP);
    if (page->count == page->room) {
        unsigned int room = page->room == 0 ? 8 : page->room * 2;
        struct piece *grown = realloc(page->pieces, room * sizeof *grown);
        if (grown == NULL)
            return false;
        page->pieces = grown;
        page->room = room;
    }
    for (unsigned int index = 0; index <= page->count; index++) {
        unsigned int first, gap = gap_before(page, index, &first);
        if (gap < needed)
            continue;
        memmove(&page->pieces[index + 1], &page->pieces[index], (page->count - index) * sizeof *page->pieces);
        page->pieces[index] = (struct piece){(uint16_t)first, (uint32_t)size};
        page->count++;
        if (gap == page->largest_gap)
            measure_gaps(page);
        *pointer = page->region->start + first * STEP;
        return true;
    }
    return false;
}

static CUresult allocate_small(CUcontext context, size_t size, bool low, CUdeviceptr *pointer)
{
    unsigned int needed = (unsigned int)((size + STEP - 1) / STEP);
    struct small_page *page = context->small;
    while (page != NULL && (page->largest_gap < needed || (low && page->region->start >> 32 != 0)))
        page = page->next;
    if (page == NULL)
        page = small_page_make(context, low);
    return page != NULL && small_insert(page, size, pointer) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_large(CUcontext context, size_t size, bool low, CUdeviceptr *pointer)
{
    if (size > device_info(context->device)->memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t bytes = round_up(size, FAKE_PAGE);
    CUresult result = context_take(context, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    struct region *region = low ? region_make_low(REGION_LARGE, context, context->device, size)
                                : region_make(REGION_LARGE, context, context->device, size);
    if (region == NULL) {
        context_give(context, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    region->charged = bytes;
    *pointer = region->start;
    return CUDA_SUCCESS;
}

static CUresult allocate(size_t size, bool low, CUdeviceptr *pointer)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = capture_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    result = size <= SMALL_LIMIT ? allocate_small(context, size, low, pointer) : allocate_large(context, size, low, pointer);
    driver_unlock();
    return result;
}

/* ---- finding and freeing ---- */

static int piece_at(const struct small_page *page, CUdeviceptr address)
{
    unsigned int step = (unsigned int)((address - page->region->start) / STEP);
    unsigned int low = 0, high = page->count;
    while (low < high) {
        unsigned int middle = (low + high) / 2;
        if (page->pieces[middle].first <= step)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || step >= page->pieces[low - 1].first + steps_of(&page->pieces[low - 1]))
        return -1;
    return (int)low - 1;
}

bool small_find(struct region *region, CUdeviceptr address, struct extent *extent)
{
    const struct small_page *page = region->detail;
    int index = piece_at(page, address);
    if (index < 0)
        return false;
    extent->start = region->start + page->pieces[index].first * STEP;
    extent->size = page->pieces[index].size;
    return address < extent->start + extent->size;
}

static void small_page_unlink(struct small_page *page)
{
    if (page->before != NULL)
        page->before->next = page->next;
    else
        page->region->context->small = page->next;
    if (page->next != NULL)
        page->next->before = page->before;
    free(page->pieces);
    free(page);
}

void region_release(struct region *region)
{
    if (region->kind == REGION_SMALL)
        small_page_unlink(region->detail);
    if (region->share != NULL)
        share_let_go(region->share);
    else if (region->charged > 0)
        store_give(device_card(region->device), region->kind == REGION_MANAGED ? FAKE_MANAGED : FAKE_PROCESS, region->charged);
    region_unmake(region);
}

static CUresult small_free(struct region *region, CUdeviceptr pointer)
{
    struct small_page *page = region->detail;
    int index = piece_at(page, pointer);
    if (index < 0 || region->start + page->pieces[index].first * STEP != pointer)
        return CUDA_ERROR_INVALID_VALUE;
    page->count--;
    memmove(&page->pieces[index], &page->pieces[index + 1], (page->count - (unsigned int)index) * sizeof *page->pieces);
    if (page->count == 0) {
        region_release(region);
    } else {
        unsigned int first, gap = gap_before(page, (unsigned int)index, &first);
        if (gap > page->largest_gap)
            page->largest_gap = gap;
    }
    return CUDA_SUCCESS;
}

static CUresult free_pointer(CUdeviceptr pointer)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == 0)
        return CUDA_SUCCESS;
    result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct region *region = region_find(pointer);
    if (region == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (region->kind == REGION_SMALL) {
        result = small_free(region, pointer);
    } else if (region->kind == REGION_POOL) {
        result = pool_free(region, pointer, context, NULL);
    } else if (region->kind == REGION_GRAPH) {
        result = graph_memory_free(pointer);
    } else if ((region->kind == REGION_LARGE || region->kind == REGION_MANAGED || (region->kind == REGION_IPC && region->share == NULL)) &&
               pointer == region->start) {
        region_release(region);
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

void linear_context_gone(CUcontext context)
{
    for (struct region *region = context->regions, *next; region != NULL; region = next) {
        next = region->next;
        if (region->kind != REGION_GRAPH) /* cuda_graph_memory.c looks after those */
            region_release(region);
    }
}

/* ---- entry points ---- */

ENTRY(cuMemAlloc_v2, (CUdeviceptr *pointer, size_t size))
{
    ENTER();
    return pointer == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(size, false, pointer);
}

/* The kinds from before CUDA 3.2 have 32-bit pointers and sizes: they get addresses below 4 GiB. */
ENTRY(cuMemAlloc, (CUdeviceptr_v1 *pointer, unsigned int size))
{
    ENTER();
    if (pointer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr found;
    CUresult result = allocate(size, true, &found);
    if (result == CUDA_SUCCESS)
        *pointer = (CUdeviceptr_v1)found;
    return result;
}

static CUresult allocate_pitch(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element, bool low)
{
    if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    if (width > 1ull << 40 || height > 1ull << 40 || round_up(width, PITCH_STEP) > (1ull << 46) / height)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pitch = round_up(width, PITCH_STEP);
    return allocate(*pitch * height, low, pointer);
}

ENTRY(cuMemAllocPitch_v2, (CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element))
{
    ENTER();
    if (pointer == NULL || pitch == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate_pitch(pointer, pitch, width, height, element, false);
}

ENTRY(cuMemAllocPitch, (CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element))
{
    ENTER();
    if (pointer == NULL || pitch == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr found;
    size_t wide_pitch;
    CUresult result = allocate_pitch(&found, &wide_pitch, width, height, element, true);
    if (result == CUDA_SUCCESS) {
        *pointer = (CUdeviceptr_v1)found;
        *pitch = (unsigned int)wide_pitch;
    }
    return result;
}

ENTRY(cuMemFree_v2, (CUdeviceptr pointer))
{
    ENTER();
    return free_pointer(pointer);
}

ENTRY(cuMemFree, (CUdeviceptr_v1 pointer))
{
    ENTER();
    return free_pointer(pointer);
}

static CUresult memory_info(size_t *available, size_t *total)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    const struct fake_device *info = device_info(context->device);
    driver_lock();
    shares_settle();
    uint64_t used = store_used(context->card) + fault_hidden(info->uuid);
    driver_unlock();
    *total = info->memory;
    *available = used < info->memory ? info->memory - used : 0;
    return CUDA_SUCCESS;
}

ENTRY(cuMemGetInfo_v2, (size_t *available, size_t *total))
{
    ENTER();
    return available == NULL || total == NULL ? CUDA_ERROR_INVALID_VALUE : memory_info(available, total);
}

ENTRY(cuMemGetInfo, (unsigned int *available, unsigned int *total))
{
    ENTER();
    if (available == NULL || total == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    size_t wide_available, wide_total;
    CUresult result = memory_info(&wide_available, &wide_total);
    if (result == CUDA_SUCCESS) {
        *available = wide_available > UINT_MAX ? UINT_MAX : (unsigned int)wide_available;
        *total = wide_total > UINT_MAX ? UINT_MAX : (unsigned int)wide_total;
    }
    return result;
}
