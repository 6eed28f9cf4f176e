/* The state file's mutex, its totals, and taking back what dead processes had. See state.h.
 *
 * Totals are sums over slots, so they can always be computed again: that is what happens when a lock holder died, whatever it was at.
 */
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mirror.h"
#include "state.h"
#include "state_internal.h"
#include "test_points.h"

#define LOCK_SLICE_NANOSECONDS 10000000
#define LOCK_WAIT_SLICES 500 /* 5 s in all */
#define STILL_COUNTED_NANOSECONDS 2000000000ull

static uint64_t add_saturating(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

uint32_t state_slots_used(const struct vgpu_state *state) {
    uint32_t used = __atomic_load_n(&state->slots_used, __ATOMIC_RELAXED);
    return used < VGPU_MAX_SLOTS ? used : VGPU_MAX_SLOTS;
}

uint64_t state_slot_sum(const struct vgpu_slot *slot, uint32_t device) {
    const struct vgpu_usage *usage = &slot->usage[device];
    uint64_t sum = add_saturating(usage->overhead, usage->linear);
    sum = add_saturating(sum, usage->managed);
    sum = add_saturating(sum, usage->pool);
    sum = add_saturating(sum, usage->vmm);
    sum = add_saturating(sum, usage->array);
    sum = add_saturating(sum, usage->graph);
    return add_saturating(sum, usage->pending);
}

bool state_slot_is_empty(const struct vgpu_slot *slot) {
    for (uint32_t device = 0; device < VGPU_MAX_DEVICES; device++) {
        if (state_slot_sum(slot, device) != 0) {
            return false;
        }
    }
    return true;
}

void state_recompute(struct vgpu_state *state) {
    uint32_t slots = state_slots_used(state);
    for (uint32_t device = 0; device < VGPU_MAX_DEVICES; device++) {
        uint64_t sum = 0;
        for (uint32_t slot = 0; slot < slots; slot++) {
            sum = add_saturating(sum, state_slot_sum(&state->slots[slot], device));
        }
        state->devices[device].used = sum;
    }
}

/* In slices: a waiter that was woken and is killed before it could try takes the wake-up of the others to its grave. They look again. */
static int wait_for(pthread_mutex_t *lock) {
    int result = pthread_mutex_trylock(lock);
    for (int slice = 0; (result == EBUSY || result == ETIMEDOUT) && slice < LOCK_WAIT_SLICES; slice++) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOCK_SLICE_NANOSECONDS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        result = pthread_mutex_timedlock(lock, &until);
    }
    return result;
}

bool state_lock(struct vgpu_state *state) {
    if (state == NULL || state->lock.__data.__kind != ROBUST_SHARED_KIND) {
        return false;
    }
    int result = wait_for(&state->lock);
    if (result == EOWNERDEAD) {
        TEST_POINT("state.lock.inherited");
        state->writing = 1;
        state_recompute(state);
        state->recoveries++;
        TEST_POINT("state.lock.recomputed");
        state->writing = 0;
        result = pthread_mutex_consistent(&state->lock);
        if (result != 0) {
            pthread_mutex_unlock(&state->lock);
        }
    }
    if (result == 0) {
        TEST_POINT("state.lock.held");
    }
    return result == 0;
}

void state_unlock(struct vgpu_state *state) {
    TEST_POINT("state.lock.before_unlock");
    pthread_mutex_unlock(&state->lock);
}

void state_clear_slot(struct vgpu_slot *slot) {
    uint64_t epoch = slot->epoch;
    memset(slot, 0, sizeof *slot);
    slot->epoch = epoch;
}

static uint64_t monotonic_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* A pid is given out again only after its last owner is gone, its memory too: what the driver counts is the new owner's then. */
static bool pid_lives_elsewhere(const struct vgpu_state *state, uint32_t dead, const bool *living) {
    for (uint32_t slot = 0; slot < state_slots_used(state); slot++) {
        if (slot != dead && living[slot] && state->slots[slot].pid == state->slots[dead].pid) {
            return true;
        }
    }
    return false;
}

/* Lowers a dead slot to what the driver still counts for it. True if anything is left. */
static bool lower_to_counted(struct vgpu_slot *slot, state_still_counted still_counted, void *context) {
    bool any = false;
    for (uint32_t device = 0; device < VGPU_MAX_DEVICES; device++) {
        uint64_t had = state_slot_sum(slot, device);
        if (had == 0) {
            continue;
        }
        uint64_t counted = still_counted(slot->pid, device, slot->dead_since, context);
        uint64_t left = counted < had ? counted : had;
        memset(&slot->usage[device], 0, sizeof slot->usage[device]);
        slot->usage[device].overhead = left;
        any = any || left != 0;
    }
    return any;
}

/* True if the slot must wait: the driver still counts memory of its dead owner, and not for longer than it may. */
static bool must_wait(struct vgpu_state *state, uint32_t index, const bool *living, state_still_counted still_counted, void *context) {
    struct vgpu_slot *slot = &state->slots[index];
    if (still_counted == NULL || slot->pid == 0 || pid_lives_elsewhere(state, index, living)) {
        return false;
    }
    uint64_t now = monotonic_nanoseconds();
    if (slot->status != 3 || slot->dead_since > now) {
        slot->dead_since = now;
        slot->status = 3;
    }
    return now - slot->dead_since < STILL_COUNTED_NANOSECONDS && lower_to_counted(slot, still_counted, context);
}

/* A mirror that outlived the state it was a copy of shows processes that were never ours. */
static void clear_foreign_mirror(const bool *living) {
    if (mirror_is_open() && state_take_made_here()) {
        for (int slot = 0; slot < VGPU_MAX_SLOTS; slot++) {
            if (!living[slot]) {
                mirror_process(slot, 0, 0);
            }
        }
    }
}

static bool is_free(const struct vgpu_slot *slot) { return slot->pid == 0 && slot->status == 0 && state_slot_is_empty(slot); }

bool state_anyone_died(struct vgpu_state *state) {
    int saved = errno;
    bool living[VGPU_MAX_SLOTS];
    bool died = false;
    if (state_find_living(state_slots_used(state), living)) {
        for (uint32_t index = 0; index < state_slots_used(state); index++) {
            died = died || (!living[index] && !is_free(&state->slots[index]));
        }
    }
    errno = saved;
    return died;
}

int state_sweep(struct vgpu_state *state, state_still_counted still_counted, void *context) {
    int saved = errno;
    int waiting = 0;
    bool living[VGPU_MAX_SLOTS];
    if (!state_find_living(state_slots_used(state), living)) {
        errno = saved;
        return 0; /* nobody is declared dead on a guess */
    }
    bool changed = false;
    for (uint32_t index = 0; index < state_slots_used(state); index++) {
        struct vgpu_slot *slot = &state->slots[index];
        if (living[index] || is_free(slot)) {
            continue;
        }
        if (!changed) {
            state->writing = 1;
            changed = true;
        }
        if (must_wait(state, index, living, still_counted, context)) {
            waiting++;
        } else {
            state_clear_slot(slot);
            __atomic_fetch_add(&state->suspicions, 1, __ATOMIC_ACQ_REL); /* what it shared is its partners' now */
            mirror_process((int)index, 0, 0);
        }
        TEST_POINT("state.sweep.between");
    }
    if (changed) {
        state_recompute(state);
        TEST_POINT("state.sweep.recomputed");
        state->writing = 0;
    }
    clear_foreign_mirror(living);
    errno = saved;
    return waiting;
}
