/* Modules, libraries, kernels and functions of the stand-in: what cuda_module*.c and cuda_kernel*.c share.
 *
 * A library belongs to the process and becomes a module in each context where it is used; a kernel of a library is likewise a function
 * there. Code takes memory of the card when it is loaded: lazily, as CUDA does since 12.2, or at once with CUDA_MODULE_LOADING=EAGER.
 */
#ifndef FAKEGPU_CUDA_MODULE_H
#define FAKEGPU_CUDA_MODULE_H

#include "cuda_internal.h"
#include "cuda_module_ptx.h"
#include "cuda_stream_object.h"

/* What was read from an image: shared by a library and its modules. */
struct image {
    struct ptx ptx;
    unsigned int references;
};

struct CUfunc_st {
    struct object object;
    CUmodule module;
    const struct ptx_kernel *kernel;
    int set_attributes[CU_FUNC_ATTRIBUTE_MAX];
};

struct CUmod_st {
    struct object object;
    CUmodule next; /* of the context */
    CUmodule next_of_library;
    CUcontext context;
    CUlibrary library; /* NULL: loaded by cuModuleLoad */
    struct image *image;
    CUfunction *functions; /* one per kernel of the image */
    struct region *variables;
    bool loaded; /* its code is on the card */
};

struct CUlib_st {
    struct object object;
    struct image *image;
    CUkernel *kernels; /* one per kernel of the image */
    CUmodule modules;  /* at most one per context */
};

struct CUkern_st {
    struct object object;
    CUlibrary library;
    unsigned int index;
};

/* All of these: (locked) */
struct image *image_read(const void *data, CUresult *result);
struct image *image_read_file(const char *path, CUresult *result);
void image_release(struct image *image);
CUresult module_make(CUmodule *made, CUcontext context, struct image *image, CUlibrary library);
void module_drop(CUmodule module);
CUresult module_load_code(CUmodule module);
/* The library's module in the context: made if it is not there yet. */
CUresult library_module(CUlibrary library, CUcontext context, CUmodule *module);
/* What a caller passes where a function is wanted: a function, or a kernel that stands for its function in the context. */
CUresult function_find(const void *handle, CUcontext context, CUfunction *function);
/* Address and size of a variable. */
CUresult module_variable(CUmodule module, const char *name, CUdeviceptr *address, size_t *bytes);
bool modules_load_eagerly(void);
void modules_context_gone(CUcontext context);

#endif
