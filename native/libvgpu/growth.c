/* What grows inside a context: streams, code, stacks, heaps.
 *
 * Streams and limits are reserved before, because their cost is known. Loading code shows only afterwards (up to 96 MiB in one step): it
 * is charged at once, and the next allocation pays. Local memory is taken by the driver at a kernel's first launch, for every thread that
 * the card can hold: (bytes - 1024) x SMs x threads. Launches are not ours, so the budget for it is taken when the function is handed out.
 */
#include <stdbool.h>

#include "books.h"
#include "contexts.h"
#include "guard.h"
#include "ledger.h"
#include "overhead.h"

#define LOCAL_BYTES_INCLUDED 1024 /* per thread, part of a context's own cost */

/* --- local memory ------------------------------------------------------------------------------------------------------------------ */

static uint64_t resident_threads(int index) {
    int multiprocessors = 0;
    int threads = 0;
    CUdevice device = guard_device_of(index);
    real.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    real.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    return (uint64_t)multiprocessors * (uint64_t)threads;
}

static uint64_t local_bytes_of(CUcontext context) {
    const struct record *known = table_find(&books.contexts, (uint64_t)(uintptr_t)context);
    return known != NULL && known->size > LOCAL_BYTES_INCLUDED ? known->size : LOCAL_BYTES_INCLUDED;
}

static void set_local_bytes(CUcontext context, int index, uint64_t bytes) {
    struct record *known = table_find(&books.contexts, (uint64_t)(uintptr_t)context);
    if (known != NULL) {
        known->size = bytes;
    } else {
        table_put(&books.contexts, &(struct record){.key = (uint64_t)(uintptr_t)context, .size = bytes, .index = index});
    }
}

bool contexts_allow_local_memory(CUcontext context, int index, uint64_t bytes_per_thread) {
    books_lock();
    uint64_t known = local_bytes_of(context);
    books_unlock();
    if (bytes_per_thread <= known) {
        return true;
    }
    uint64_t growth = (bytes_per_thread - known) * resident_threads(index);
    overhead_measure(index, 0);
    if (!ledger_reserve(index, growth)) {
        return false;
    }
    books_lock();
    set_local_bytes(context, index, bytes_per_thread);
    books_unlock();
    /* From pending to a floor under the measured overhead: before the launch the floor counts, after it the measurement. */
    overhead_raise_floor(index, growth);
    overhead_measure(index, growth);
    return true;
}

static _Atomic uint64_t local_memory_everywhere;

uint64_t contexts_local_memory_everywhere(void) { return local_memory_everywhere; }

bool contexts_allow_local_memory_everywhere(uint64_t bytes_per_thread) {
    if (bytes_per_thread <= LOCAL_BYTES_INCLUDED || bytes_per_thread <= local_memory_everywhere) {
        return true;
    }
    if (!contexts_each(contexts_allow_local_memory, bytes_per_thread)) {
        return false;
    }
    local_memory_everywhere = bytes_per_thread;
    return true;
}

void growth_forget_after_fork(void) { local_memory_everywhere = 0; }

/* The current context has room for this function's local memory, or it is not handed out. */
static bool allow_function(CUfunction function) {
    int index = guard_current_index();
    int local = 0;
    CUcontext context = NULL;
    return index < 0 || real.cuFuncGetAttribute(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) != CUDA_SUCCESS || local < 0 ||
           real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || contexts_allow_local_memory(context, index, (uint64_t)local);
}

static bool allow_kernel(CUkernel kernel) {
    CUdevice device = 0;
    int local = 0;
    real.cuCtxGetDevice(&device); /* without a context any card will do: what one needs, the others need as well */
    return real.cuKernelGetAttribute(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel, device) != CUDA_SUCCESS || local < 0 ||
           contexts_allow_local_memory_everywhere((uint64_t)local);
}

/* --- loading code ------------------------------------------------------------------------------------------------------------------ */

/* Charge what a call has just loaded or unloaded. */
static CUresult loaded(CUresult result) {
    int index = guard_current_index();
    if (index >= 0) {
        overhead_measure(index, 0);
    }
    overhead_suspect(); /* most of it comes with the first launch */
    return result;
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    return guard_on() ? loaded(real.cuModuleLoad(module, path)) : real.cuModuleLoad(module, path);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return guard_on() ? loaded(real.cuModuleLoadData(module, image)) : real.cuModuleLoadData(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values) {
    return guard_on() ? loaded(real.cuModuleLoadDataEx(module, image, count, options, values))
                      : real.cuModuleLoadDataEx(module, image, count, options, values);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return guard_on() ? loaded(real.cuModuleLoadFatBinary(module, image)) : real.cuModuleLoadFatBinary(module, image);
}

CUresult cuModuleUnload(CUmodule module) { return guard_on() ? loaded(real.cuModuleUnload(module)) : real.cuModuleUnload(module); }

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options, void **jit_values, unsigned int jit_count, int *options,
                           void **values, unsigned int count) {
    if (guard_on()) {
        overhead_suspect(); /* libraries load lazily: nothing to measure yet */
    }
    return real.cuLibraryLoadData(library, code, jit_options, jit_values, jit_count, options, values, count);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit_options, void **jit_values, unsigned int jit_count,
                               int *options, void **values, unsigned int count) {
    if (guard_on()) {
        overhead_suspect();
    }
    return real.cuLibraryLoadFromFile(library, path, jit_options, jit_values, jit_count, options, values, count);
}

