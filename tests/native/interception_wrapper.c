/* A library in the driver's place that passes calls on to the real one, as tools for tracing or for remote cards do: what it finds must
 * never be a hook, which would lead back to it.
 */
#include <dlfcn.h>
#include <stddef.h>

int cuInit(unsigned int flags);

int cuInit(unsigned int flags) {
    void *driver = dlopen(BEHIND, RTLD_NOW | RTLD_LOCAL);
    int (*next)(unsigned int) = driver != NULL ? (int (*)(unsigned int))dlsym(driver, "cuInit") : NULL;
    return next != NULL && next != cuInit ? next(flags) : -1;
}
