/* cuMemAllocAsync and memory pools.
 *
 * Measured: a pool's RESERVED_MEM_CURRENT is exactly what it has from the card; an allocation makes it grow by at most its size rounded up
 * to 32 MiB, and not at all where it fits into what is there. So an allocation is covered by that much budget before the call, and
 * whatever did not become growth is free after it. Up to 32 MiB of cover stay with the pool, so that the usual case touches nothing
 * shared. At the edge of the limit, where there is no cover left, an allocation is let through only if it is sure to fit into what the
 * last growth left over.
 */
#include "pools.h"

#include "books.h"
#include "contexts.h"
#include "guard.h"
#include "overhead.h"
#include "pool_entries.h"
#include "test_points.h"

#define ALIGNMENT 512

static _Atomic(CUmemoryPool) current_pool[VGPU_MAX_DEVICES];
static atomic_long frees;            /* calls that may give pool memory back */
static atomic_long changes;          /* sizes of pools that were not the same as before */

void pools_forget_current(void) {
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        atomic_store(&current_pool[index], NULL);
    }
}

void pools_forget_after_fork(void) {
    pool_entries_forget();
    pools_forget_current();
}

/* Charges a pool with what it has now; `reserved` pending bytes were taken for growth, and stay as cover up to a chunk.
 * Returns how much it grew. */
static uint64_t settle(CUmemoryPool handle, const struct pool_kind *kind, uint64_t reserved) {
    books_settling();
    books_lock();
    struct pool *pool = pool_entry(handle, kind);
    /* Under the lock, so that two threads cannot charge an older reading over a newer one. The driver answers this from memory. */
    uint64_t now = pool_reserved_by(handle);
    uint64_t before = atomic_exchange(&pool->charged, now);
    atomic_fetch_add(&changes, now != before ? 1 : 0);
    uint64_t growth = now > before ? now - before : 0;
    uint64_t left = reserved > growth ? reserved - growth : 0;
    uint64_t has = atomic_load(&pool->cover);
    uint64_t lacks = has < CHUNK ? CHUNK - has : 0;
    uint64_t keep = left < lacks ? left : lacks;
    atomic_fetch_add(&pool->cover, keep);
    uint64_t release = reserved - keep;
    if (now == 0 && reserved == 0) {
        release = atomic_exchange(&pool->cover, 0); /* an empty pool keeps nothing ready */
    }
    books_unlock();
    TEST_POINT("pools.settle.between");
    if (growth > 0) {
        cards_settle(kind->cards, release, LEDGER_POOL, growth);
    } else {
        if (before > now) {
            cards_return(kind->cards, LEDGER_POOL, before - now);
        }
        cards_return(release > 0 ? kind->cards : 0, LEDGER_PENDING, release);
    }
    books_settled();
    if (before > now && kind->unsure) {
        overhead_measure_each(kind->cards); /* where it was not, as much of the overhead was taken for it */
    }
    return growth;
}

/* With the books locked: an entry that is charged on a card, and is there. */
static bool is_on(const struct pool *pool, int index) {
    return pool->handle != NULL && pool->handle != POOL_DESTROYED && (pool->kind.cards & card_alone(index)) != 0;
}

void pools_refresh(int index) {
    for (int at = 0; at < pool_entries_known(); at++) {
        books_lock();
        bool there = is_on(&pools[at], index);
        CUmemoryPool handle = pools[at].handle;
        struct pool_kind kind = pools[at].kind;
        books_unlock();
        if (there && kind.managed) {
            managed_pool_settle(&pools[at]);
        } else if (there) {
            settle(handle, &kind, 0);
        }
    }
}

long pools_changes(void) { return atomic_load(&changes); }

uint64_t pools_reserved(int index) {
    uint64_t bytes = 0;
    for (int at = 0; at < pool_entries_known(); at++) {
        books_lock();
        CUmemoryPool handle = is_on(&pools[at], index) && !pools[at].kind.managed ? pools[at].handle : NULL;
        books_unlock();
        bytes += handle != NULL ? pool_reserved_by(handle) : 0;
    }
    return bytes;
}

