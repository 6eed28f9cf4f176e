/* The container's view of a card's memory, and CUDA's functions that show it. See views.h.
 *
 * The driver is asked first, always: its errors stay what they are, and its numbers bound ours from above.
 */
#include "views.h"

#include <stdatomic.h>
#include <string.h>

#include "clock.h"
#include "guard.h"
#include "ledger.h"
#include "state.h"

#define SWEEP_EVERY_MS 100

static uint64_t at_most(uint64_t value, uint64_t bound) {
    return value < bound ? value : bound;
}

/* A reader does not know what the driver still counts for a dead process, and must not give back too early what allocating processes
 * would then hand out: the dead slot keeps all of it until one of them has asked the driver, or until state_sweep's own patience ends. */
static uint64_t keep_all(int32_t pid, uint32_t device, uint64_t dead_since, void *context) {
    (void)pid;
    (void)device;
    (void)dead_since;
    (void)context;
    return UINT64_MAX;
}

static void sweep_now_and_then(struct vgpu_state *state) {
    static atomic_llong swept_at; /* only ever an estimate: two threads at once sweep twice, nothing more */
    long long now = (long long)clock_coarse_ms();
    if (now - atomic_load_explicit(&swept_at, memory_order_relaxed) < SWEEP_EVERY_MS) {
        return;
    }
    atomic_store_explicit(&swept_at, now, memory_order_relaxed);
    state_sweep(state, keep_all, NULL);
}

bool view_of(int index, uint64_t physical_total, struct memory_view *view) {
    memset(view, 0, sizeof *view);
    if (index == GUARD_FORWARD) {
        return false;
    }
    if (index < 0 || index >= VGPU_MAX_DEVICES) {
        return true;
    }
    guard_follow_policy(false);
    struct vgpu_state *state = guard_view();
    if (state != NULL && state_own_slot() >= 0) {
        ledger_refresh_view(index);
    }
    const struct limits *limits = guard_limits();
    uint64_t limit = limits->devices[index].memory;
    uint64_t used = UINT64_MAX; /* without a state nothing can be allocated either */
    if (state != NULL && state_lock(state)) {
        sweep_now_and_then(state);
        used = state->devices[index].used;
        /* A process without a slot does not follow the policy; those that do have written down what they enforce. */
        if (state->policy_generation > limits->generation) {
            limit = state->devices[index].limit;
        }
        state_unlock(state);
    }
    if (limit == 0) {
        return false;
    }
    /* Where more was promised than the card has, the promise is the truth of this container. */
    bool oversubscribed = (limits->flags & VGPU_POLICY_OVERSUBSCRIBE) != 0;
    view->total = oversubscribed ? limit : at_most(limit, physical_total);
    view->used = at_most(used, view->total);
    view->free = view->total - view->used;
    return true;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (!guard_on()) {
        return real.cuDeviceTotalMem_v2(bytes, device);
    }
    CUresult result = real.cuDeviceTotalMem_v2(bytes, device);
    if (result != CUDA_SUCCESS || bytes == NULL) {
        return result;
    }
    struct memory_view view;
    if (view_of(guard_index_of(device), *bytes, &view)) {
        *bytes = view.total;
    }
    return result;
}

/* From before CUDA 3.2: 32 bits. What is more than they can say is said as the most that they can. */
CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    bool on = guard_on();
    CUresult result = real.cuDeviceTotalMem(bytes, device);
    size_t whole = 0;
    if (!on || result != CUDA_SUCCESS || bytes == NULL || real.cuDeviceTotalMem_v2(&whole, device) != CUDA_SUCCESS) {
        return result;
    }
    struct memory_view view;
    if (view_of(guard_index_of(device), whole, &view)) {
        *bytes = (unsigned int)at_most(view.total, UINT32_MAX);
    }
    return result;
}

/* Shows the current card's view in place of the driver's numbers. Free memory is never more than the card really has left. */
static void show_current(size_t *available, size_t *total) {
    struct memory_view view;
    if (!view_of(guard_current_index(), *total, &view)) {
        return;
    }
    bool oversubscribed = view.total > *total;
    *total = view.total;
    *available = oversubscribed ? view.free : at_most(view.free, *available);
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    if (!guard_on()) {
        return real.cuMemGetInfo_v2(available, total);
    }
    size_t real_available = 0;
    size_t real_total = 0;
    CUresult result = real.cuMemGetInfo_v2(&real_available, &real_total);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    show_current(&real_available, &real_total);
    if (available != NULL) {
        *available = real_available;
    }
    if (total != NULL) {
        *total = real_total;
    }
    return result;
}

CUresult cuMemGetInfo(unsigned int *available, unsigned int *total) {
    bool on = guard_on();
    if (!on) {
        return real.cuMemGetInfo(available, total);
    }
    unsigned int short_available = 0;
    unsigned int short_total = 0;
    CUresult result = real.cuMemGetInfo(&short_available, &short_total);
    size_t real_available = 0;
    size_t real_total = 0;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = real.cuMemGetInfo_v2(&real_available, &real_total);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    show_current(&real_available, &real_total);
    if (available != NULL) {
        *available = (unsigned int)at_most(real_available, UINT32_MAX);
    }
    if (total != NULL) {
        *total = (unsigned int)at_most(real_total, UINT32_MAX);
    }
    return result;
}
