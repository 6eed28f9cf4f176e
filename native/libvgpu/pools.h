/* Stream-ordered memory: charged by what a pool has reserved from the card, which the driver tells exactly. */
#ifndef HAMI_VGPU_POOLS_H
#define HAMI_VGPU_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "cards.h"
#include "table.h"

/* Charge every pool of the card with what it has now. Pools shrink without a call of ours. */
void pools_refresh(int index);

/* What the card's pools have now, charged or not. */
uint64_t pools_reserved(int index);

/* How often any pool was seen to have changed. */
long pools_changes(void);

/* The same as pools_refresh after asking the driver to give back what no allocation uses, as it does itself when the card is full. */
void pools_trim(int index);

/* Give back what is only kept ready for growth. */
void pools_drop_cover(int index);

/* A pointer that may be of a pool was freed. */
void pools_something_was_freed(void);

/* Pools of managed memory. With the books locked: bytes that are not charged on a card yet; with `mark` they are from now on. */
uint64_t pools_not_charged(int index, bool mark);

/* A piece shall go to cards: its pool is charged on those that are `*added` for it. False: it does not fit. Then it did not go after all. */
bool pools_may_move(CUdeviceptr pointer, card_set cards, card_set *added);
void pools_did_not_move(CUdeviceptr pointer, card_set added);

/* Before and after a pointer that may be of such a pool is freed; `piece` is only for the second. */
bool pools_piece_take(CUdeviceptr pointer, struct record *piece);
void pools_piece_freed(const struct record *piece, CUresult result);

/* The process's last context went, and all memory of pools with it. */
void pools_without_contexts(void);

void pools_forget_after_fork(void);

#endif
