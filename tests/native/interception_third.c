/* An interposer, as OpenMP tools and profilers are: its function finds the next one of that name by RTLD_NEXT, which must mean the one
 * after this library, whoever is preloaded before it.
 */
#include <dlfcn.h>
#include <stddef.h>

#ifndef STEP
#define STEP 1
#endif

int chained_name(void);

/* Looks twice: an implementation that keeps state of "the last RTLD_NEXT" would answer differently. */
int chained_name(void) {
    int (*first)(void) = (int (*)(void))dlsym(RTLD_NEXT, "chained_name");
    int (*second)(void) = (int (*)(void))dlsym(RTLD_NEXT, "chained_name");
    if (first == NULL || first != second || first == chained_name) {
        return -1000;
    }
    return STEP + first();
}
