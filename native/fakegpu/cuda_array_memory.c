/* What arrays cost. The card keeps them in tiles, so they are larger than width x height x bytes: rows of 512 bytes, in groups of as many
 * as the next power of two, from 8 to 128; for volumes groups of 8 rows and 8 slices. Levels of a mipmap lie one behind the other, and the
 * whole is a multiple of 64 KiB. More than 1 MiB is whole 2 MiB pages; smaller ones share pages with others of the same size.
 */
#include <stdlib.h>

#include "cuda_array.h"

#define ROW_STEP 512u
#define TILE_ROWS 8u
#define MOST_TILE_ROWS 128u
#define TILE_SLICES 8u
#define ARRAY_STEP (64u << 10)
#define LARGEST_SIDE (1ull << 20)

static unsigned int format_bytes(int format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static uint64_t tiled_rows(uint64_t height)
{
    uint64_t group = TILE_ROWS;
    while (group < height && group < MOST_TILE_ROWS)
        group *= 2;
    return round_up(height, group);
}

uint64_t array_level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    unsigned int channels = descriptor->NumChannels;
    uint64_t element = (uint64_t)format_bytes(descriptor->Format) * channels;
    if (element == 0 || (channels != 1 && channels != 2 && channels != 4) || descriptor->Width == 0 ||
        descriptor->Width > LARGEST_SIDE || descriptor->Height > LARGEST_SIDE || descriptor->Depth > LARGEST_SIDE)
        return 0;
    bool layers = (descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    uint64_t row = round_up(descriptor->Width * element, ROW_STEP);
    bool volume = descriptor->Depth != 0 && !layers;
    uint64_t rows = descriptor->Height == 0 ? 1 : volume ? round_up(descriptor->Height, TILE_ROWS) : tiled_rows(descriptor->Height);
    uint64_t slices = descriptor->Depth == 0 ? 1 : layers ? descriptor->Depth : round_up(descriptor->Depth, TILE_SLICES);
    return row * rows * slices;
}

uint64_t array_bytes(uint64_t levels)
{
    return round_up(levels, ARRAY_STEP);
}

static struct array_page *page_with_room(CUcontext context, uint64_t each)
{
    for (struct array_page *page = context->array_pages; page != NULL; page = page->next)
        if (page->each == each && page->used < page->capacity)
            return page;
    if (context_take(context, FAKE_PAGE) != CUDA_SUCCESS)
        return NULL;
    struct array_page *page = calloc(1, sizeof *page);
    if (page == NULL) {
        context_give(context, FAKE_PAGE);
        return NULL;
    }
    page->each = each;
    page->capacity = (unsigned int)(FAKE_PAGE / each);
    page->next = context->array_pages;
    context->array_pages = page;
    return page;
}

CUresult array_memory_take(struct array_memory *memory, CUcontext context, uint64_t bytes, unsigned int flags)
{
    *memory = (struct array_memory){.context = context, .needed = bytes};
    memory->deferred = (flags & (CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_SPARSE)) != 0;
    if (memory->deferred)
        return CUDA_SUCCESS;
    if (bytes <= FAKE_MIB) {
        memory->page = page_with_room(context, bytes);
        if (memory->page == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memory->page->used++;
        return CUDA_SUCCESS;
    }
    CUresult result = context_take(context, round_up(bytes, FAKE_PAGE));
    if (result == CUDA_SUCCESS)
        memory->charged = round_up(bytes, FAKE_PAGE);
    return result;
}

void array_memory_give(struct array_memory *memory)
{
    array_mappings_drop(memory);
    context_give(memory->context, memory->charged);
    memory->charged = 0;
    struct array_page *page = memory->page;
    memory->page = NULL;
    if (page == NULL || --page->used > 0)
        return;
    struct array_page **link = &memory->context->array_pages;
    while (*link != page)
        link = &(*link)->next;
    *link = page->next;
    free(page);
    context_give(memory->context, FAKE_PAGE);
}
