/* See ledger.h. Every change is one critical section of the shared state: own slot and the card's total together. */
#include "ledger.h"

#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include "books.h"
#include "guard.h"
#include "mirror.h"
#include "overhead.h"
#include "pools.h"
#include "state.h"
#include "test_points.h"

#define WAIT_FOR_THE_DYING_MS 500 /* the driver needs a moment to take back what a killed process had */
#define WAIT_STEP_MS 5

static uint64_t *field_of(struct vgpu_usage *usage, enum ledger_kind kind) {
    _Static_assert(offsetof(struct vgpu_usage, pending) == LEDGER_PENDING * sizeof(uint64_t), "kinds are in the order of the fields");
    return &usage->overhead + kind;
}

static uint64_t less(uint64_t from, uint64_t bytes) { return from > bytes ? from - bytes : 0; }

static uint64_t limit_of(int index) { return guard_limits()->devices[index].memory; }

/* With the lock held: `kind` loses `take` and gains `add`, and `reserved` bytes are no longer pending. */
static void change_slot(struct vgpu_state *state, int number, int index, enum ledger_kind kind, uint64_t take, uint64_t add,
                        uint64_t reserved) {
    struct vgpu_slot *slot = &state->slots[number];
    struct vgpu_usage *usage = &slot->usage[index];
    struct vgpu_state_device *device = &state->devices[index];
    uint64_t before = state_slot_sum(slot, (uint32_t)index);
    state->writing = 1;
    slot->changes++;
    uint64_t *field = field_of(usage, kind);
    *field = less(*field, take) + add;
    TEST_POINT("ledger.change.one_field");
    usage->pending = less(usage->pending, reserved);
    TEST_POINT("ledger.change.before_total");
    uint64_t after = state_slot_sum(slot, (uint32_t)index);
    device->used = less(device->used, before) + after;
    if (after > usage->peak) {
        usage->peak = after;
    }
    if (device->used > device->peak) {
        device->peak = device->used;
    }
    state->writing = 0;
}

static void change(struct vgpu_state *state, int index, enum ledger_kind kind, uint64_t take, uint64_t add, uint64_t reserved) {
    change_slot(state, state_own_slot(), index, kind, take, add, reserved);
}

void ledger_charge_other(struct vgpu_state *state, int slot, int index, uint64_t bytes) {
    change_slot(state, slot, index, LEDGER_OVERHEAD, 0, bytes, 0);
    mirror_usage(slot, (uint32_t)index, &state->slots[slot].usage[index]);
}

static struct vgpu_state *locked(void) {
    if (!guard_attached()) {
        return NULL;
    }
    struct vgpu_state *state = guard_state();
    return state_lock(state) ? state : NULL;
}

/* Copies what we have, unlocks, and tells HAMi's monitors. */
static void unlock_and_tell(struct vgpu_state *state, int index) {
    int slot = state_own_slot();
    struct vgpu_usage usage = state->slots[slot].usage[index];
    state_unlock(state);
    mirror_usage(slot, (uint32_t)index, &usage);
}

bool ledger_reserve_lightly(int index, uint64_t bytes) {
    struct vgpu_state *state = locked();
    if (state == NULL) {
        return false;
    }
    TEST_POINT("ledger.reserve.locked");
    uint64_t limit = limit_of(index);
    uint64_t used = state->devices[index].used;
    bool fits = limit == 0 || (used <= limit && bytes <= limit - used);
    if (fits) {
        change(state, index, LEDGER_PENDING, 0, bytes, 0);
    }
    unlock_and_tell(state, index);
    TEST_POINT("ledger.reserve.done");
    return fits;
}

/* Frees what the dead had, as far as the driver says that it has it back. Twice, because only an answer from after a death counts. */
static int sweep(void) {
    struct vgpu_state *looked_at = locked();
    bool died = looked_at != NULL && state_anyone_died(looked_at);
    if (looked_at != NULL) {
        state_unlock(looked_at);
    }
    struct counted_processes *counted = died ? malloc(sizeof *counted) : NULL;
    int waiting = counted != NULL ? 1 : 0;
    for (int round = 0; round < 2 && waiting > 0; round++) {
        overhead_count_processes(counted);
        struct vgpu_state *state = locked();
        if (state == NULL) {
            break;
        }
        waiting = state_sweep(state, overhead_still_counted, counted);
        state_unlock(state);
    }
    free(counted);
    return waiting;
}

static void count_refusal(int index) {
    struct vgpu_state *state = locked();
    if (state != NULL) {
        state->devices[index].refused++;
        state_unlock(state);
    }
}

bool ledger_reserve(int index, uint64_t bytes) {
    guard_follow_policy(false);
    uint64_t limit = limit_of(index);
    if (limit != 0 && bytes > limit) {
        guard_follow_policy(true);
        limit = limit_of(index);
        if (limit != 0 && bytes > limit) {
            count_refusal(index);
            return false;
        }
    }
    if (limit != 0 && overhead_is_due(index, less(ledger_room(index), bytes))) {
        overhead_measure(index, 0);
    }
    if (ledger_reserve_lightly(index, bytes)) {
        return true;
    }
    pools_trim(index);
    guard_follow_policy(true);
    for (int waited = 0;; waited += WAIT_STEP_MS) {
        int dying = sweep();
        overhead_measure(index, 0);
        if (ledger_reserve_lightly(index, bytes)) {
            return true;
        }
        if (dying == 0 || waited >= WAIT_FOR_THE_DYING_MS) {
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = WAIT_STEP_MS * 1000000L}, NULL);
    }
    count_refusal(index);
    return false;
}

void ledger_settle(int index, uint64_t reserved, enum ledger_kind kind, uint64_t used) {
    TEST_POINT("ledger.settle.before");
    struct vgpu_state *state = locked();
    if (state == NULL) {
        return;
    }
    change(state, index, kind, 0, used, reserved);
    unlock_and_tell(state, index);
}

void ledger_return(int index, enum ledger_kind kind, uint64_t bytes) {
    TEST_POINT("ledger.return.before");
    struct vgpu_state *state = locked();
    if (state == NULL) {
        return;
    }
    change(state, index, kind, bytes, 0, 0);
    unlock_and_tell(state, index);
}

void ledger_set(int index, enum ledger_kind kind, uint64_t bytes, uint64_t reserved) {
    struct vgpu_state *state = locked();
    if (state == NULL) {
        return;
    }
    change(state, index, kind, UINT64_MAX, bytes, reserved);
    unlock_and_tell(state, index);
}

uint64_t ledger_own(int index, enum ledger_kind kind) {
    struct vgpu_state *state = locked();
    if (state == NULL) {
        return 0;
    }
    uint64_t bytes = *field_of(&state->slots[state_own_slot()].usage[index], kind);
    state_unlock(state);
    return bytes;
}

uint64_t ledger_room(int index) {
    uint64_t limit = limit_of(index);
    struct vgpu_state *state = limit == 0 ? NULL : locked();
    if (state == NULL) {
        return UINT64_MAX;
    }
    uint64_t room = less(limit, state->devices[index].used);
    state_unlock(state);
    return room;
}

void ledger_refresh_view(int index) {
    if (!guard_attached()) {
        return;
    }
    guard_follow_policy(false);
    sweep();
    pools_drop_cover(index);
    overhead_measure(index, 0);
}

void ledger_forget_after_fork(void) { books_forget_after_fork(); }