CUresult cuLibraryUnload(CUlibrary library) {
    if (guard_on()) {
        overhead_suspect();
    }
    return real.cuLibraryUnload(library);
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    return guard_on() ? loaded(real.cuLibraryGetModule(module, library)) : real.cuLibraryGetModule(module, library);
}

CUresult cuFuncLoad(CUfunction function) { return guard_on() ? loaded(real.cuFuncLoad(function)) : real.cuFuncLoad(function); }

/* --- handing out functions
 * -------------------------------------------------------------------------------------------------------------- */

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    bool on = guard_on();
    CUresult result = real.cuModuleGetFunction(function, module, name);
    if (on && result == CUDA_SUCCESS) {
        overhead_suspect();
        if (!allow_function(*function)) {
            *function = NULL; /* some programs launch what they find there */
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return result;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module) {
    bool on = guard_on();
    CUresult result = real.cuModuleEnumerateFunctions(functions, count, module);
    for (unsigned int at = 0; on && result == CUDA_SUCCESS && at < count; at++) {
        if (functions[at] != NULL && !allow_function(functions[at])) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return result;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    bool on = guard_on();
    CUresult result = real.cuLibraryGetKernel(kernel, library, name);
    if (on && result == CUDA_SUCCESS) {
        overhead_suspect();
        if (!allow_kernel(*kernel)) {
            *kernel = NULL;
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return result;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library) {
    bool on = guard_on();
    CUresult result = real.cuLibraryEnumerateKernels(kernels, count, library);
    for (unsigned int at = 0; on && result == CUDA_SUCCESS && at < count; at++) {
        if (kernels[at] != NULL && !allow_kernel(kernels[at])) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return result;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    bool on = guard_on();
    CUresult result = real.cuKernelGetFunction(function, kernel);
    if (on && result == CUDA_SUCCESS) {
        overhead_suspect();
        if (!allow_function(*function)) {
            *function = NULL;
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return result;
}

/* --- streams and limits
 * ------------------------------------------------------------------------------------------------------------------ */

#define WITH_GROWTH(index, growth, call)                        \
    if ((index) == GUARD_FORWARD) {                             \
        return call;                                            \
    }                                                           \
    if ((index) == GUARD_REFUSE || !ledger_reserve(index, growth)) { \
        return CUDA_ERROR_OUT_OF_MEMORY;                        \
    }                                                           \
    CUresult result = call;                                     \
    overhead_measure(index, growth);                            \
    return result

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    if (!guard_on()) {
        return real.cuStreamCreate(stream, flags);
    }
    int index = guard_current_index();
    WITH_GROWTH(index, GROWTH_OF_A_STREAM, real.cuStreamCreate(stream, flags));
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    if (!guard_on()) {
        return real.cuStreamCreateWithPriority(stream, flags, priority);
    }
    int index = guard_current_index();
    WITH_GROWTH(index, GROWTH_OF_A_STREAM, real.cuStreamCreateWithPriority(stream, flags, priority));
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx context, unsigned int flags, int priority) {
    if (!guard_on()) {
        return real.cuGreenCtxStreamCreate(stream, context, flags, priority);
    }
    int index = contexts_index_of_green(context);
    WITH_GROWTH(index, GROWTH_OF_A_STREAM, real.cuGreenCtxStreamCreate(stream, context, flags, priority));
}

CUresult cuCtxSetLimit(int limit, size_t value) {
    if (!guard_on()) {
        return real.cuCtxSetLimit(limit, value);
    }
    int index = guard_current_index();
    size_t before = 0;
    if (index < 0 || real.cuCtxGetLimit(&before, limit) != CUDA_SUCCESS) {
        return real.cuCtxSetLimit(limit, value);
    }
    bool grows = value > before;
    uint64_t growth = grows ? value - before : 0;
    if (limit == CU_LIMIT_STACK_SIZE) {
        CUcontext context = NULL;
        real.cuCtxGetCurrent(&context);
        if (grows && !contexts_allow_local_memory(context, index, value)) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    } else if (grows && (limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE)) {
        /* Taken when a module that uses it is loaded: charged from now on. */
        if (!ledger_reserve(index, growth)) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        overhead_raise_floor(index, growth);
        ledger_return(index, LEDGER_PENDING, growth);
    }
    CUresult result = real.cuCtxSetLimit(limit, value);
    if (!grows || result != CUDA_SUCCESS) {
        CUcontext context = NULL;
        real.cuCtxGetCurrent(&context);
        if (limit == CU_LIMIT_STACK_SIZE) {
            books_lock();
            set_local_bytes(context, index, result == CUDA_SUCCESS ? value : before);
            books_unlock();
        }
        overhead_drop_floor(index);
    }
    overhead_measure(index, 0);
    return result;
}
