/* Finding the real driver, and exchanging its entry points for our hooks. See intercept.h.
 *
 * dlsym may be called before any constructor ran, by sanitizers even before memory can be allocated, in constructors that our own dlopen
 * runs, and in a child forked at any moment. So nothing here waits: there is no lock and no "someone else is filling it". Whoever needs
 * the table fills it; every pointer in it changes from its first value to its one possible other by compare-and-swap, and `ready` is set
 * by whoever has seen all of them. That is why readers of `real` need no atomics once they have seen `ready`.
 */
#include "intercept.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "guard.h"
#include "linker.h"

#define ABSENT_FOR_NS 1000000000ll

typedef void *__attribute__((may_alias)) any_pointer;
typedef void *(*dlsym_function)(void *handle, const char *name);

struct row {
    const char *name;
    void *hook; /* NULL for what we only call */
    uint16_t offset;
    uint16_t length;
};

struct driver {
    const char *file;
    void *missing; /* what a hooked function's pointer is at first */
    const struct row *rows;
    size_t count;
    atomic_bool ready;
    atomic_llong absent_since; /* CLOCK_MONOTONIC in ns of the last failed load; 0 = none */
};

/* What a hook forwards to where the driver lacks the function, or there is no driver: a program may find our exported name by
 * RTLD_DEFAULT or as a weak symbol, and call it. Called with whatever arguments: the C calling conventions do not mind. */
