/* Libraries: images without a context, and their kernels. */
#include <stdlib.h>
#include <string.h>

#include "cuda_module.h"

static CUresult load(CUlibrary *made, const void *data, const char *path) {
    if (made == NULL || (data == NULL && path == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUcontext context = NULL;
    bool has_context = context_current(&context) == CUDA_SUCCESS;
    CUresult result;
    driver_lock();
    struct image *image = path != NULL ? image_read_file(path, &result) : image_read(data, &result);
    CUlibrary library = image == NULL ? NULL : object_make(OBJECT_LIBRARY, sizeof *library);
    if (library != NULL) {
        library->image = image;
        library->kernels = calloc(image->ptx.kernel_count + 1, sizeof(CUkernel));
    }
    bool complete = library != NULL && library->kernels != NULL;
    for (unsigned int i = 0; complete && i < image->ptx.kernel_count; i++) {
        CUkernel kernel = object_make(OBJECT_KERNEL, sizeof *kernel);
        if (kernel == NULL) {
            complete = false;
        } else {
            kernel->library = library;
            kernel->index = i;
            library->kernels[i] = kernel;
        }
    }
    if (image != NULL && !complete) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (complete) {
        *made = library;
        CUmodule module;
        if (has_context && modules_load_eagerly()) {
            result = library_module(library, context, &module);
        }
    }
    driver_unlock();
    return result;
}

ENTRY(cuLibraryLoadData, (CUlibrary * library, const void *code, int *jit_options, void **jit_values, unsigned int jit_count,
                          int *options, void **values, unsigned int count)) {
    ENTER();
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(library, code, NULL);
}

ENTRY(cuLibraryLoadFromFile, (CUlibrary * library, const char *path, int *jit_options, void **jit_values, unsigned int jit_count,
                              int *options, void **values, unsigned int count)) {
    ENTER();
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(library, NULL, path);
}

CUresult library_module(CUlibrary library, CUcontext context, CUmodule *module) {
    for (CUmodule known = library->modules; known != NULL; known = known->next_of_library) {
        if (known->context == context) {
            *module = known;
            return CUDA_SUCCESS;
        }
    }
    return module_make(module, context, library->image, library);
}

ENTRY(cuLibraryUnload, (CUlibrary library)) {
    ENTER();
    driver_lock();
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (object_is(library, OBJECT_LIBRARY)) {
        while (library->modules != NULL) {
            module_drop(library->modules);
        }
        for (unsigned int i = 0; library->kernels[i] != NULL; i++) {
            object_recycle(library->kernels[i]);
        }
        free(library->kernels);
        image_release(library->image);
        object_recycle(library);
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

ENTRY(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name)) {
    ENTER();
    if (kernel == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    CUresult result = object_is(library, OBJECT_LIBRARY) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
    for (unsigned int i = 0; result == CUDA_ERROR_NOT_FOUND && i < library->image->ptx.kernel_count; i++) {
        if (strcmp(library->image->ptx.kernels[i].name, name) == 0) {
            *kernel = library->kernels[i];
            result = CUDA_SUCCESS;
        }
    }
    driver_unlock();
    return result;
}

ENTRY(cuLibraryGetKernelCount, (unsigned int *count, CUlibrary library)) {
    ENTER();
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    bool known = object_is(library, OBJECT_LIBRARY);
    if (known) {
        *count = library->image->ptx.kernel_count;
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

ENTRY(cuLibraryEnumerateKernels, (CUkernel * kernels, unsigned int count, CUlibrary library)) {
    ENTER();
    if (kernels == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    bool known = object_is(library, OBJECT_LIBRARY);
    for (unsigned int i = 0; known && i < count && i < library->image->ptx.kernel_count; i++) {
        kernels[i] = library->kernels[i];
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

ENTRY(cuLibraryGetModule, (CUmodule * module, CUlibrary library)) {
    ENTER();
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (module == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    result = object_is(library, OBJECT_LIBRARY) ? library_module(library, context, module) : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        result = module_load_code(*module);
    }
    driver_unlock();
    return result;
}

ENTRY(cuLibraryGetGlobal, (CUdeviceptr * address, size_t *bytes, CUlibrary library, const char *name)) {
    ENTER();
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmodule module;
    driver_lock();
    result = object_is(library, OBJECT_LIBRARY) ? library_module(library, context, &module) : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        result = module_variable(module, name, address, bytes);
    }
    driver_unlock();
    return result;
}

ENTRY(cuKernelGetFunction, (CUfunction * function, CUkernel kernel)) {
    ENTER();
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (function == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    result = object_is(kernel, OBJECT_KERNEL) ? function_find(kernel, context, function) : CUDA_ERROR_INVALID_HANDLE;
    driver_unlock();
    return result;
}

ENTRY(cuKernelGetLibrary, (CUlibrary * library, CUkernel kernel)) {
    ENTER();
    if (library == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    bool known = object_is(kernel, OBJECT_KERNEL);
    if (known) {
        *library = kernel->library;
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
