/* Pinned host memory: plain memory of the process, on no card's account. */
#include "cuda_host.h"

#include <stdlib.h>

static struct host_memory *known;

const struct host_memory *host_find(const void *address)
{
    const char *byte = address;
    for (const struct host_memory *memory = known; memory != NULL; memory = memory->next)
        if (byte >= memory->start && byte < memory->start + memory->size)
            return memory;
    return NULL;
}

static CUresult add(void *start, size_t size, unsigned int flags, bool registered, CUcontext context)
{
    struct host_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = (struct host_memory){known, start, size, flags, registered, context};
    known = memory;
    return CUDA_SUCCESS;
}

static CUresult allocate(void **pointer, size_t size, unsigned int flags)
{
    if (pointer == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS)
        result = capture_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    void *memory;
    if (posix_memalign(&memory, 4096, size) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    result = add(memory, size, flags, false, context);
    driver_unlock();
    if (result == CUDA_SUCCESS)
        *pointer = memory;
    else
        free(memory);
    return result;
}

static CUresult drop(const void *pointer, bool registered)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    for (struct host_memory **link = &known; *link != NULL; link = &(*link)->next) {
        struct host_memory *memory = *link;
        if (memory->start != pointer || memory->registered != registered)
            continue;
        *link = memory->next;
        if (!registered)
            free(memory->start);
        free(memory);
        result = CUDA_SUCCESS;
        break;
    }
    driver_unlock();
    return result;
}

void host_context_gone(CUcontext context)
{
    for (struct host_memory **link = &known; *link != NULL;) {
        struct host_memory *memory = *link;
        if (memory->context != context) {
            link = &memory->next;
            continue;
        }
        *link = memory->next;
        if (!memory->registered)
            free(memory->start);
        free(memory);
    }
}

ENTRY(cuMemAllocHost_v2, (void **pointer, size_t size))
{
    ENTER();
    return allocate(pointer, size, 0);
}

ENTRY(cuMemAllocHost, (void **pointer, unsigned int size))
{
    ENTER();
    return allocate(pointer, size, 0);
}

ENTRY(cuMemHostAlloc, (void **pointer, size_t size, unsigned int flags))
{
    ENTER();
    return allocate(pointer, size, flags);
}

ENTRY(cuMemFreeHost, (void *pointer))
{
    ENTER();
    return drop(pointer, false);
}

static CUresult register_memory(void *pointer, size_t size, unsigned int flags)
{
    if (pointer == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    result = host_find(pointer) != NULL ? 712 /* already registered */ : add(pointer, size, flags, true, context);
    driver_unlock();
    return result;
}

ENTRY(cuMemHostRegister_v2, (void *pointer, size_t size, unsigned int flags))
{
    ENTER();
    return register_memory(pointer, size, flags);
}

ENTRY(cuMemHostRegister, (void *pointer, size_t size, unsigned int flags))
{
    ENTER();
    return register_memory(pointer, size, flags);
}

ENTRY(cuMemHostUnregister, (void *pointer))
{
    ENTER();
    return drop(pointer, true) == CUDA_SUCCESS ? CUDA_SUCCESS : 713 /* not registered */;
}

static CUresult device_pointer(CUdeviceptr *found_pointer, const void *pointer)
{
    driver_lock();
    bool found = host_find(pointer) != NULL;
    driver_unlock();
    if (!found || found_pointer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *found_pointer = (uintptr_t)pointer;
    return CUDA_SUCCESS;
}

ENTRY(cuMemHostGetDevicePointer_v2, (CUdeviceptr *pointer_on_device, void *pointer, unsigned int flags))
{
    ENTER();
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : device_pointer(pointer_on_device, pointer);
}

/* 32 bits cannot say where host memory is. */
ENTRY(cuMemHostGetDevicePointer, (CUdeviceptr_v1 *pointer_on_device, void *pointer, unsigned int flags))
{
    ENTER();
    CUdeviceptr found;
    CUresult result = flags != 0 || pointer_on_device == NULL ? CUDA_ERROR_INVALID_VALUE : device_pointer(&found, pointer);
    if (result == CUDA_SUCCESS && found >> 32 != 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *pointer_on_device = (CUdeviceptr_v1)found;
    return result;
}

ENTRY(cuMemHostGetFlags, (unsigned int *flags, void *pointer))
{
    ENTER();
    driver_lock();
    const struct host_memory *memory = host_find(pointer);
    if (memory != NULL && flags != NULL)
        *flags = memory->flags;
    driver_unlock();
    return memory != NULL && flags != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
