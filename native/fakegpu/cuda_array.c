/* Arrays and mipmaps as programs make them. They hold no bytes. */
#include "cuda_array.h"

#include <stdlib.h>

struct descriptor_v1 { /* of the entry points from before CUDA 3.2 */
    unsigned int width, height;
    int format;
    unsigned int channels;
};

struct descriptor3d_v1 {
    unsigned int width, height, depth;
    int format;
    unsigned int channels, flags;
};

static CUresult create(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t bytes = array_bytes(array_level_bytes(descriptor));
    if (array == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = capture_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    CUarray made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->descriptor = *descriptor;
    driver_lock();
    result = array_memory_take(&made->memory, context, bytes, descriptor->Flags);
    if (result == CUDA_SUCCESS) {
        made->next = context->arrays;
        context->arrays = made;
        *array = made;
    }
    driver_unlock();
    if (result != CUDA_SUCCESS)
        free(made);
    return result;
}

ENTRY(cuArray3DCreate_v2, (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor))
{
    ENTER();
    return descriptor == NULL ? CUDA_ERROR_INVALID_VALUE : create(array, descriptor);
}

ENTRY(cuArrayCreate_v2, (CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor))
{
    ENTER();
    if (descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = descriptor->Width,
                                    .Height = descriptor->Height,
                                    .Format = descriptor->Format,
                                    .NumChannels = descriptor->NumChannels};
    return create(array, &wide);
}

ENTRY(cuArrayCreate, (CUarray *array, const void *descriptor))
{
    ENTER();
    const struct descriptor_v1 *old = descriptor;
    if (old == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = old->width, .Height = old->height, .Format = old->format, .NumChannels = old->channels};
    return create(array, &wide);
}

ENTRY(cuArray3DCreate, (CUarray *array, const void *descriptor))
{
    ENTER();
    const struct descriptor3d_v1 *old = descriptor;
    if (old == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = old->width,
                                    .Height = old->height,
                                    .Depth = old->depth,
                                    .Format = old->format,
                                    .NumChannels = old->channels,
                                    .Flags = old->flags};
    return create(array, &wide);
}

/* ---- finding: handles are checked, because a test may destroy one twice ---- */

CUarray array_find(CUarray array)
{
    CUcontext context = NULL;
    if (context_current(&context) != CUDA_SUCCESS)
        return NULL;
    driver_lock();
    CUarray found = context->arrays;
    while (found != NULL && found != array)
        found = found->next;
    for (CUmipmappedArray mipmap = context->mipmaps; found == NULL && mipmap != NULL; mipmap = mipmap->next)
        for (unsigned int level = 0; level < mipmap->level_count; level++)
            if (array != NULL && mipmap->levels[level] == array)
                found = array;
    driver_unlock();
    return found;
}

CUmipmappedArray mipmap_find(CUmipmappedArray mipmap)
{
    CUcontext context = NULL;
    if (context_current(&context) != CUDA_SUCCESS)
        return NULL;
    driver_lock();
    CUmipmappedArray found = context->mipmaps;
    while (found != NULL && found != mipmap)
        found = found->next;
    driver_unlock();
    return found;
}

static void mipmap_free(CUmipmappedArray mipmap)
{
    array_memory_give(&mipmap->memory);
    for (unsigned int level = 0; level < mipmap->level_count; level++)
        free(mipmap->levels[level]);
    free(mipmap);
}

void arrays_context_gone(CUcontext context)
{
    while (context->arrays != NULL) {
        CUarray array = context->arrays;
        context->arrays = array->next;
        array_memory_give(&array->memory);
        free(array);
    }
    while (context->mipmaps != NULL) {
        CUmipmappedArray mipmap = context->mipmaps;
        context->mipmaps = mipmap->next;
        mipmap_free(mipmap);
    }
}

ENTRY(cuArrayDestroy, (CUarray array))
{
    ENTER();
    CUarray found = array_find(array);
    if (found == NULL || found->of_mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    CUarray *link = &found->memory.context->arrays;
    while (*link != found)
        link = &(*link)->next;
    *link = found->next;
    array_memory_give(&found->memory);
    driver_unlock();
    free(found);
    return CUDA_SUCCESS;
}

/* ---- descriptors and sizes ---- */

ENTRY(cuArray3DGetDescriptor_v2, (CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array))
{
    ENTER();
    CUarray found = array_find(array);
    if (found == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *descriptor = found->descriptor;
    return CUDA_SUCCESS;
}

ENTRY(cuArrayGetDescriptor_v2, (CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array))
{
    ENTER();
    CUarray found = array_find(array);
    if (found == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *descriptor = (CUDA_ARRAY_DESCRIPTOR){found->descriptor.Width, found->descriptor.Height, found->descriptor.Format,
                                          found->descriptor.NumChannels};
    return CUDA_SUCCESS;
}

ENTRY(cuArray3DGetDescriptor, (void *descriptor, CUarray array))
{
    ENTER();
    CUarray found = array_find(array);
    if (found == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR *is = &found->descriptor;
    *(struct descriptor3d_v1 *)descriptor = (struct descriptor3d_v1){
        (unsigned int)is->Width, (unsigned int)is->Height, (unsigned int)is->Depth, is->Format, is->NumChannels, is->Flags};
    return CUDA_SUCCESS;
}

ENTRY(cuArrayGetDescriptor, (void *descriptor, CUarray array))
{
    ENTER();
    CUarray found = array_find(array);
    if (found == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR *is = &found->descriptor;
    *(struct descriptor_v1 *)descriptor =
        (struct descriptor_v1){(unsigned int)is->Width, (unsigned int)is->Height, is->Format, is->NumChannels};
    return CUDA_SUCCESS;
}

/* Only for arrays that the program maps itself, as with the real driver. */
static CUresult requirements_of(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, const struct array_memory *memory, CUdevice device)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (requirements == NULL || !memory->deferred)
        return CUDA_ERROR_INVALID_VALUE;
    *requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = memory->needed, .alignment = 64u << 10};
    return CUDA_SUCCESS;
}

ENTRY(cuArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array, CUdevice device))
{
    ENTER();
    CUarray found = array_find(array);
    return found == NULL ? CUDA_ERROR_INVALID_HANDLE : requirements_of(requirements, &found->memory, device);
}

ENTRY(cuMipmappedArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUmipmappedArray mipmap, CUdevice device))
{
    ENTER();
    CUmipmappedArray found = mipmap_find(mipmap);
    return found == NULL ? CUDA_ERROR_INVALID_HANDLE : requirements_of(requirements, &found->memory, device);
}

/* ---- mipmaps ---- */

static size_t halved(size_t side, unsigned int level)
{
    if (side == 0)
        return 0;
    return side >> level > 0 ? side >> level : 1;
}

static CUDA_ARRAY3D_DESCRIPTOR level_descriptor(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned int level)
{
    CUDA_ARRAY3D_DESCRIPTOR descriptor = *whole;
    descriptor.Width = halved(whole->Width, level);
    descriptor.Height = halved(whole->Height, level);
    if ((whole->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0)
        descriptor.Depth = halved(whole->Depth, level);
    return descriptor;
}

/* As many levels as it takes to come to one element, at most. */
static unsigned int levels_possible(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    size_t longest = descriptor->Width;
    if (descriptor->Height > longest)
        longest = descriptor->Height;
    if (descriptor->Depth > longest && (descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0)
        longest = descriptor->Depth;
    unsigned int levels = 1;
    while (longest >>= 1)
        levels++;
    return levels;
}

ENTRY(cuMipmappedArrayCreate, (CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels))
{
    ENTER();
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (mipmap == NULL || descriptor == NULL || levels == 0 || array_level_bytes(descriptor) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = capture_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    if (levels > levels_possible(descriptor))
        levels = levels_possible(descriptor);
    uint64_t bytes = 0;
    for (unsigned int level = 0; level < levels; level++) {
        CUDA_ARRAY3D_DESCRIPTOR smaller = level_descriptor(descriptor, level);
        bytes += array_level_bytes(&smaller);
    }
    CUmipmappedArray made = calloc(1, sizeof *made + levels * sizeof *made->levels);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->descriptor = *descriptor;
    made->level_count = levels;
    driver_lock();
    result = array_memory_take(&made->memory, context, array_bytes(bytes), descriptor->Flags);
    if (result == CUDA_SUCCESS) {
        made->next = context->mipmaps;
        context->mipmaps = made;
        *mipmap = made;
    }
    driver_unlock();
    if (result != CUDA_SUCCESS)
        free(made);
    return result;
}

ENTRY(cuMipmappedArrayGetLevel, (CUarray *array, CUmipmappedArray mipmap, unsigned int level))
{
    ENTER();
    CUmipmappedArray found = mipmap_find(mipmap);
    if (found == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (array == NULL || level >= found->level_count)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (found->levels[level] == NULL && (found->levels[level] = calloc(1, sizeof *found->levels[level])) != NULL) {
        found->levels[level]->descriptor = level_descriptor(&found->descriptor, level);
        found->levels[level]->of_mipmap = true;
    }
    *array = found->levels[level];
    driver_unlock();
    return *array != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ENTRY(cuMipmappedArrayDestroy, (CUmipmappedArray mipmap))
{
    ENTER();
    CUmipmappedArray found = mipmap_find(mipmap);
    if (found == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    CUmipmappedArray *link = &found->memory.context->mipmaps;
    while (*link != found)
        link = &(*link)->next;
    *link = found->next;
    mipmap_free(found);
    driver_unlock();
    return CUDA_SUCCESS;
}
