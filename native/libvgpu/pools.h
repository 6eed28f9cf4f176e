/* Stream-ordered memory: charged by what a pool has reserved from the card, which the driver tells exactly. */
#ifndef HAMI_VGPU_POOLS_H
#define HAMI_VGPU_POOLS_H

#include <stdint.h>

/* Charge every pool of the card with what it has now. Pools shrink without a call of ours. */
void pools_refresh(int index);

/* What the card's pools have now, charged or not. */
uint64_t pools_reserved(int index);

/* The same as pools_refresh after asking the driver to give back what no allocation uses, as it does itself when the card is full. */
void pools_trim(int index);

/* Give back what is only kept ready for growth. */
void pools_drop_cover(int index);

/* A pointer that may be of a pool was freed. */
void pools_something_was_freed(void);

void pools_forget_after_fork(void);

#endif
