/* Copies and fills. They happen at once, in the caller's thread; only their time is put on the stream.
 *
 * Of what is written in pieces of at most 16 MiB the bytes are kept, of larger pieces only the first 64 KiB: the host has not as much
 * memory as the card. A program that checks all that it copied must do it in small pieces.
 */
#include <string.h>

#include "cuda_linear.h"

#define KEPT_SIZE (16 * FAKE_MIB)
#define KEPT_OF_LARGER (64u << 10)
#define LAUNCH_NS 1000u
#define HOST_BYTES_PER_NS 50u
#define CARD_BYTES_PER_NS 2000u

struct side {
    bool on_device;
    size_t kept; /* bytes, from the first on */
    void *address;
};

/* (locked) An address is the device's if it lies in one of our regions, else the host's. */
static CUresult side_of(struct side *side, CUdeviceptr address, size_t size, bool must_be_known)
{
    struct extent extent;
    side->address = (void *)(uintptr_t)address;
    side->on_device = region_find(address) != NULL;
    side->kept = size;
    if (!side->on_device)
        return must_be_known && address >> 12 == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (!extent_find(address, &extent) || size > extent.start + extent.size - address)
        return CUDA_ERROR_INVALID_VALUE;
    side->kept = size <= KEPT_SIZE ? size : KEPT_OF_LARGER;
    return CUDA_SUCCESS;
}

/* (locked) Managed memory comes to the card that works on it. */
static void touch(const struct side *side, CUcontext context)
{
    if (side->on_device)
        managed_move(region_find((uintptr_t)side->address), context->device);
}

struct order {
    CUstream stream;
    bool per_thread, asynchronous;
};

static CUresult finish(const struct order *order, uint64_t cost)
{
    CUresult result = stream_add_work(order->stream, order->per_thread, LAUNCH_NS + cost);
    if (result == CUDA_SUCCESS && !order->asynchronous)
        result = stream_wait(order->stream, order->per_thread);
    return result;
}

static CUresult copy(CUdeviceptr target, CUdeviceptr source, size_t size, struct order order)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || size == 0)
        return result;
    struct side to, from;
    driver_lock();
    result = side_of(&to, target, size, true);
    if (result == CUDA_SUCCESS)
        result = side_of(&from, source, size, true);
    if (result == CUDA_SUCCESS) {
        touch(&to, context);
        touch(&from, context);
    }
    driver_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    if (order.asynchronous && capture_active(order.stream, order.per_thread))
        return capture_work(CU_GRAPH_NODE_TYPE_MEMCPY, order.stream, order.per_thread);
    size_t kept = to.kept < from.kept ? to.kept : from.kept;
    memmove(to.address, from.address, kept);
    if (to.kept > kept)
        memset((char *)to.address + kept, 0, to.kept - kept);
    return finish(&order, size / (to.on_device && from.on_device ? CARD_BYTES_PER_NS : HOST_BYTES_PER_NS));
}

static CUresult fill(CUdeviceptr target, const void *pattern, size_t width, size_t pitch, size_t columns, size_t rows, struct order order)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || columns == 0 || rows == 0)
        return result;
    if (target % width != 0 || (rows > 1 && pitch < columns * width))
        return CUDA_ERROR_INVALID_VALUE;
    struct side to;
    driver_lock();
    result = side_of(&to, target, (rows - 1) * pitch + columns * width, true);
    if (result == CUDA_SUCCESS)
        touch(&to, context);
    driver_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    if (order.asynchronous && capture_active(order.stream, order.per_thread))
        return capture_work(CU_GRAPH_NODE_TYPE_MEMSET, order.stream, order.per_thread);
    for (size_t row = 0; row < rows && row * pitch < to.kept; row++) {
        char *start = (char *)to.address + row * pitch;
        size_t room = (to.kept - row * pitch) / width;
        size_t count = columns < room ? columns : room;
        if (width == 1)
            memset(start, *(const unsigned char *)pattern, count);
        else
            for (size_t column = 0; column < count; column++)
                memcpy(start + column * width, pattern, width);
    }
    return finish(&order, columns * rows * width / CARD_BYTES_PER_NS);
}

#define WAITING(per_thread_) ((struct order){NULL, per_thread_, false})
#define ORDERED(stream_, per_thread_) ((struct order){stream_, per_thread_, true})

