/* Kinds of memory that are one call to take and one to give: linear, managed, stream-ordered, arrays, and what costs memory besides
 * (streams, contexts). Shapes are chosen so that a piece has about the size that was asked for. */
#include <string.h>

#include "probe.h"

CUresult current_device(CUdevice *device) { return CALL(cuCtxGetDevice, device); }

static CUresult take_alloc(struct piece *piece, size_t size) { return CALL(cuMemAlloc_v2, &piece->pointer, size); }

static CUresult give_pointer(struct piece *piece) { return CALL(cuMemFree_v2, piece->pointer); }

static CUresult take_pitch(struct piece *piece, size_t size) {
    const size_t width = 1000; /* a driver pads such a row */
    size_t pitch = 0;
    return CALL(cuMemAllocPitch_v2, &piece->pointer, &pitch, width, (size + width - 1) / width, 4);
}

static CUresult take_managed(struct piece *piece, size_t size) {
    return CALL(cuMemAllocManaged, &piece->pointer, size, CU_MEM_ATTACH_GLOBAL);
}

static CUresult take_async(struct piece *piece, size_t size) { return CALL(cuMemAllocAsync, &piece->pointer, size, piece->stream); }

static CUresult give_async(struct piece *piece) { return CALL(cuMemFreeAsync, piece->pointer, piece->stream); }

static CUresult take_pool(struct piece *piece, size_t size) {
    return CALL(cuMemAllocFromPoolAsync, &piece->pointer, size, piece->pool, piece->stream);
}

static CUresult take_array2d(struct piece *piece, size_t size) {
    const size_t row = 4096; /* 256 elements of four floats */
    size_t rows = (size + row - 1) / row;
    CUDA_ARRAY_DESCRIPTOR descriptor = {.Width = 256, .Height = rows, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    while (descriptor.Height > 32768) { /* the highest that every card takes */
        descriptor.Height = (descriptor.Height + 1) / 2;
        descriptor.Width *= 2;
    }
    CUarray array = NULL;
    CUresult result = CALL(cuArrayCreate_v2, &array, &descriptor);
    piece->object = array;
    return result;
}

static CUresult take_array3d(struct piece *piece, size_t size) {
    const size_t slice = 64 * 64 * 4;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {
        .Width = 64, .Height = 64, .Depth = (size + slice - 1) / slice, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    while (descriptor.Depth > 2048) {
        descriptor.Depth = (descriptor.Depth + 1) / 2;
        descriptor.Width *= 2;
    }
    CUarray array = NULL;
    CUresult result = CALL(cuArray3DCreate_v2, &array, &descriptor);
    piece->object = array;
    return result;
}

static CUresult give_array(struct piece *piece) { return CALL(cuArrayDestroy, piece->object); }

static CUresult take_mipmap(struct piece *piece, size_t size) {
    const size_t row = 1024 * 4;
    size_t rows = size * 3 / 4 / row; /* the smaller levels are a third of the largest */
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {
        .Width = 1024, .Height = rows < 16 ? 16 : rows, .Depth = 0, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    while (descriptor.Height > 32768) {
        descriptor.Height = (descriptor.Height + 1) / 2;
        descriptor.Width *= 2;
    }
    CUmipmappedArray array = NULL;
    CUresult result = CALL(cuMipmappedArrayCreate, &array, &descriptor, 4);
    piece->object = array;
    return result;
}

static CUresult give_mipmap(struct piece *piece) { return CALL(cuMipmappedArrayDestroy, piece->object); }

static CUresult take_stream(struct piece *piece, size_t size) {
    (void)size;
    CUstream stream = NULL;
    CUresult result = CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    piece->object = stream;
    return result;
}

static CUresult give_stream(struct piece *piece) { return CALL(cuStreamDestroy_v2, piece->object); }

static CUresult take_context(struct piece *piece, size_t size) {
    (void)size;
    CUdevice device = 0;
    CUresult result = current_device(&device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUcontext context = NULL, popped = NULL;
    result = CALL(cuCtxCreate_v2, &context, 0, device);
    if (result == CUDA_SUCCESS) {
        result = CALL(cuCtxPopCurrent_v2, &popped); /* making it made it current */
    }
    piece->object = context;
    return result;
}

static CUresult give_context(struct piece *piece) { return CALL(cuCtxDestroy_v2, piece->object); }

static CUresult take_host(struct piece *piece, size_t size) { return CALL(cuMemHostAlloc, &piece->object, size, 0); }

static CUresult give_host(struct piece *piece) { return CALL(cuMemFreeHost, piece->object); }

const struct kind linear_kinds[] = {
    {"alloc", take_alloc, give_pointer},
    {"pitch", take_pitch, give_pointer},
    {"managed", take_managed, give_pointer},
    {"async", take_async, give_async},
    {"pool", take_pool, give_async},
    {"array2d", take_array2d, give_array},
    {"array3d", take_array3d, give_array},
    {"mipmap", take_mipmap, give_mipmap},
    {"stream", take_stream, give_stream},
    {"context", take_context, give_context},
    {"host", take_host, give_host},
    {NULL, NULL, NULL},
};

static const struct kind *kind_named(const char *name, size_t length) {
    static const struct kind *const tables[] = {linear_kinds, vmm_kinds, graph_kinds};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        for (const struct kind *kind = tables[i]; kind->name != NULL; kind++) {
            if (strlen(kind->name) == length && strncmp(kind->name, name, length) == 0) {
                return kind;
            }
        }
    }
    return NULL;
}

bool piece_prepare(struct piece *piece, const char *kind) {
    memset(piece, 0, sizeof *piece);
    const char *colon = strchr(kind, ':');
    piece->kind = kind_named(kind, colon != NULL ? (size_t)(colon - kind) : strlen(kind));
    if (piece->kind == NULL) {
        return false;
    }
    if (strcmp(piece->kind->name, "pool") == 0) {
        const struct thing *pool = colon != NULL ? thing_find(THING_POOL, colon + 1) : NULL;
        if (pool == NULL) {
            return false;
        }
        piece->pool = pool->object;
        return true;
    }
    return stream_named(colon != NULL ? colon + 1 : NULL, &piece->stream);
}

CUresult piece_take(struct piece *piece, size_t size) {
    piece->size = size;
    return piece->kind->take(piece, size);
}

CUresult piece_give(struct piece *piece) { return piece->kind->give(piece); }
