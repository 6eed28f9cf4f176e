/* A driver for the tests of interception: every name of entry_points.def, each a function of its own that does nothing but tell, by
 * the number that it returns, which one it is. The same file makes libcuda.so.1 and (-DINTERCEPTION_NVML) libnvidia-ml.so.1. All
 * weak, so that interception_lookup.c can put working ones in their place.
 */
#include "cuda_abi.h"
#include "nvml_abi.h"

enum number {
    FIRST_NUMBER = 10000,
#define HOOK(name, params) NUMBER_##name,
#define NEED(name, params) NUMBER_##name,
#define NVML_HOOK(name, params) NUMBER_##name,
#define NVML_NEED(name, params) NUMBER_##name,
#include "entry_points.def"
#undef HOOK
#undef NEED
#undef NVML_HOOK
#undef NVML_NEED
};

#define TELLS_ITS_NUMBER(name, params) \
    __attribute__((weak)) int name params; \
    __attribute__((weak)) int name params { return NUMBER_##name; }
#ifdef INTERCEPTION_NVML
#define HOOK(name, params)
#define NEED(name, params)
#define NVML_HOOK TELLS_ITS_NUMBER
#define NVML_NEED TELLS_ITS_NUMBER
#else
#define HOOK TELLS_ITS_NUMBER
#define NEED TELLS_ITS_NUMBER
#define NVML_HOOK(name, params)
#define NVML_NEED(name, params)
#endif
#include "entry_points.def"
