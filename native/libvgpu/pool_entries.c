/* See pool_entries.h.
 *
 * Pools of managed memory: no process's account has what they hold, so their pieces are known one by one. A pool is charged with what the
 * driver says it has reserved or, where that is less than its pieces, with the most that they ever were. A pool that is destroyed while
 * pieces live keeps its charge until the last is freed, as the driver keeps the memory.
 */
#include "pool_entries.h"

#include <string.h>

#include "books.h"
#include "contexts.h"
#include "pools.h"

struct pool pools[MAX_POOLS];
static atomic_int known_entries;
static atomic_long pieces; /* in books.pool_pieces: key = pointer, size = bytes, kind = number of the pool's entry */

int pool_entries_known(void) { return atomic_load_explicit(&known_entries, memory_order_acquire); }

void pool_entries_forget(void) {
    memset(pools, 0, sizeof pools);
    atomic_store(&pieces, 0);
}

uint64_t pool_reserved_by(CUmemoryPool handle) {
    uint64_t bytes = 0;
    return real.cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

struct pool *pool_find(CUmemoryPool handle) {
    for (int at = 0; at < pool_entries_known(); at++) {
        if (pools[at].handle == handle) {
            return &pools[at];
        }
    }
    return NULL;
}

struct pool *pool_entry(CUmemoryPool handle, const struct pool_kind *kind) {
    struct pool *entry = pool_find(handle);
    for (int at = 0; at < MAX_POOLS && entry == NULL; at++) {
        if (pools[at].handle == NULL) {
            entry = &pools[at];
            entry->kind = *kind;
            entry->fresh_since = 0;
            entry->live = 0;
            entry->most = 0;
            entry->tells = false;
            atomic_store(&entry->fresh, 0);
            atomic_store(&entry->charged, 0);
            atomic_store(&entry->cover, 0);
            /* The handle comes last: whoever finds it without the lock finds the rest. */
            atomic_store_explicit(&entry->handle, handle, memory_order_release);
            if (at >= atomic_load(&known_entries)) {
                atomic_store(&known_entries, at + 1);
            }
        }
    }
    return entry;
}

/* --- kinds ------------------------------------------------------------------------------------------------------------------------- */

struct pool_kind pool_kind_at(const CUmemLocation *location, int type) {
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        /* Its place is only where it would rather be. */
        bool anywhere = location->type == CU_MEM_LOCATION_TYPE_INVALID || location_is_host(location);
        struct whereabouts where = anywhere ? (struct whereabouts){0} : location_find(location);
        return (struct pool_kind){.ours = true, .managed = true, .foreign = where.refuse, .cards = where.cards};
    }
    if (location_is_host(location)) {
        return (struct pool_kind){0};
    }
    struct whereabouts where = location_find(location);
    return (struct pool_kind){.ours = !where.forward,
                              .foreign = where.refuse,
                              .unsure = location->type != CU_MEM_LOCATION_TYPE_DEVICE,
                              .cards = where.cards};
}

static bool is_of_device(CUmemoryPool handle, CUdevice device) {
    CUmemoryPool own = NULL;
    return (real.cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS && own == handle) ||
           (real.cuDeviceGetMemPool(&own, device) == CUDA_SUCCESS && own == handle);
}

