/* What functions and kernels say of themselves: attributes, names, loading state, occupancy. */
#include "cuda_kernel.h"

#define BLOCKS_PER_SM 32
#define SHARED_PER_SM (228u << 10)
#define SHARED_PER_BLOCK (48u << 10)
#define RESERVED_PER_BLOCK (1u << 10)
#define WARP 32

/* (locked) */
static CUresult attribute(int *value, int which, const struct ptx_kernel *kernel, const int *set, const struct fake_device *device) {
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)kernel->shared;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int)kernel->local;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 16;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = device->major * 10 + device->minor;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = set != NULL && set[which] != 0 ? set[which] : (int)SHARED_PER_BLOCK - (int)kernel->shared;
        return CUDA_SUCCESS;
    default:
        if (which < 0 || which >= CU_FUNC_ATTRIBUTE_MAX) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *value = set == NULL ? 0 : set[which];
        return CUDA_SUCCESS;
    }
}

/* Finds the function behind a handle from the caller. On success driver_lock() is held. */
static CUresult lock_function(const void *handle, CUfunction *function) {
    CUcontext context = NULL;
    bool has_context = context_current(&context) == CUDA_SUCCESS;
    driver_lock();
    CUresult result = CUDA_ERROR_INVALID_CONTEXT; /* a kernel is a function only in a context */
    if (has_context || object_is(handle, OBJECT_FUNCTION)) {
        result = function_find(handle, context, function);
    }
    if (result != CUDA_SUCCESS) {
        driver_unlock();
    }
    return result;
}

ENTRY(cuFuncGetAttribute, (int *value, int which, CUfunction handle)) {
    ENTER();
    CUfunction function;
    if (value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = lock_function(handle, &function);
    if (result == CUDA_SUCCESS) {
        result = attribute(value, which, function->kernel, function->set_attributes, device_info(function->module->context->device));
        driver_unlock();
    }
    return result;
}

ENTRY(cuFuncSetAttribute, (CUfunction handle, int which, int value)) {
    ENTER();
    CUfunction function;
    if (which < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || which >= CU_FUNC_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = lock_function(handle, &function);
    if (result == CUDA_SUCCESS) {
        function->set_attributes[which] = value;
        driver_unlock();
    }
    return result;
}

ENTRY(cuFuncSetCacheConfig, (CUfunction handle, int config)) {
    ENTER();
    (void)config;
    CUfunction function;
    CUresult result = lock_function(handle, &function);
    if (result == CUDA_SUCCESS) {
        driver_unlock();
    }
    return result;
}

ENTRY(cuFuncGetName, (const char **name, CUfunction handle)) {
    ENTER();
    CUfunction function;
    if (name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = lock_function(handle, &function);
    if (result == CUDA_SUCCESS) {
        *name = function->kernel->name;
        driver_unlock();
    }
    return result;
}

ENTRY(cuFuncGetModule, (CUmodule * module, CUfunction handle)) {
    ENTER();
    CUfunction function;
    if (module == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = lock_function(handle, &function);
    if (result == CUDA_SUCCESS) {
        *module = function->module;
        driver_unlock();
    }
    return result;
}

ENTRY(cuFuncIsLoaded, (int *state, CUfunction handle)) {
    ENTER();
    CUfunction function;
    if (state == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = lock_function(handle, &function);
    if (result == CUDA_SUCCESS) {
        *state = function->module->loaded ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
        driver_unlock();
    }
    return result;
}

ENTRY(cuFuncLoad, (CUfunction handle)) {
    ENTER();
    CUfunction function;
    CUresult result = lock_function(handle, &function);
    if (result == CUDA_SUCCESS) {
        result = module_load_code(function->module);
        driver_unlock();
    }
    return result;
}

ENTRY(cuKernelGetAttribute, (int *value, int which, CUkernel kernel, CUdevice device)) {
    ENTER();
    if (value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    driver_lock();
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (object_is(kernel, OBJECT_KERNEL)) {
        result = attribute(value, which, &kernel->library->image->ptx.kernels[kernel->index], NULL, device_info(device));
    }
    driver_unlock();
    return result;
}

ENTRY(cuKernelGetName, (const char **name, CUkernel kernel)) {
    ENTER();
    if (name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    bool known = object_is(kernel, OBJECT_KERNEL);
    if (known) {
        *name = kernel->library->image->ptx.kernels[kernel->index].name;
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- occupancy: by threads and shared memory alone ---- */

/* (locked) */
static int blocks_per_sm(CUfunction function, int block, size_t dynamic_shared) {
    const struct fake_device *device = device_info(function->module->context->device);
    int by_threads = device->threads / (int)round_up((uint64_t)block, WARP);
    int by_shared = (int)(SHARED_PER_SM / (function->kernel->shared + dynamic_shared + RESERVED_PER_BLOCK));
    int blocks = by_threads < by_shared ? by_threads : by_shared;
    return blocks < BLOCKS_PER_SM ? blocks : BLOCKS_PER_SM;
}

static CUresult active_blocks(int *blocks, CUfunction handle, int block, size_t dynamic_shared) {
    CUfunction function;
    if (blocks == NULL || block <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = lock_function(handle, &function);
    if (result == CUDA_SUCCESS) {
        *blocks = blocks_per_sm(function, block, dynamic_shared);
        driver_unlock();
    }
    return result;
}

ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, CUfunction function, int block, size_t dynamic_shared)) {
    ENTER();
    return active_blocks(blocks, function, block, dynamic_shared);
}

ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
      (int *blocks, CUfunction function, int block, size_t dynamic_shared, unsigned int flags)) {
    ENTER();
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : active_blocks(blocks, function, block, dynamic_shared);
}

/* The largest block, and a grid that fills the card with it. */
static CUresult best_block(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize shared_of, size_t dynamic_shared, int limit) {
    CUfunction function;
    if (grid == NULL || block == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int size = limit > 0 && limit < 1024 ? limit : 1024;
    size_t shared = shared_of != NULL ? shared_of(size) : dynamic_shared; /* the caller's code: not under our lock */
    CUresult result = lock_function(handle, &function);
    if (result == CUDA_SUCCESS) {
        *block = size;
        *grid = blocks_per_sm(function, size, shared) * device_info(function->module->context->device)->sms;
        driver_unlock();
    }
    return result;
}

ENTRY(cuOccupancyMaxPotentialBlockSize,
      (int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of, size_t dynamic_shared, int limit)) {
    ENTER();
    return best_block(grid, block, function, shared_of, dynamic_shared, limit);
}

ENTRY(cuOccupancyMaxPotentialBlockSizeWithFlags,
      (int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of, size_t dynamic_shared, int limit, unsigned int flags)) {
    ENTER();
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : best_block(grid, block, function, shared_of, dynamic_shared, limit);
}

ENTRY(cuOccupancyAvailableDynamicSMemPerBlock, (size_t *bytes, CUfunction handle, int blocks, int block)) {
    ENTER();
    CUfunction function;
    if (bytes == NULL || blocks <= 0 || block <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = lock_function(handle, &function);
    if (result == CUDA_SUCCESS) {
        uint64_t share = SHARED_PER_SM / (unsigned int)blocks, taken = function->kernel->shared + RESERVED_PER_BLOCK;
        *bytes = share > taken ? share - taken : 0;
        driver_unlock();
    }
    return result;
}
