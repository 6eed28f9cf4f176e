/* The entry points of modules. */
#include <string.h>

#include "cuda_module.h"

/* Reads the image in data, or in the file if there is a path, into a module of the current context. */
static CUresult load(CUmodule *module, const void *data, const char *path) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (module == NULL || (data == NULL && path == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    struct image *image = path != NULL ? image_read_file(path, &result) : image_read(data, &result);
    if (image != NULL) {
        result = module_make(module, context, image, NULL);
        image_release(image);
    }
    driver_unlock();
    return result;
}

ENTRY(cuModuleLoad, (CUmodule * module, const char *path)) {
    ENTER();
    return load(module, NULL, path);
}

ENTRY(cuModuleLoadData, (CUmodule * module, const void *image)) {
    ENTER();
    return load(module, image, NULL);
}

ENTRY(cuModuleLoadDataEx, (CUmodule * module, const void *image, unsigned int count, int *options, void **values)) {
    ENTER();
    (void)count, (void)options, (void)values; /* there is no compiler to steer */
    return load(module, image, NULL);
}

ENTRY(cuModuleLoadFatBinary, (CUmodule * module, const void *image)) {
    ENTER();
    return load(module, image, NULL);
}

ENTRY(cuModuleUnload, (CUmodule module)) {
    ENTER();
    driver_lock();
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (object_is(module, OBJECT_MODULE) && module->library == NULL) {
        module_drop(module);
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

ENTRY(cuModuleGetLoadingMode, (int *mode)) {
    ENTER();
    if (mode == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *mode = modules_load_eagerly() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

ENTRY(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name)) {
    ENTER();
    if (function == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    CUresult result = object_is(module, OBJECT_MODULE) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
    for (unsigned int i = 0; result == CUDA_ERROR_NOT_FOUND && i < module->image->ptx.kernel_count; i++) {
        if (strcmp(module->functions[i]->kernel->name, name) == 0) {
            *function = module->functions[i];
            result = CUDA_SUCCESS;
        }
    }
    driver_unlock();
    return result;
}

ENTRY(cuModuleGetFunctionCount, (unsigned int *count, CUmodule module)) {
    ENTER();
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (object_is(module, OBJECT_MODULE)) {
        *count = module->image->ptx.kernel_count;
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

ENTRY(cuModuleEnumerateFunctions, (CUfunction * functions, unsigned int count, CUmodule module)) {
    ENTER();
    if (functions == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (object_is(module, OBJECT_MODULE)) {
        for (unsigned int i = 0; i < count && i < module->image->ptx.kernel_count; i++) {
            functions[i] = module->functions[i];
        }
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

static CUresult get_global(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
    if (name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (object_is(module, OBJECT_MODULE)) {
        result = module_variable(module, name, address, bytes);
    }
    driver_unlock();
    return result;
}

ENTRY(cuModuleGetGlobal_v2, (CUdeviceptr * address, size_t *bytes, CUmodule module, const char *name)) {
    ENTER();
    return get_global(address, bytes, module, name);
}

ENTRY(cuModuleGetGlobal, (CUdeviceptr_v1 * address, unsigned int *bytes, CUmodule module, const char *name)) {
    ENTER();
    CUdeviceptr wide_address;
    size_t wide_bytes;
    CUresult result = get_global(&wide_address, &wide_bytes, module, name);
    if (result == CUDA_SUCCESS && address != NULL) {
        *address = (CUdeviceptr_v1)wide_address;
    }
    if (result == CUDA_SUCCESS && bytes != NULL) {
        *bytes = (unsigned int)wide_bytes;
    }
    return result;
}
