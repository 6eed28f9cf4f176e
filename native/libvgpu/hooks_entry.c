/* The ways in: cuInit, and cuGetProcAddress in its two shapes.
 *
 * cuGetProcAddress is answered by the driver first. Its pointer, never the name, says which hook is right: at version 13000
 * cuCtxSynchronize has another signature than at 12000, and the driver alone knows what belongs to a version and a stream mode.
 */
#include <stdint.h>

#include "guard.h"
#include "intercept.h"

CUresult cuInit(unsigned int flags) {
    if (guard_mode() == GUARD_REFUSES) {
        return CUDA_ERROR_NO_DEVICE;
    }
    if (!intercept_cuda()) {
        return CUDA_ERROR_NO_DEVICE;
    }
    return real.cuInit(flags);
}

/* A pointer that we do not know for a name that we do: a newer kind of a function that we hook. It is passed on, because refusing it
 * would break programs that a new driver serves; the measured side of the accounts still sees what it takes. Counted, for the agent. */
void hooks_count_unknown(const char *symbol) {
    if (!intercept_hooks_base(symbol)) {
        return;
    }
    struct vgpu_state *state = guard_view();
    if (state != NULL) {
        __atomic_fetch_add(&state->unknown_entry_points, 1, __ATOMIC_RELAXED);
    }
}

static void exchange(const char *symbol, void **found) {
    if (found == NULL || *found == NULL || guard_mode() == GUARD_OFF) {
        return;
    }
    void *hook = intercept_exchange(*found);
    if (hook == *found) {
        hooks_count_unknown(symbol);
    } else {
        *found = hook;
    }
}

CUresult cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags) {
    if (!intercept_cuda()) {
        return CUDA_ERROR_NOT_FOUND;
    }
    CUresult result = real.cuGetProcAddress(symbol, found, version, flags);
    if (result == CUDA_SUCCESS) {
        exchange(symbol, found);
    }
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    if (!intercept_cuda()) {
        return CUDA_ERROR_NOT_FOUND;
    }
    CUresult result = real.cuGetProcAddress_v2(symbol, found, version, flags, status);
    if (result == CUDA_SUCCESS) {
        exchange(symbol, found);
    }
    return result;
}