void pools_drop_cover(int index) {
    for (int at = 0; at < pool_entries_known(); at++) {
        books_lock();
        uint64_t cover = is_on(&pools[at], index) ? atomic_exchange(&pools[at].cover, 0) : 0;
        card_set cards = pools[at].kind.cards;
        books_unlock();
        if (cover > 0) {
            cards_return(cards, LEDGER_PENDING, cover);
        }
    }
}

void pools_trim(int index) {
    for (int at = 0; at < pool_entries_known(); at++) {
        books_lock();
        CUmemoryPool handle = is_on(&pools[at], index) && pools[at].charged > 0 ? pools[at].handle : NULL;
        struct pool_kind kind = pools[at].kind;
        pools[at].fresh = 0;
        books_unlock();
        if (handle != NULL && real.cuMemPoolTrimTo(handle, 0) == CUDA_SUCCESS && kind.managed) {
            managed_pool_trimmed(handle, 0);
        }
        if (handle != NULL && kind.managed) {
            managed_pool_settle(&pools[at]);
        } else if (handle != NULL) {
            settle(handle, &kind, 0);
        }
    }
    pools_drop_cover(index);
}

/* --- allocating ----------------------------------------------------------------------------------------------------------------- */

enum cover { COVERED, FITS, REFUSED };

/* Takes budget for the growth that an allocation may cause. `*reserved` is what must be settled. */
static enum cover take_cover(CUmemoryPool handle, const struct pool_kind *kind, size_t size, uint64_t *reserved) {
    uint64_t growth = size <= CHUNK ? CHUNK : round_up(size, CHUNK);
    uint64_t aligned = round_up(size, ALIGNMENT);
    books_lock();
    struct pool *pool = pool_entry(handle, kind);
    if (pool == NULL) {
        books_unlock();
        return REFUSED;
    }
    uint64_t fresh = atomic_load(&pool->fresh);
    if (aligned <= fresh && pool->fresh_since == atomic_load(&frees) &&
        atomic_compare_exchange_strong(&pool->fresh, &fresh, fresh - aligned)) {
        books_unlock();
        *reserved = 0;
        return FITS;
    }
    pool->fresh = 0;
    uint64_t has = atomic_exchange(&pool->cover, 0);
    uint64_t ready = has < growth ? has : growth;
    atomic_fetch_add(&pool->cover, has - ready);
    books_unlock();
    *reserved = ready;
    if (ready < growth) {
        if (!cards_reserve(kind->cards, growth - ready)) {
            cards_return(kind->cards, LEDGER_PENDING, ready);
            *reserved = 0;
            return REFUSED;
        }
        *reserved = growth;
    }
    return COVERED;
}

static void left_over(CUmemoryPool handle, const struct pool_kind *kind, uint64_t growth, size_t size, long since) {
    uint64_t aligned = round_up(size, ALIGNMENT);
    if (growth > aligned) {
        books_lock();
        struct pool *pool = pool_entry(handle, kind);
        pool->fresh = growth - aligned;
        pool->fresh_since = since;
        books_unlock();
    }
}

typedef CUresult (*allocate_async)(CUdeviceptr *pointer, size_t size, CUstream stream);
typedef CUresult (*allocate_from_pool)(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream);

/* The usual case without a lock: a pool that we know, with a whole chunk of cover, which is taken. */
static struct pool *with_cover(CUmemoryPool handle) {
    int known = pool_entries_known();
    for (int at = 0; at < known; at++) {
        struct pool *pool = &pools[at];
        if (atomic_load_explicit(&pool->handle, memory_order_relaxed) != handle) {
            continue;
        }
        uint64_t has = atomic_load_explicit(&pool->cover, memory_order_relaxed);
        while (has >= CHUNK) {
            if (atomic_compare_exchange_weak_explicit(&pool->cover, &has, has - CHUNK, memory_order_acquire, memory_order_relaxed)) {
                return pool;
            }
        }
        return NULL;
    }
    return NULL;
}

