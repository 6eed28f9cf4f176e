/* cuGetProcAddress: from a base name, a CUDA version and a stream mode to one of our exported functions.
 *
 * What there is comes from the linker section that ENTRY fills. Which of a name's kinds holds from which version is a table of facts,
 * cuda_entry_versions.def; a name that is not in it has one kind, valid from the beginning.
 */
#include <stdio.h>
#include <string.h>

#include "cuda_internal.h"

#define DRIVER_VERSION 13000

extern const struct driver_entry __start_driver_entries[] __attribute__((visibility("hidden")));
extern const struct driver_entry __stop_driver_entries[] __attribute__((visibility("hidden")));

struct variant {
    const char *base;
    int since;
    const char *exported;
};

static const struct variant variants[] = {
#define VARIANT(base, since, exported) {#base, since, #exported},
#include "cuda_entry_versions.def"
#undef VARIANT
};

static void *exported_function(const char *name)
{
    if (fault_missing(name))
        return NULL;
    for (const struct driver_entry *entry = __start_driver_entries; entry < __stop_driver_entries; entry++)
        if (strcmp(entry->name, name) == 0) {
            void *function;
            memcpy(&function, &entry->function, sizeof function);
            return function;
        }
    return NULL;
}

/* The kind for calls without a stream of their own is named _ptsz or _ptds, if a function has one. */
static void *function_for_mode(const char *name, uint64_t flags)
{
    if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
        static const char *const suffixes[] = {"_ptsz", "_ptds"};
        for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
            char longer[128];
            int length = snprintf(longer, sizeof longer, "%s%s", name, suffixes[i]);
            void *function = length < (int)sizeof longer ? exported_function(longer) : NULL;
            if (function != NULL)
                return function;
        }
    }
    return exported_function(name);
}

/* Callers give base names: cuMemAlloc_v2 or cuMemcpy_ptds are not asked for. */
static bool has_suffix(const char *name)
{
    size_t length = strlen(name);
    if (length > 5 && (strcmp(name + length - 5, "_ptsz") == 0 || strcmp(name + length - 5, "_ptds") == 0))
        return true;
    return length > 3 && name[length - 3] == '_' && name[length - 2] == 'v' && name[length - 1] >= '2' && name[length - 1] <= '9';
}

static CUresult look_up(const char *symbol, void **found, int version, uint64_t flags, int *status)
{
    if (symbol == NULL || found == NULL || version > DRIVER_VERSION || flags > 2)
        return CUDA_ERROR_INVALID_VALUE;
    *found = NULL;
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (has_suffix(symbol))
        return CUDA_SUCCESS;
    bool known = false;
    int best = -1;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        if (strcmp(variants[i].base, symbol) != 0)
            continue;
        /* A kind that this driver lacks (a test may take one away) leaves the one before it. */
        void *function = function_for_mode(variants[i].exported, flags);
        if (function == NULL)
            continue;
        known = true;
        if (variants[i].since <= version && variants[i].since > best) {
            best = variants[i].since;
            *found = function;
        }
    }
    if (!known && (*found = function_for_mode(symbol, flags)) == NULL)
        return CUDA_SUCCESS;
    *status = *found != NULL ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_SUCCESS;
}

ENTRY(cuGetProcAddress, (const char *symbol, void **found, int version, uint64_t flags))
{
    ENTER_EARLY();
    int status;
    CUresult result = look_up(symbol, found, version, flags, &status);
    return result == CUDA_SUCCESS && *found == NULL ? CUDA_ERROR_NOT_FOUND : result;
}

/* The newer kind finds nothing without an error: the status says why. */
static CUresult look_up_with_status(const char *symbol, void **found, int version, uint64_t flags, int *status)
{
    int ignored;
    return look_up(symbol, found, version, flags, status != NULL ? status : &ignored);
}

ENTRY(cuGetProcAddress_v2, (const char *symbol, void **found, int version, uint64_t flags, int *status))
{
    ENTER_EARLY();
    return look_up_with_status(symbol, found, version, flags, status);
}