/* A copy that waits (its twin for per-thread default streams ends in _ptds) and one in a stream's order (_ptsz). */
#define COPY(name, params, target, source)                                \
    ENTRY(name, params)                                                   \
    {                                                                     \
        ENTER();                                                          \
        return copy(target, source, size, WAITING(false));                \
    }                                                                     \
    ENTRY(name##_ptds, params)                                            \
    {                                                                     \
        ENTER();                                                          \
        return copy(target, source, size, WAITING(true));                 \
    }
#define COPY_ASYNC(name, params, target, source)                          \
    ENTRY(name, params)                                                   \
    {                                                                     \
        ENTER();                                                          \
        return copy(target, source, size, ORDERED(stream, false));        \
    }                                                                     \
    ENTRY(name##_ptsz, params)                                            \
    {                                                                     \
        ENTER();                                                          \
        return copy(target, source, size, ORDERED(stream, true));         \
    }
/* From before CUDA 3.2, with 32-bit pointers: no twin. */
#define COPY_V1(name, params, target, source, order)                      \
    ENTRY(name, params)                                                   \
    {                                                                     \
        ENTER();                                                          \
        return copy(target, source, size, order);                         \
    }

COPY(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t size), to, from)
COPY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t size), to, (uintptr_t)from)
COPY(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t size), (uintptr_t)to, from)
COPY(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t size), to, from)
COPY_ASYNC(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream), to, from)
COPY_ASYNC(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUstream stream), to, (uintptr_t)from)
COPY_ASYNC(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size, CUstream stream), (uintptr_t)to, from)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream), to, from)

COPY_V1(cuMemcpyHtoD, (CUdeviceptr_v1 to, const void *from, unsigned int size), to, (uintptr_t)from, WAITING(false))
COPY_V1(cuMemcpyDtoH, (void *to, CUdeviceptr_v1 from, unsigned int size), (uintptr_t)to, from, WAITING(false))
COPY_V1(cuMemcpyDtoD, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int size), to, from, WAITING(false))
COPY_V1(cuMemcpyHtoDAsync, (CUdeviceptr_v1 to, const void *from, unsigned int size, CUstream stream), to, (uintptr_t)from,
        ORDERED(stream, false))
COPY_V1(cuMemcpyDtoHAsync, (void *to, CUdeviceptr_v1 from, unsigned int size, CUstream stream), (uintptr_t)to, from,
        ORDERED(stream, false))
COPY_V1(cuMemcpyDtoDAsync, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int size, CUstream stream), to, from,
        ORDERED(stream, false))

#define FILL(bits, type)                                                                                                        \
    ENTRY(cuMemsetD##bits##_v2, (CUdeviceptr to, type value, size_t count))                                                     \
    {                                                                                                                           \
        ENTER();                                                                                                                \
        return fill(to, &value, sizeof value, 0, count, 1, WAITING(false));                                                     \
    }                                                                                                                           \
    ENTRY(cuMemsetD##bits##_v2_ptds, (CUdeviceptr to, type value, size_t count))                                                \
    {                                                                                                                           \
        ENTER();                                                                                                                \
        return fill(to, &value, sizeof value, 0, count, 1, WAITING(true));                                                      \
    }                                                                                                                           \
    ENTRY(cuMemsetD##bits, (CUdeviceptr_v1 to, type value, unsigned int count))                                                 \
    {                                                                                                                           \
        ENTER();                                                                                                                \
        return fill(to, &value, sizeof value, 0, count, 1, WAITING(false));                                                     \
    }                                                                                                                           \
    ENTRY(cuMemsetD##bits##Async, (CUdeviceptr to, type value, size_t count, CUstream stream))                                  \
    {                                                                                                                           \
        ENTER();                                                                                                                \
        return fill(to, &value, sizeof value, 0, count, 1, ORDERED(stream, false));                                             \
    }                                                                                                                           \
    ENTRY(cuMemsetD##bits##Async_ptsz, (CUdeviceptr to, type value, size_t count, CUstream stream))                             \
    {                                                                                                                           \
        ENTER();                                                                                                                \
        return fill(to, &value, sizeof value, 0, count, 1, ORDERED(stream, true));                                              \
    }                                                                                                                           \
    ENTRY(cuMemsetD2D##bits##_v2, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height))                      \
    {                                                                                                                           \
        ENTER();                                                                                                                \
        return fill(to, &value, sizeof value, pitch, width, height, WAITING(false));                                            \
    }                                                                                                                           \
    ENTRY(cuMemsetD2D##bits##_v2_ptds, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height))                 \
    {                                                                                                                           \
        ENTER();                                                                                                                \
        return fill(to, &value, sizeof value, pitch, width, height, WAITING(true));                                             \
    }                                                                                                                           \
    ENTRY(cuMemsetD2D##bits, (CUdeviceptr_v1 to, unsigned int pitch, type value, unsigned int width, unsigned int height))      \
    {                                                                                                                           \
        ENTER();                                                                                                                \
        return fill(to, &value, sizeof value, pitch, width, height, WAITING(false));                                            \
    }                                                                                                                           \
    ENTRY(cuMemsetD2D##bits##Async, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream))   \
    {                                                                                                                           \
        ENTER();                                                                                                                \
        return fill(to, &value, sizeof value, pitch, width, height, ORDERED(stream, false));                                    \
    }                                                                                                                           \
    ENTRY(cuMemsetD2D##bits##Async_ptsz,                                                                                        \
          (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream))                             \
    {                                                                                                                           \
        ENTER();                                                                                                                \
        return fill(to, &value, sizeof value, pitch, width, height, ORDERED(stream, true));                                     \
    }

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
