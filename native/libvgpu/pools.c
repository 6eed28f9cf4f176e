/* cuMemAllocAsync and memory pools.
 *
 * Measured: a pool's RESERVED_MEM_CURRENT is exactly what it has from the card; an allocation makes it grow by at most its size rounded up
 * to 32 MiB, and not at all where it fits into what is there. So an allocation is covered by that much budget before the call, and
 * whatever did not become growth is free after it. Up to 32 MiB of cover stay with the pool, so that the usual case touches nothing
 * shared. At the edge of the limit, where there is no cover left, an allocation is let through only if it is sure to fit into what the
 * last growth left over.
 */
#include "pools.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "books.h"
#include "contexts.h"
#include "guard.h"
#include "ledger.h"
#include "overhead.h"
#include "test_points.h"

#define CHUNK (32 * MIB)
#define MAX_POOLS 256
#define ALIGNMENT 512

struct pool {
    _Atomic(CUmemoryPool) handle; /* NULL = free entry */
    int index;
    bool ours;        /* of device memory of a card of ours, not imported from another process */
    _Atomic uint64_t charged; /* what the ledger has for it: the last reserved size seen */
    _Atomic uint64_t cover;   /* pending bytes kept ready for growth */
    _Atomic uint64_t fresh;   /* contiguous bytes that the last growth left over, at least; only until something is freed */
    long fresh_since;         /* value of `frees` then */
};

static struct pool pools[MAX_POOLS]; /* under the books' lock, but for what is atomic */
static atomic_int pools_known;       /* entries that were ever in use: the rest need not be looked at */
static _Atomic(CUmemoryPool) current_pool[VGPU_MAX_DEVICES];
static atomic_long frees;            /* calls that may give pool memory back */
static atomic_long frees_looked_at; /* value of `frees` when pools were last refreshed for it */

static void forget_current_pools(void) {
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        atomic_store(&current_pool[index], NULL);
    }
}

void pools_forget_after_fork(void) {
    memset(pools, 0, sizeof pools);
    forget_current_pools();
}

static uint64_t reserved_by(CUmemoryPool handle) {
    uint64_t bytes = 0;
    return real.cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

/* With the books locked. The handle comes last: whoever finds it without the lock finds the rest. */
static void write_entry(struct pool *entry, CUmemoryPool handle, int index, bool ours, uint64_t charged, uint64_t cover) {
    entry->index = index;
    entry->ours = ours;
    entry->fresh_since = 0;
    atomic_store(&entry->fresh, 0);
    atomic_store(&entry->charged, charged);
    atomic_store(&entry->cover, cover);
    atomic_store_explicit(&entry->handle, handle, memory_order_release);
}

/* With the books locked. A pool that we did not see being made (the card's default pool) is found here first. */
static struct pool *entry_of(CUmemoryPool handle, int index, bool ours) {
    struct pool *empty = NULL;
    for (int at = 0; at < MAX_POOLS; at++) {
        if (pools[at].handle == handle) {
            return &pools[at];
        }
        if (empty == NULL && pools[at].handle == NULL) {
            empty = &pools[at];
        }
    }
    if (empty != NULL) {
        write_entry(empty, handle, index, ours, 0, 0);
        int count = (int)(empty - pools) + 1;
        if (count > atomic_load(&pools_known)) {
            atomic_store(&pools_known, count);
        }
    }
    return empty;
}

/* Charges a pool with what it has now; `reserved` pending bytes were taken for growth, and stay as cover up to a chunk.
 * Returns how much it grew. */
static uint64_t settle(CUmemoryPool handle, int index, uint64_t reserved) {
    books_lock();
    struct pool *pool = entry_of(handle, index, true);
    /* Under the lock, so that two threads cannot charge an older reading over a newer one. The driver answers this from memory. */
    uint64_t now = reserved_by(handle);
    uint64_t before = atomic_exchange(&pool->charged, now);
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
    if (growth > 0) {
        ledger_settle(index, release, LEDGER_POOL, growth);
    } else {
        if (before > now) {
            ledger_return(index, LEDGER_POOL, before - now);
        }
        if (release > 0) {
            ledger_return(index, LEDGER_PENDING, release);
        }
    }
    return growth;
}

void pools_refresh(int index) {
    for (int at = 0; at < atomic_load(&pools_known); at++) {
        books_lock();
        CUmemoryPool handle = pools[at].ours && pools[at].index == index ? pools[at].handle : NULL;
        books_unlock();
        if (handle != NULL) {
            settle(handle, index, 0);
        }
    }
}

uint64_t pools_reserved(int index) {
    uint64_t bytes = 0;
    for (int at = 0; at < atomic_load(&pools_known); at++) {
        books_lock();
        CUmemoryPool handle = pools[at].ours && pools[at].index == index ? pools[at].handle : NULL;
        books_unlock();
        bytes += handle != NULL ? reserved_by(handle) : 0;
    }
    return bytes;
}

void pools_drop_cover(int index) {
    uint64_t cover = 0;
    books_lock();
    for (int at = 0; at < atomic_load(&pools_known); at++) {
        if (pools[at].handle != NULL && pools[at].index == index) {
            cover += atomic_exchange(&pools[at].cover, 0);
        }
    }
    books_unlock();
    if (cover > 0) {
        ledger_return(index, LEDGER_PENDING, cover);
    }
}

void pools_trim(int index) {
    for (int at = 0; at < atomic_load(&pools_known); at++) {
        books_lock();
        CUmemoryPool handle = pools[at].ours && pools[at].index == index ? pools[at].handle : NULL;
        bool any = handle != NULL && pools[at].charged > 0;
        pools[at].fresh = 0;
        books_unlock();
        if (any) {
            real.cuMemPoolTrimTo(handle, 0);
            settle(handle, index, 0);
        }
    }
    pools_drop_cover(index);
}

/* --- allocating ----------------------------------------------------------------------------------------------------------------- */

enum cover { COVERED, FITS, REFUSED };

/* Takes budget for the growth that an allocation may cause. `*reserved` is what must be settled. */
static enum cover take_cover(CUmemoryPool handle, int index, size_t size, uint64_t *reserved) {
    uint64_t growth = size <= CHUNK ? CHUNK : round_up(size, CHUNK);
    uint64_t aligned = round_up(size, ALIGNMENT);
    books_lock();
    struct pool *pool = entry_of(handle, index, true);
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
        if (!ledger_reserve(index, growth - ready)) {
            ledger_return(index, LEDGER_PENDING, ready);
            *reserved = 0;
            return REFUSED;
        }
        *reserved = growth;
    }
    return COVERED;
}

