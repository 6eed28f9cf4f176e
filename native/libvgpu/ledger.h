/* What this process has of each card, in the state that all processes of the container share; and whether more may be had.
 *
 * Reserve, then allocate: bytes are taken from the limit before the driver is asked, so two processes can never both have the last of
 * it. What was reserved is `pending` until the call returned; then it becomes what was really used. All of it is in the process's slot, so
 * the kernel's word that the process is gone gives everything back, whatever it was doing.
 */
#ifndef HAMI_VGPU_LEDGER_H
#define HAMI_VGPU_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

/* In the order of struct vgpu_usage. */
enum ledger_kind {
    LEDGER_OVERHEAD,
    LEDGER_LINEAR,
    LEDGER_MANAGED,
    LEDGER_POOL,
    LEDGER_VMM,
    LEDGER_ARRAY,
    LEDGER_GRAPH,
    LEDGER_PENDING,
};

#define MIB (1ull << 20)
#define DEVICE_PAGE (2 * MIB)

static inline uint64_t round_up(uint64_t bytes, uint64_t step) {
    return bytes > UINT64_MAX - step ? UINT64_MAX / step * step : (bytes + step - 1) / step * step;
}

/* Takes bytes from the limit as pending. Before it says no it brings everything up to date: our own pools and overhead, the policy,
 * processes that died. False: the caller refuses with CUDA_ERROR_OUT_OF_MEMORY. */
bool ledger_reserve(int index, uint64_t bytes);

/* The same without the effort: for what would only be nice to have. */
bool ledger_reserve_lightly(int index, uint64_t bytes);

/* `reserved` bytes are no longer pending; `used` bytes of `kind` were taken instead (more than was reserved is charged all the same). */
void ledger_settle(int index, uint64_t reserved, enum ledger_kind kind, uint64_t used);

/* Bytes of a kind are free again. */
void ledger_return(int index, enum ledger_kind kind, uint64_t bytes);

/* A kind that is measured as a whole, not counted up and down. */
void ledger_set(int index, enum ledger_kind kind, uint64_t bytes, uint64_t reserved);

/* With the state locked: another process's slot has more overhead than it knows. Its own next measurement says how much it is. */
struct vgpu_state;
void ledger_charge_other(struct vgpu_state *state, int slot, int index, uint64_t bytes);

/* What this process has of a kind. */
uint64_t ledger_own(int index, enum ledger_kind kind);

/* Bytes that the container may still take; UINT64_MAX without limit. A look, not a promise. */
uint64_t ledger_room(int index);

/* Before somebody is told numbers: bring our own pools and overhead up to date, free what the dead had. */
void ledger_refresh_view(int index);

void ledger_forget_after_fork(void);

#endif
