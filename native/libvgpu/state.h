/* The container's shared state file: mapping, slots, liveness, mutual exclusion. See abi.h for the layout.
 *
 * One process = one slot, taken at the first need and held by an OFD lock that the kernel drops with the process: an OFD lock lives as long
 * as the open file, and that is kept by a mapping which forked children do not inherit. The mutex is
 * robust: when its holder died inside, the next one recomputes the totals from the slots of the living.
 */
#ifndef HAMI_VGPU_STATE_H
#define HAMI_VGPU_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "limits.h"

/* Maps the file, makes or repairs it if it is no valid state (foreign, truncated, of another boot or version; under a file lock, never
 * shrinking it, never while a living process holds a slot in it), and takes a slot for this process. Idempotent; after fork()
 * the child calls it again and gets its own. Returns NULL where that cannot be: callers refuse then (fail closed). Do not hold the
 * mutex when calling it.
 * `slot` says whether a slot is needed: readers such as nvidia-smi map without one.
 *
 * A repeated call costs one getpid. No descriptor stays open: whatever a program closes, its slot stays its own. */
struct vgpu_state *state_attach(const struct places *places, bool slot);

/* This process's slot, or -1. */
int state_own_slot(void);

/* False if the lock cannot be had (corrupt beyond repair, or held by a stopped process for 5 s): callers refuse. */
bool state_lock(struct vgpu_state *state);
void state_unlock(struct vgpu_state *state);

/* With the lock held: the sum of one slot's usage on one device, as it counts. */
uint64_t state_slot_sum(const struct vgpu_slot *slot, uint32_t device);

/* With the lock held: set devices[].used from the slots. */
void state_recompute(struct vgpu_state *state);

/* With the lock held: give back what dead processes had. `still_counted` (may be NULL) returns how many bytes the driver still counts for a
 * process that is dead since `dead_since` (CLOCK_MONOTONIC, ns), and UINT64_MAX if it was asked before that: an answer from before the
 * death may lack the process's last allocations. Such a slot stays as status 3 with at most that many bytes, for at most 2 s.
 * Returns how many slots are in that waiting state. Costs at most two fcntl per living process. Cleared slots leave the mirror too.
 * Does nothing where the kernel cannot say who lives, for example because the file was replaced. */
/* state_anyone_died: whether there is anything to give back, without asking the driver. */
typedef uint64_t (*state_still_counted)(int32_t pid, uint32_t device, uint64_t dead_since, void *context);
bool state_anyone_died(struct vgpu_state *state);
int state_sweep(struct vgpu_state *state, state_still_counted still_counted, void *context);

/* In the child after fork: forget the parent's slot. Async-signal-safe. */
void state_forget_after_fork(void);

#endif