static void left_over(CUmemoryPool handle, int index, uint64_t growth, size_t size, long since) {
    uint64_t aligned = round_up(size, ALIGNMENT);
    if (growth > aligned) {
        books_lock();
        struct pool *pool = entry_of(handle, index, true);
        pool->fresh = growth - aligned;
        pool->fresh_since = since;
        books_unlock();
    }
}

typedef CUresult (*allocate_async)(CUdeviceptr *pointer, size_t size, CUstream stream);
typedef CUresult (*allocate_from_pool)(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream);

/* The usual case without a lock: a pool that we know, with a whole chunk of cover, which is taken. */
static struct pool *with_cover(CUmemoryPool handle) {
    int known = atomic_load_explicit(&pools_known, memory_order_acquire);
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

static CUresult allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool handle, int index, CUstream stream, allocate_async plain,
                         allocate_from_pool from_pool) {
    struct pool *ready = size <= CHUNK ? with_cover(handle) : NULL;
    if (ready != NULL) {
        long since = atomic_load_explicit(&frees, memory_order_relaxed);
        CUresult result = plain != NULL ? plain(pointer, size, stream) : from_pool(pointer, size, handle, stream);
        if (reserved_by(handle) == atomic_load_explicit(&ready->charged, memory_order_relaxed)) {
            atomic_fetch_add_explicit(&ready->cover, CHUNK, memory_order_release);
            if (atomic_load_explicit(&ready->fresh, memory_order_relaxed) != 0) {
                atomic_store(&ready->fresh, 0); /* some of it may be used now */
            }
            return result;
        }
        uint64_t growth = settle(handle, index, CHUNK);
        if (result == CUDA_SUCCESS) {
            left_over(handle, index, growth, size, since);
        }
        return result;
    }
    uint64_t reserved = 0;
    enum cover cover = take_cover(handle, index, size, &reserved);
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
    uint64_t growth = settle(handle, index, reserved);
    if (result == CUDA_SUCCESS) {
        left_over(handle, index, growth, size, since);
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
    return pool == NULL ? plain(pointer, size, stream) : allocate(pointer, size, pool, index, stream, plain, NULL);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream) {
    return guard_on() ? allocate_in_current_pool(pointer, size, stream, real.cuMemAllocAsync) : real.cuMemAllocAsync(pointer, size, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream) {
    return guard_on() ? allocate_in_current_pool(pointer, size, stream, real.cuMemAllocAsync_ptsz)
                      : real.cuMemAllocAsync_ptsz(pointer, size, stream);
}

static CUresult allocate_in_pool(CUdeviceptr *pointer, size_t size, CUmemoryPool handle, CUstream stream, allocate_from_pool from_pool) {
    if (size == 0 || pointer == NULL || handle == NULL) {
        return from_pool(pointer, size, handle, stream);
    }
    books_lock();
    int index = GUARD_FORWARD;
    bool ours = true;
    for (int at = 0; at < atomic_load(&pools_known); at++) {
        if (pools[at].handle == handle) {
            index = pools[at].index;
            ours = pools[at].ours;
        }
    }
    books_unlock();
    if (!ours) {
        return from_pool(pointer, size, handle, stream);
    }
    if (index < 0) {
        index = index_of_stream(stream); /* a card's default pool, asked for by its handle */
    }
    if (index == GUARD_REFUSE) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return index == GUARD_FORWARD ? from_pool(pointer, size, handle, stream)
                                  : allocate(pointer, size, handle, index, stream, NULL, from_pool);
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

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    if (guard_on()) {
        pools_something_was_freed();
    }
    return real.cuMemFreeAsync(pointer, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    if (guard_on()) {
        pools_something_was_freed();
    }
    return real.cuMemFreeAsync_ptsz(pointer, stream);
}

/* After a wait: memory freed before it may have gone back to the card. */
static void after_waiting(CUresult result) {
    overhead_settle();
    long now = atomic_load_explicit(&frees, memory_order_relaxed);
    if (result == CUDA_SUCCESS && now != atomic_load_explicit(&frees_looked_at, memory_order_relaxed) && guard_attached()) {
        atomic_store_explicit(&frees_looked_at, now, memory_order_relaxed);
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

/* --- pools themselves ------------------------------------------------------------------------------------------------------------- */

static void learn_pool(CUmemoryPool handle, int index, bool ours) {
    books_lock();
    entry_of(handle, index, ours);
    books_unlock();
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    bool on = guard_on();
    CUresult result = real.cuMemPoolCreate(pool, properties);
    if (on && result == CUDA_SUCCESS && properties != NULL) {
        bool on_card = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        int index = on_card ? guard_index_of(properties->location.id) : GUARD_FORWARD;
        learn_pool(*pool, index, index >= 0);
    }
    return result;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, unsigned long long flags) {
    bool on = guard_on();
    CUresult result = real.cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
    if (on && result == CUDA_SUCCESS) {
        learn_pool(*pool, GUARD_FORWARD, false); /* its memory is charged where it was made */
    }
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    if (!guard_on()) {
        return real.cuMemPoolDestroy(handle);
    }
    /* Entry forgotten first: from the call on, the driver may give the handle to a new pool. The memory itself lives until its last
     * allocation is freed, so its charge moves to the card's overhead, which is measured. */
    bool known = false;
    bool ours = false;
    int index = GUARD_FORWARD;
    uint64_t charged = 0;
    uint64_t cover = 0;
    books_lock();
    for (int at = 0; at < atomic_load(&pools_known); at++) {
        if (pools[at].handle == handle) {
            known = true;
            ours = pools[at].ours;
            index = pools[at].index;
            charged = atomic_load(&pools[at].charged);
            cover = atomic_exchange(&pools[at].cover, 0);
            atomic_store(&pools[at].handle, NULL);
        }
    }
    books_unlock();
    overhead_operation_begins();
    CUresult result = real.cuMemPoolDestroy(handle);
    if (result != CUDA_SUCCESS && known) {
        books_lock();
        struct pool *again = entry_of(handle, index, ours);
        if (again != NULL) {
            write_entry(again, handle, index, ours, charged, cover);
        }
        books_unlock();
    }
    overhead_operation_ends();
    if (result == CUDA_SUCCESS) {
        forget_current_pools();
        if (ours) {
            ledger_return(index, LEDGER_PENDING, cover);
            ledger_return(index, LEDGER_POOL, charged);
            overhead_measure(index, 0);
        }
    }
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    bool on = guard_on();
    CUresult result = real.cuMemPoolTrimTo(pool, keep);
    if (on) {
        pools_something_was_freed();
        after_waiting(result);
    }
    return result;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    CUresult result = (guard_on(), real.cuDeviceSetMemPool(device, pool));
    forget_current_pools();
    return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool) {
    CUresult result = (guard_on(), real.cuMemSetMemPool(location, type, pool));
    forget_current_pools();
    return result;
}
