/* Modules: images read, code and variables put on the card, functions found. */
#include "cuda_module.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define VARIABLE_ALIGNMENT 256
#define LARGEST_FILE (256ll << 20)

bool modules_load_eagerly(void) {
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode != NULL && strcmp(mode, "EAGER") == 0;
}

struct image *image_read(const void *data, CUresult *result) {
    struct image *image = calloc(1, sizeof *image);
    *result = image == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    if (image != NULL && !ptx_read(data, &image->ptx)) {
        free(image);
        image = NULL;
        *result = CUDA_ERROR_INVALID_IMAGE;
    }
    if (image != NULL) {
        image->references = 1;
    }
    return image;
}

static char *read_text(int file, size_t size) {
    char *text = malloc(size + 1);
    size_t length = 0;
    while (text != NULL && length < size) {
        ssize_t got = read(file, text + length, size - length);
        if (got <= 0) {
            break;
        }
        length += (size_t)got;
    }
    if (text != NULL) {
        text[length] = '\0';
    }
    return text;
}

struct image *image_read_file(const char *path, CUresult *result) {
    struct stat status;
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    *result = path == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_FILE_NOT_FOUND;
    if (file < 0) {
        return NULL;
    }
    struct image *image = NULL;
    if (fstat(file, &status) == 0 && status.st_size <= LARGEST_FILE) {
        char *text = read_text(file, (size_t)status.st_size);
        if (text == NULL) {
            *result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            image = image_read(text, result);
        }
        free(text);
    }
    close(file);
    return image;
}

void image_release(struct image *image) {
    if (--image->references == 0) {
        ptx_free(&image->ptx);
        free(image);
    }
}

CUresult module_load_code(CUmodule module) {
    if (module->loaded) {
        return CUDA_SUCCESS;
    }
    CUresult result = context_take(module->context, module->image->ptx.code);
    module->loaded = result == CUDA_SUCCESS;
    return result;
}

/* Variables have addresses from the start; their bytes are part of what the code takes. */
static bool make_variables(CUmodule module) {
    size_t size = 0;
    for (unsigned int i = 0; i < module->image->ptx.variable_count; i++) {
        size += round_up(module->image->ptx.variables[i].bytes, VARIABLE_ALIGNMENT);
    }
    if (size == 0) {
        return true;
    }
    module->variables = region_make(REGION_GRAPH, NULL, module->context->device, size);
    if (module->variables != NULL) {
        module->variables->context = module->context;
    }
    return module->variables != NULL;
}

static bool make_functions(CUmodule module) {
    unsigned int count = module->image->ptx.kernel_count;
    module->functions = calloc(count + 1, sizeof(CUfunction));
    if (module->functions == NULL) {
        return false;
    }
    for (unsigned int i = 0; i < count; i++) {
        CUfunction function = object_make(OBJECT_FUNCTION, sizeof *function);
        if (function == NULL) {
            return false;
        }
        function->module = module;
        function->kernel = &module->image->ptx.kernels[i];
        module->functions[i] = function;
    }
    return true;
}

CUresult module_make(CUmodule *made, CUcontext context, struct image *image, CUlibrary library) {
    CUmodule module = object_make(OBJECT_MODULE, sizeof *module);
    if (module == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->context = context;
    module->library = library;
    module->image = image;
    image->references++;
    module->next = context->modules;
    context->modules = module;
    if (library != NULL) {
        module->next_of_library = library->modules;
        library->modules = module;
    }
    CUresult result = make_functions(module) && make_variables(module) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && modules_load_eagerly()) {
        result = module_load_code(module);
    }
    if (result != CUDA_SUCCESS) {
        module_drop(module);
        return result;
    }
    *made = module;
    return CUDA_SUCCESS;
}

static void unlink_module(CUmodule module) {
    CUmodule first = module->context->modules;
    for (CUmodule *link = &first; *link != NULL; link = &(*link)->next) {
        if (*link == module) {
            *link = module->next;
            break;
        }
    }
    module->context->modules = first;
    for (CUmodule *link = module->library == NULL ? NULL : &module->library->modules; link != NULL && *link != NULL;) {
        if (*link == module) {
            *link = module->next_of_library;
            break;
        }
        link = &(*link)->next_of_library;
    }
}

void module_drop(CUmodule module) {
    unlink_module(module);
    if (module->loaded) {
        context_give(module->context, module->image->ptx.code);
    }
    for (unsigned int i = 0; module->functions != NULL && module->functions[i] != NULL; i++) {
        object_recycle(module->functions[i]);
    }
    free(module->functions);
    if (module->variables != NULL) {
        region_unmake(module->variables);
    }
    image_release(module->image);
    object_recycle(module);
}

void modules_context_gone(CUcontext context) {
    while (context->modules != NULL) {
        module_drop(context->modules);
    }
}

CUresult function_find(const void *handle, CUcontext context, CUfunction *function) {
    if (object_is(handle, OBJECT_FUNCTION)) {
        memcpy(function, &handle, sizeof handle);
        return CUDA_SUCCESS;
    }
    if (!object_is(handle, OBJECT_KERNEL)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const struct CUkern_st *kernel = handle;
    CUmodule module;
    CUresult result = library_module(kernel->library, context, &module);
    if (result == CUDA_SUCCESS) {
        *function = module->functions[kernel->index];
    }
    return result;
}

CUresult module_variable(CUmodule module, const char *name, CUdeviceptr *address, size_t *bytes) {
    size_t offset = 0;
    for (unsigned int i = 0; i < module->image->ptx.variable_count; i++) {
        const struct ptx_variable *variable = &module->image->ptx.variables[i];
        if (strcmp(variable->name, name) == 0) {
            if (address != NULL) {
                *address = module->variables == NULL ? 0 : module->variables->start + offset;
            }
            if (bytes != NULL) {
                *bytes = variable->bytes;
            }
            return CUDA_SUCCESS;
        }
        offset += round_up(variable->bytes, VARIABLE_ALIGNMENT);
    }
    return CUDA_ERROR_NOT_FOUND;
}
