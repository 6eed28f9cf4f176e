/* Finding the driver's functions: see driver.h. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct driver driver;

static enum lookup used_lookup;
static int used_version;
static bool used_per_thread;
static void *library;
static CUresult (*proc_address)(const char *symbol, void **found, int version, uint64_t flags, int *status);

static _Thread_local const char *culprit = "nothing";

CUresult called(const char *name, CUresult result) {
    if (result != CUDA_SUCCESS) {
        culprit = name;
    }
    return result;
}

const char *driver_culprit(void) { return culprit; }

#ifdef PROBE_LINKED
#define FUNCTION(name, base, lowest, highest, params) extern CUresult name params;
#include "driver.def"
#undef FUNCTION
extern CUresult cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status);
#endif

static void *by_dlsym(const char *name) {
    if (used_per_thread) {
        /* A program that is compiled for per-thread default streams is linked to the twins, where a function has one. */
        static const char *const endings[] = {"_ptsz", "_ptds"};
        char twin[128];
        for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
            snprintf(twin, sizeof twin, "%s%s", name, endings[i]);
            void *found = dlsym(library, twin);
            if (found != NULL) {
                return found;
            }
        }
    }
    return dlsym(library, name);
}

static void *by_proc_address(const char *base, int lowest, int highest) {
    int version = used_version;
    if (version < lowest) {
        version = lowest;
    }
    if (highest != 0 && version > highest) {
        version = highest;
    }
    void *found = NULL;
    int status = 0;
    uint64_t flags = used_per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    if (proc_address(base, &found, version, flags, &status) != CUDA_SUCCESS) {
        return NULL;
    }
    return found;
}

bool driver_find(enum lookup lookup, int version, bool per_thread, char *problem, size_t room) {
    used_lookup = lookup;
    used_version = version;
    used_per_thread = per_thread;
    library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(problem, room, "%s", dlerror());
        return false;
    }
    if (lookup == LOOKUP_LINKED) {
#ifdef PROBE_LINKED
#define FUNCTION(name, base, lowest, highest, params) driver.name = name;
#include "driver.def"
#undef FUNCTION
        return true;
#else
        snprintf(problem, room, "this probe is not linked to the driver: use probe-linked");
        return false;
#endif
    }
    /* ISO C has no conversion from void * to function pointers; POSIX promises that it works through memory. */
    void *address;
    if (lookup == LOOKUP_PROC_ADDRESS) {
        address = dlsym(library, "cuGetProcAddress_v2");
        memcpy(&proc_address, &address, sizeof address);
        if (proc_address == NULL) {
            snprintf(problem, room, "the driver has no cuGetProcAddress_v2");
            return false;
        }
    }
#define FUNCTION(name, base, lowest, highest, params) \
    address = lookup == LOOKUP_PROC_ADDRESS ? by_proc_address(base, lowest, highest) : by_dlsym(#name); \
    memcpy(&driver.name, &address, sizeof address);
#include "driver.def"
#undef FUNCTION
    return true;
}

void *driver_address(const char *name) {
    if (used_lookup == LOOKUP_PROC_ADDRESS) {
        return by_proc_address(name, 0, 0);
    }
    return by_dlsym(name);
}
