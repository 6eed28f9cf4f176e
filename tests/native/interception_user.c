/* A library that uses the driver in three ways: linked to it, by dlsym, and as what comes after itself. Opened with RTLD_DEEPBIND, or in a namespace of its own, its
 * names lead elsewhere than those of the program.
 */
#include <dlfcn.h>

int cuMemAlloc_v2(void);
void *linked(void);
void *looked_up(void);
void *next(void);
void *next_versioned(void);
void *next_unknown(void);

void *linked(void) {
    return (void *)cuMemAlloc_v2;
}

void *looked_up(void) {
    return dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuMemAlloc_v2");
}

/* Not the last call, which would be a jump: then the program would be who asks. */
#define FOUND_NEXT(look_up) \
    void *volatile found = look_up; \
    return found

void *next(void) {
    FOUND_NEXT(dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
}

void *next_versioned(void) {
    FOUND_NEXT(dlvsym(RTLD_NEXT, "cuMemAlloc_v2", "CUDA_1"));
}

void *next_unknown(void) {
    FOUND_NEXT(dlsym(RTLD_NEXT, "cuLaunchKernel"));
}