static CUresult allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool handle, const struct pool_kind *kind, CUstream stream,
                         allocate_async plain, allocate_from_pool from_pool) {
    struct pool *ready = size <= CHUNK ? with_cover(handle) : NULL;
    if (ready != NULL) {
        long since = atomic_load_explicit(&frees, memory_order_relaxed);
        CUresult result = plain != NULL ? plain(pointer, size, stream) : from_pool(pointer, size, handle, stream);
        if (pool_reserved_by(handle) == atomic_load_explicit(&ready->charged, memory_order_relaxed)) {
            atomic_fetch_add_explicit(&ready->cover, CHUNK, memory_order_release);
            if (atomic_load_explicit(&ready->fresh, memory_order_relaxed) != 0) {
                atomic_store(&ready->fresh, 0); /* some of it may be used now */
            }
            return result;
        }
        uint64_t growth = settle(handle, kind, CHUNK);
        if (result == CUDA_SUCCESS) {
            left_over(handle, kind, growth, size, since);
        }
        return result;
    }
    uint64_t reserved = 0;
    enum cover cover = take_cover(handle, kind, size, &reserved);
    if (cover == REFUSED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    TEST_POINT("pools.covered");
    if (cover == FITS) {
        return plain != NULL ? plain(pointer, size, stream) : from_pool(pointer, size, handle, stream);
    }
    long since = atomic_load(&frees);
    CUresult result = plain != NULL ? plain(pointer, size, stream) : from_pool(pointer, size, handle, stream);
    TEST_POINT("pools.allocated");
    uint64_t growth = settle(handle, kind, reserved);
    if (result == CUDA_SUCCESS) {
        left_over(handle, kind, growth, size, since);
    }
    return result;
}

/* --- which pool --------------------------------------------------------------------------------------------------------------- */

/* The card of a stream: of its own context, or of the current one for the default streams. */
static int index_of_stream(CUstream stream) {
    int only = contexts_only_index();
    if (only >= 0) {
        return only;
    }
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return guard_current_index();
    }
    CUcontext context;
    CUcontext current;
    if (real.cuCtxGetCurrent(&current) != CUDA_SUCCESS || real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == current ||
        context == NULL || real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) {
        return guard_current_index();
    }
    int index = guard_current_index();
    real.cuCtxPopCurrent_v2(&context);
    return index;
}

static CUmemoryPool current_pool_of(int index) {
    CUmemoryPool pool = atomic_load_explicit(&current_pool[index], memory_order_acquire);
    if (pool == NULL && real.cuDeviceGetMemPool(&pool, guard_device_of(index)) == CUDA_SUCCESS) {
        atomic_store_explicit(&current_pool[index], pool, memory_order_release);
    }
    return pool;
}

