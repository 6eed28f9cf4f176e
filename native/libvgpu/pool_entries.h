/* The pools that this process knows: of what memory they are, and what they are charged with. Shared by pools.c (allocating),
 * pool_entries.c (the list, and pools of managed memory) and pool_handles.c (making, finding and ending pools).
 */
#ifndef HAMI_VGPU_POOL_ENTRIES_H
#define HAMI_VGPU_POOL_ENTRIES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cards.h"
#include "guard.h"

#define CHUNK (32 * MIB)
#define MAX_POOLS 256
#define POOL_DESTROYED ((CUmemoryPool)-1) /* in place of the handle: pieces of it live on */

struct pool_kind {
    bool ours;    /* charged here: neither the host's memory nor imported from another process */
    bool foreign; /* on a card that was not granted, or it cannot be told */
    bool unsure;  /* of a location that is not known: charged on all cards, and on one of them at most */
    bool managed; /* may move, so that no process's account has it: charged on all cards where it may be */
    card_set cards;
};

struct pool {
    _Atomic(CUmemoryPool) handle; /* NULL = free entry */
    struct pool_kind kind;
    _Atomic uint64_t charged; /* what the ledger has for it: the last reserved size seen */
    _Atomic uint64_t cover;   /* pending bytes kept ready for growth */
    _Atomic uint64_t fresh;   /* contiguous bytes that the last growth left over, at least; only until something is freed */
    long fresh_since;         /* value of `frees` then */
    uint64_t live;            /* of managed memory: bytes of living pieces, */
    uint64_t most;            /* the highest sum of them since the pool was trimmed, */
    bool tells;               /* and that the driver tells what it has reserved: else `most` counts */
};

extern struct pool pools[MAX_POOLS]; /* under the books' lock, but for what is atomic */

/* Entries that were ever in use: the rest need not be looked at. */
int pool_entries_known(void);

uint64_t pool_reserved_by(CUmemoryPool handle);

/* With the books locked. A pool that is not known yet is entered as `kind`; NULL if there are too many. */
struct pool *pool_entry(CUmemoryPool handle, const struct pool_kind *kind);
/* With the books locked. NULL if it is not known. */
struct pool *pool_find(CUmemoryPool handle);

/* What a pool is of; one that nobody saw being made is compared with the cards' own, and may be anything if it is none of them. */
struct pool_kind pool_kind_of(CUmemoryPool handle);
struct pool_kind pool_kind_at(const CUmemLocation *location, int type);

/* Budget for growth on every card where the pool may be, also on those that it was not charged on so far. */
bool managed_pool_reserve(CUmemoryPool handle, uint64_t growth, card_set *cards);
/* Charges what it has now; `pointer` is a new piece, or 0. */
void managed_pool_allocated(CUmemoryPool handle, CUdeviceptr pointer, uint64_t bytes);
void managed_pool_settle(struct pool *pool);
void managed_pool_trimmed(CUmemoryPool handle, uint64_t keep);

void pools_forget_current(void);
void pool_entries_forget(void);

#endif
