/* What the parts of the state file's code share: state_file.c (the file and its locks), state.c (this process's slot),
 * state_sweep.c (mutex, totals, the dead). Nobody else includes this.
 */
#ifndef HAMI_VGPU_STATE_INTERNAL_H
#define HAMI_VGPU_STATE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "abi.h"
#include "limits.h"

/* What pthread_mutex_init writes for a robust mutex shared by processes, in every glibc: both ends of a file must agree on it. On any
 * other kind glibc may do what a preloaded library never may, end the program. */
#define ROBUST_SHARED_KIND (16 | 128)

/* Opens the state file (creates it unless it is the agent's to make). -1 if it is no regular file that may be written. */
int state_file_open(const struct places *places, struct stat *found);

/* Sees to it that the file holds a valid state whose pages all exist, so that no write to its map can fail for want of space.
 * *made is set if it was initialised here. False: it cannot be, or a living process would lose its slot by it. */
bool state_file_prepare(int fd, bool *made);

bool state_file_header_valid(const struct vgpu_state *state);

enum byte_lock { BYTE_LOCKED, BYTE_TAKEN, BYTE_ERROR };
enum byte_lock state_file_lock_slot(int fd, uint32_t slot);
void state_file_unlock_slot(int fd, uint32_t slot);

/* For every slot below `count`: whether another open file than `fd` locks its byte. False if the kernel cannot say. */
bool state_file_find_living(int fd, uint32_t count, bool living[VGPU_MAX_SLOTS]);

/* The same for the file that this process has mapped, its own slot included. */
bool state_find_living(uint32_t count, bool living[VGPU_MAX_SLOTS]);

/* True once after this process initialised the file: nothing that a mirror says about its slots is true then. */
bool state_take_made_here(void);

/* With the mutex held: the slot has no owner and no usage. Totals are the caller's to recompute. */
void state_clear_slot(struct vgpu_slot *slot);

bool state_slot_is_empty(const struct vgpu_slot *slot);

/* slots_used, but never more than there are. */
uint32_t state_slots_used(const struct vgpu_state *state);

#endif
