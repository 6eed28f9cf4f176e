/* The real driver's entry points, and who gets ours instead.
 *
 * `real` has every name of entry_points.def as a typed pointer into libcuda.so.1 and libnvidia-ml.so.1. Where the driver lacks one, a
 * hooked name leads to a function that says so, and a needed one is NULL. Callers reach our hooks in three ways: by linking (our exported
 * symbols come first, we are preloaded), by dlsym, by cuGetProcAddress. The last two ask the real function first and exchange the pointer
 * only if it is, bit for bit, an entry point that we hook, or of that name in a copy of the driver: right for every version and stream
 * mode, and nothing else is touched. What is not ours is a tail-jump to the real dlsym, so that RTLD_NEXT still means "after the caller".
 * Of a hooked name we are the next: after the caller there may be the driver alone.
 */
#ifndef HAMI_VGPU_INTERCEPT_H
#define HAMI_VGPU_INTERCEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "nvml_abi.h"

struct real_entry_points {
#define HOOK(name, params) CUresult(*name) params;
#define NEED(name, params) CUresult(*name) params;
#define NVML_HOOK(name, params) nvmlReturn_t(*name) params;
#define NVML_NEED(name, params) nvmlReturn_t(*name) params;
#include "entry_points.def"
#undef HOOK
#undef NEED
#undef NVML_HOOK
#undef NVML_NEED
};

/* Read only after intercept_cuda() or intercept_nvml() said yes. */
extern __attribute__((visibility("hidden"))) struct real_entry_points real;

/* Our hooks, exported under the driver's names. Protected: others bind to them, but our own table of hooks always means ours, also
 * where the program or another preloaded library has a function of that name. */
#define EXPORT __attribute__((visibility("protected")))
#define HOOK(name, params) EXPORT CUresult name params;
#define NEED(name, params)
#define NVML_HOOK(name, params) EXPORT nvmlReturn_t name params;
#define NVML_NEED(name, params)
#include "entry_points.def"
#undef HOOK
#undef NEED
#undef NVML_HOOK
#undef NVML_NEED

/* Opens libcuda.so.1 and fills its part of `real`, once, thread-safe, also in a child forked meanwhile. False if there is no driver;
 * that answer is asked anew at most once a second. */
bool intercept_cuda(void);

/* The same for libnvidia-ml.so.1. */
bool intercept_nvml(void);

/* The hook for a real entry point, or the pointer itself. Two names with one address in the driver are one function, so any of
 * their hooks is right: the first of entry_points.def is taken. */
void *intercept_exchange(void *real_pointer);

/* Whether some hook of the driver has this name, whatever the version or stream suffix of either (cuMemAlloc: cuMemAlloc_v2 is one). */
bool intercept_hooks_base(const char *symbol);

/* Counts, for the agent, that a program has a function of the driver that is newer than our hook. */
void hooks_count_unknown(const char *symbol);

/* The real dlsym. */
void *intercept_real_dlsym(void *handle, const char *name);

/* The hook for what dlsym (dlvsym, where there is a version) would find, or NULL where the caller shall get what that says. `call` is as
 * in linker.h. */
void *intercept_redirected(const uintptr_t call[4], const char *version);

#endif