static CUresult allocate_in_current_pool(CUdeviceptr *pointer, size_t size, CUstream stream, allocate_async plain) {
    int index = size == 0 || pointer == NULL ? GUARD_FORWARD : index_of_stream(stream);
    if (index == GUARD_REFUSE) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUmemoryPool pool = index == GUARD_FORWARD ? NULL : current_pool_of(index);
    struct pool_kind kind = {.ours = true, .cards = index >= 0 ? card_alone(index) : 0};
    return pool == NULL ? plain(pointer, size, stream) : allocate(pointer, size, pool, &kind, stream, plain, NULL);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream) {
    return guard_on() ? allocate_in_current_pool(pointer, size, stream, real.cuMemAllocAsync) : real.cuMemAllocAsync(pointer, size, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream) {
    return guard_on() ? allocate_in_current_pool(pointer, size, stream, real.cuMemAllocAsync_ptsz)
                      : real.cuMemAllocAsync_ptsz(pointer, size, stream);
}

/* Of managed memory: seldom used, so it goes without cover. */
static CUresult allocate_managed(CUdeviceptr *pointer, size_t size, CUmemoryPool handle, CUstream stream, allocate_from_pool from_pool) {
    uint64_t growth = round_up(size, CHUNK);
    card_set cards;
    if (!managed_pool_reserve(handle, growth, &cards)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = from_pool(pointer, size, handle, stream);
    managed_pool_allocated(handle, result == CUDA_SUCCESS ? *pointer : 0, round_up(size, ALIGNMENT));
    cards_return(cards, LEDGER_PENDING, growth);
    return result;
}

static CUresult allocate_in_pool(CUdeviceptr *pointer, size_t size, CUmemoryPool handle, CUstream stream, allocate_from_pool from_pool) {
    if (size == 0 || pointer == NULL || handle == NULL) {
        return from_pool(pointer, size, handle, stream);
    }
    struct pool_kind kind = pool_kind_of(handle);
    if (kind.foreign) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!kind.ours) {
        return from_pool(pointer, size, handle, stream);
    }
    return kind.managed ? allocate_managed(pointer, size, handle, stream, from_pool)
                        : allocate(pointer, size, handle, &kind, stream, NULL, from_pool);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    return guard_on() ? allocate_in_pool(pointer, size, pool, stream, real.cuMemAllocFromPoolAsync)
                      : real.cuMemAllocFromPoolAsync(pointer, size, pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    return guard_on() ? allocate_in_pool(pointer, size, pool, stream, real.cuMemAllocFromPoolAsync_ptsz)
                      : real.cuMemAllocFromPoolAsync_ptsz(pointer, size, pool, stream);
}

/* --- freeing, and the moments at which pools shrink ------------------------------------------------------------------------------ */

void pools_something_was_freed(void) { atomic_fetch_add_explicit(&frees, 1, memory_order_relaxed); }

static CUresult free_async(CUresult (*call)(CUdeviceptr pointer, CUstream stream), CUdeviceptr pointer, CUstream stream) {
    pools_something_was_freed();
    struct record piece;
    bool of_managed = pools_piece_take(pointer, &piece);
    TEST_POINT("pools.free.before");
    CUresult result = call(pointer, stream);
    if (of_managed) {
        pools_piece_freed(&piece, result);
    }
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return guard_on() ? free_async(real.cuMemFreeAsync, pointer, stream) : real.cuMemFreeAsync(pointer, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return guard_on() ? free_async(real.cuMemFreeAsync_ptsz, pointer, stream) : real.cuMemFreeAsync_ptsz(pointer, stream);
}

/* After a wait: memory freed before it may have gone back to the card. Which free this wait was for nobody can tell, with more than one
 * stream or thread: the pools themselves are asked. One that is as it was costs nothing shared. */
static void after_waiting(CUresult result) {
    TEST_POINT("pools.waited");
    overhead_settle();
    if (result == CUDA_SUCCESS && pool_entries_known() > 0 && guard_attached()) {
        for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
            if (guard_device_of(index) >= 0) {
                pools_refresh(index);
            }
        }
    }
}

#define WAITING(name, params, arguments)      \
    CUresult name params {                    \
        bool on = guard_on();                 \
        CUresult result = real.name arguments; \
        if (on) {                             \
            after_waiting(result);            \
        }                                     \
        return result;                        \
    }

WAITING(cuCtxSynchronize, (void), ())
WAITING(cuCtxSynchronize_v2, (CUcontext context), (context))
WAITING(cuStreamSynchronize, (CUstream stream), (stream))
WAITING(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
WAITING(cuEventSynchronize, (CUevent event), (event))

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    bool on = guard_on();
    CUresult result = real.cuMemPoolTrimTo(pool, keep);
    if (on) {
        if (result == CUDA_SUCCESS) {
            managed_pool_trimmed(pool, keep);
        }
        pools_something_was_freed();
        after_waiting(result);
    }
    return result;
}