static CUresult missing_in_cuda(void) { return CUDA_ERROR_NOT_SUPPORTED; }
static nvmlReturn_t missing_in_nvml(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

struct real_entry_points real = {
#define HOOK(name, params) .name = (CUresult(*) params)(void (*)(void))missing_in_cuda,
#define NEED(name, params)
#define NVML_HOOK(name, params) .name = (nvmlReturn_t(*) params)(void (*)(void))missing_in_nvml,
#define NVML_NEED(name, params)
#include "entry_points.def"
#undef HOOK
#undef NEED
#undef NVML_HOOK
#undef NVML_NEED
};

#define HOOKED(entry) {#entry, (void *)entry, offsetof(struct real_entry_points, entry), sizeof #entry - 1},
#define CALLED(entry) {#entry, NULL, offsetof(struct real_entry_points, entry), sizeof #entry - 1},

static const struct row cuda_rows[] = {
#define HOOK(name, params) HOOKED(name)
#define NEED(name, params) CALLED(name)
#define NVML_HOOK(name, params)
#define NVML_NEED(name, params)
#include "entry_points.def"
#undef HOOK
#undef NEED
#undef NVML_HOOK
#undef NVML_NEED
};

static const struct row nvml_rows[] = {
#define HOOK(name, params)
#define NEED(name, params)
#define NVML_HOOK(name, params) HOOKED(name)
#define NVML_NEED(name, params) CALLED(name)
#include "entry_points.def"
#undef HOOK
#undef NEED
#undef NVML_HOOK
#undef NVML_NEED
};

static struct driver cuda = {
    .file = "libcuda.so.1", .missing = (void *)missing_in_cuda, .rows = cuda_rows, .count = sizeof cuda_rows / sizeof cuda_rows[0]};
static struct driver nvml = {
    .file = "libnvidia-ml.so.1", .missing = (void *)missing_in_nvml, .rows = nvml_rows, .count = sizeof nvml_rows / sizeof nvml_rows[0]};

static _Atomic(dlsym_function) next_dlsym;

/* The C library's dlsym, without dlsym. Under its oldest version, which every glibc has. */
BEFORE_SANITIZERS static dlsym_function find_next_dlsym(void) {
    dlsym_function next = atomic_load_explicit(&next_dlsym, memory_order_acquire);
    dlvsym_function look_up = next == NULL ? linker_real_dlvsym() : NULL;
    if (look_up == NULL) {
        return next;
    }
#if defined(__x86_64__)
    next = (dlsym_function)look_up(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
#else
    next = (dlsym_function)look_up(RTLD_NEXT, "dlsym", "GLIBC_2.17");
#endif
    if (next == NULL) {
        next = (dlsym_function)look_up(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    }
    atomic_store_explicit(&next_dlsym, next, memory_order_release);
    return next;
}

void *intercept_real_dlsym(void *handle, const char *name) {
    dlsym_function next = find_next_dlsym();
    return next != NULL ? next(handle, name) : NULL;
}

static any_pointer *place_of(const struct row *row) {
    return (any_pointer *)((char *)&real + row->offset);
}

static void fill(struct driver *driver, void *handle) {
    for (size_t i = 0; i < driver->count; i++) {
        void *found = intercept_real_dlsym(handle, driver->rows[i].name);
        void *nothing = driver->rows[i].hook != NULL ? driver->missing : NULL;
        if (found != NULL) {
            __atomic_compare_exchange_n(place_of(&driver->rows[i]), &nothing, found, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        }
    }
    atomic_store_explicit(&driver->ready, true, memory_order_release);
}

/* RTLD_NOLOAD finds a driver that is there already by its soname, under whatever path it was opened. The handle is kept: our
 * pointers outlive the program's dlclose. */
static bool find_loaded(struct driver *driver) {
    if (atomic_load_explicit(&driver->ready, memory_order_acquire)) {
        return true;
    }
    void *handle = linker_real_dlopen(driver->file, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL) {
        return false;
    }
    fill(driver, handle);
    return true;
}

static bool load(struct driver *driver) {
    if (atomic_load_explicit(&driver->ready, memory_order_acquire)) {
        return true;
    }
    int error = errno;
    bool found = find_loaded(driver);
    if (!found) {
        struct timespec time = {0, 0};
        clock_gettime(CLOCK_MONOTONIC, &time);
        long long now = (long long)time.tv_sec * 1000000000ll + time.tv_nsec;
        long long absent_since = atomic_load_explicit(&driver->absent_since, memory_order_relaxed);
        if (absent_since == 0 || now - absent_since > ABSENT_FOR_NS) {
            void *handle = linker_real_dlopen(driver->file, RTLD_LAZY | RTLD_LOCAL);
            if (handle != NULL) {
                fill(driver, handle);
                found = true;
            } else {
                atomic_store_explicit(&driver->absent_since, now, memory_order_relaxed);
            }
        }
    }
    errno = error;
    return found;
}

bool intercept_cuda(void) {
    return load(&cuda);
}

bool intercept_nvml(void) {
    return load(&nvml);
}

static void *exchange_in(struct driver *driver, void *pointer) {
    if (!atomic_load_explicit(&driver->ready, memory_order_acquire)) {
        return NULL;
    }
    for (size_t i = 0; i < driver->count; i++) {
        const struct row *row = &driver->rows[i];
        if (row->hook != NULL && *place_of(row) == pointer) {
            return row->hook;
        }
    }
    return NULL;
}

/* A walk over a hundred pointers: less than what the real lookup before it took, and nothing to build or to keep. */
void *intercept_exchange(void *real_pointer) {
    if (real_pointer == NULL) {
        return NULL;
    }
    void *hook = exchange_in(&cuda, real_pointer);
    if (hook == NULL) {
        hook = exchange_in(&nvml, real_pointer);
    }
    return hook != NULL ? hook : real_pointer;
}

static bool is_suffix(const char *rest) {
    if (rest[0] == '\0' || strcmp(rest, "_ptsz") == 0) {
        return true;
    }
    if (rest[0] != '_' || rest[1] != 'v' || rest[2] < '0' || rest[2] > '9') {
        return false;
    }
    rest += 3;
    while (*rest >= '0' && *rest <= '9') {
        rest++;
    }
    return rest[0] == '\0' || strcmp(rest, "_ptsz") == 0;
}

/* How much of a name stands before its version and stream mode: cuMemAlloc of cuMemAlloc_v2_ptsz. */
static size_t base_length(const char *name) {
    size_t length = 0;
    while (!is_suffix(name + length)) {
        length++;
    }
    return length;
}

bool intercept_hooks_base(const char *symbol) {
    size_t length = base_length(symbol);
    for (size_t i = 0; i < cuda.count; i++) {
        const struct row *row = &cuda.rows[i];
        if (row->hook != NULL && row->length >= length && memcmp(row->name, symbol, length) == 0 && is_suffix(row->name + length)) {
            return true;
        }
    }
    return false;
}

/* A version that is newer than all that we know, and that the driver has. */
static void count_newer(const struct driver *driver, void *handle, const char *name) {
    bool newer = driver == &cuda && name[base_length(name)] != '\0' && intercept_hooks_base(name);
    if (newer && guard_mode() != GUARD_OFF && intercept_real_dlsym(handle, name) != NULL) {
        hooks_count_unknown(name);
    }
}

static const struct row *find_hook(const struct driver *driver, const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < driver->count; i++) {
        const struct row *row = &driver->rows[i];
        if (row->length == length && row->hook != NULL && memcmp(row->name, name, length) == 0) {
            return row;
        }
    }
    return NULL;
}

/* What the real dlsym says; with a version, the real dlvsym. */
static void *look_up(void *handle, const char *name, const char *version) {
    if (version != NULL) {
        return linker_real_dlvsym()(handle, name, version);
    }
    return intercept_real_dlsym(handle, name);
}

/* What a lookup by handle gets instead of what it finds: functions of the driver are exchanged in every copy of it. */
static void *exchange_found(const struct driver *driver, const struct row *row, void *found) {
    if (*place_of(row) == found) {
        return row->hook;
    }
    void *answer = intercept_exchange(found);
    return answer == found && linker_lies_in(found, driver->file) ? row->hook : answer;
}

static void *redirect(struct driver *driver, const uintptr_t call[4], const char *version) {
    void *handle = (void *)call[0];
    const char *name = (const char *)call[1];
    const struct row *row = find_hook(driver, name);
    if (row == NULL) {
        if (handle != RTLD_NEXT) {
            count_newer(driver, handle, name);
        }
        return NULL;
    }
    int error = errno;
    void *answer = NULL;
    /* A driver that is not loaded cannot be what the handle leads to: it is not loaded for a lookup. The lookup comes last, so that
     * dlerror afterwards speaks of it and not of our search. A driver that is a wrapper around another must find that one. */
    if (guard_mode() != GUARD_OFF && find_loaded(driver) && !linker_lie_together((void *)call[3], *place_of(row))) {
        if (handle == RTLD_NEXT) {
            /* Who it really is depends on the caller's place, which only the real dlsym knows; in the end it is the driver. */
            answer = *place_of(row) != driver->missing ? row->hook : NULL;
        } else {
            void *found = look_up(handle, name, version);
            answer = found != NULL ? exchange_found(driver, row, found) : NULL;
        }
    }
    errno = error;
    return answer;
}

BEFORE_SANITIZERS void *intercept_redirected(const uintptr_t call[4], const char *version) {
    void *handle = (void *)call[0];
    const char *name = (const char *)call[1];
    if (name == NULL || handle == RTLD_DEFAULT) {
        return NULL;
    }
    if (name[0] == 'c' && name[1] == 'u') {
        return redirect(&cuda, call, version);
    }
    if (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l') {
        return redirect(&nvml, call, version);
    }
    if (name[0] == 'd' && name[1] == 'l' && handle != RTLD_NEXT) {
        void *found = look_up(handle, name, version);
        return found != NULL ? linker_own_door(name, found) : NULL;
    }
    return NULL;
}

BEFORE_SANITIZERS struct linker_answer linker_dlsym_hook(uintptr_t call[4]) {
    dlsym_function next = find_next_dlsym();
    void *found = next != NULL ? intercept_redirected(call, NULL) : NULL;
    return (struct linker_answer){found, (void *)next};
}