static struct pool_kind guess_kind(CUmemoryPool handle) {
    int count = 0;
    real.cuDeviceGetCount(&count);
    for (CUdevice device = 0; device < count; device++) {
        if (is_of_device(handle, device)) {
            return pool_kind_at(&(CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ALLOCATION_TYPE_PINNED);
        }
    }
    struct whereabouts where = location_unknown();
    return (struct pool_kind){.ours = true, .managed = true, .foreign = where.refuse, .cards = where.cards};
}

struct pool_kind pool_kind_of(CUmemoryPool handle) {
    books_lock();
    const struct pool *known = pool_find(handle);
    struct pool_kind kind = known != NULL ? known->kind : (struct pool_kind){0};
    books_unlock();
    if (known == NULL) {
        kind = guess_kind(handle);
        books_lock();
        pool_entry(handle, &kind);
        books_unlock();
    }
    return kind;
}

/* --- pools of managed memory ------------------------------------------------------------------------------------------------------- */

/* Charges a pool on cards that are new for it, on all of them or none; `*added` is those. */
static bool add_cards(struct pool *pool, card_set cards, card_set *added) {
    books_lock();
    card_set missing = cards & ~pool->kind.cards;
    uint64_t bytes = atomic_load(&pool->charged);
    books_unlock();
    *added = 0;
    if (!cards_reserve(missing, bytes)) {
        return false;
    }
    books_settling();
    books_lock();
    *added = missing & ~pool->kind.cards;
    pool->kind.cards |= *added;
    uint64_t now = atomic_load(&pool->charged);
    books_unlock();
    cards_settle(*added, bytes, LEDGER_MANAGED, now);
    books_settled();
    cards_return(missing & ~*added, LEDGER_PENDING, bytes);
    return true;
}

uint64_t pools_not_charged(int index, bool mark) {
    uint64_t bytes = 0;
    for (int at = 0; at < pool_entries_known(); at++) {
        struct pool *pool = &pools[at];
        if (pool->handle != NULL && pool->kind.managed && !pool->kind.foreign && (pool->kind.cards & card_alone(index)) == 0) {
            bytes += atomic_load(&pool->charged);
            pool->kind.cards |= mark ? card_alone(index) : 0;
        }
    }
    return bytes;
}

/* With the books locked: the pool of a piece, or NULL. */
static struct pool *pool_of_piece(CUdeviceptr pointer) {
    const struct record *piece = table_find(&books.pool_pieces, pointer);
    return piece != NULL ? &pools[piece->kind] : NULL;
}

bool pools_may_move(CUdeviceptr pointer, card_set cards, card_set *added) {
    *added = 0;
    if (atomic_load(&pieces) == 0) {
        return true;
    }
    books_lock();
    struct pool *pool = pool_of_piece(pointer);
    books_unlock();
    return pool == NULL || add_cards(pool, cards, added);
}

void pools_did_not_move(CUdeviceptr pointer, card_set added) {
    books_settling();
    books_lock();
    struct pool *pool = pool_of_piece(pointer);
    uint64_t bytes = pool != NULL ? atomic_load(&pool->charged) : 0;
    if (pool != NULL) {
        pool->kind.cards &= ~added;
    }
    books_unlock();
    cards_return(pool != NULL ? added : 0, LEDGER_MANAGED, bytes);
    books_settled();
}

bool managed_pool_reserve(CUmemoryPool handle, uint64_t growth, card_set *cards) {
    books_lock();
    struct pool *pool = pool_find(handle);
    books_unlock();
    card_set added;
    if (pool == NULL || !add_cards(pool, contexts_cards(), &added)) {
        return false;
    }
    books_lock();
    *cards = pool->kind.cards;
    books_unlock();
    return cards_reserve(*cards, growth);
}

/* With the books locked. */
static uint64_t has_now(struct pool *pool) {
    uint64_t told = pool_reserved_by(pool->handle);
    /* Less than its pieces: not told, or they went with a context. One that told the truth once is believed. */
    pool->tells = pool->tells || (pool->live > 0 && told >= pool->live);
    return pool->tells || told >= pool->live ? told : pool->most;
}

void managed_pool_settle(struct pool *pool) {
    books_settling();
    books_lock();
    bool there = pool->handle != NULL && pool->handle != POOL_DESTROYED;
    uint64_t now = there ? has_now(pool) : 0;
    uint64_t before = there ? atomic_exchange(&pool->charged, now) : 0;
    card_set cards = pool->kind.cards;
    books_unlock();
    if (now > before) {
        cards_settle(cards, 0, LEDGER_MANAGED, now - before);
    } else if (before > now) {
        cards_return(cards, LEDGER_MANAGED, before - now);
    }
    books_settled();
}

void managed_pool_allocated(CUmemoryPool handle, CUdeviceptr pointer, uint64_t bytes) {
    books_lock();
    struct pool *pool = pool_find(handle);
    if (pool != NULL && pointer != 0 &&
        table_put(&books.pool_pieces, &(struct record){.key = pointer, .size = bytes, .kind = (int32_t)(pool - pools)})) {
        atomic_fetch_add(&pieces, 1);
        pool->live += bytes;
        pool->most = pool->live > pool->most ? pool->live : pool->most;
    }
    books_unlock();
    if (pool != NULL) {
        managed_pool_settle(pool);
    }
}

void managed_pool_trimmed(CUmemoryPool handle, uint64_t keep) {
    books_lock();
    struct pool *pool = pool_find(handle);
    if (pool != NULL && pool->kind.managed) {
        uint64_t least = keep > pool->live ? keep : pool->live;
        pool->most = pool->most < least ? pool->most : least;
    }
    books_unlock();
}

bool pools_piece_take(CUdeviceptr pointer, struct record *piece) {
    if (atomic_load_explicit(&pieces, memory_order_relaxed) == 0) {
        return false;
    }
    books_lock();
    bool known = table_take(&books.pool_pieces, pointer, piece);
    books_unlock();
    atomic_fetch_sub(&pieces, known ? 1 : 0);
    return known;
}

void pools_piece_freed(const struct record *piece, CUresult result) {
    struct pool *pool = &pools[piece->kind];
    uint64_t charged = 0;
    books_settling();
    books_lock();
    card_set cards = pool->kind.cards;
    if (result != CUDA_SUCCESS) {
        if (table_put(&books.pool_pieces, piece)) {
            atomic_fetch_add(&pieces, 1);
        }
    } else {
        pool->live -= piece->size < pool->live ? piece->size : pool->live;
        if (pool->live == 0 && pool->handle == POOL_DESTROYED) {
            charged = atomic_exchange(&pool->charged, 0);
            atomic_store(&pool->handle, NULL);
        }
    }
    books_unlock();
    cards_return(charged > 0 ? cards : 0, LEDGER_MANAGED, charged);
    books_settled();
}

void pools_without_contexts(void) {
    for (int at = 0; at < pool_entries_known(); at++) {
        books_settling();
        books_lock();
        bool managed = pools[at].handle != NULL && pools[at].kind.managed;
        uint64_t charged = managed ? atomic_exchange(&pools[at].charged, 0) : 0;
        card_set cards = pools[at].kind.cards;
        if (managed) {
            pools[at].live = 0;
            pools[at].most = 0;
            if (pools[at].handle == POOL_DESTROYED) {
                atomic_store(&pools[at].handle, NULL);
            }
        }
        books_unlock();
        cards_return(charged > 0 ? cards : 0, LEDGER_MANAGED, charged);
        books_settled();
    }
    books_lock();
    table_forget(&books.pool_pieces);
    atomic_store(&pieces, 0);
    books_unlock();
}
