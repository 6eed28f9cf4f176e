/* A library that uses the driver in both ways: linked to it, and by dlsym. Opened with RTLD_DEEPBIND, or in a namespace of its own, its
 * names lead elsewhere than those of the program.
 */
#include <dlfcn.h>

int cuMemAlloc_v2(void);
void *linked(void);
void *looked_up(void);

void *linked(void) {
    return (void *)cuMemAlloc_v2;
}

void *looked_up(void) {
    return dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuMemAlloc_v2");
}
