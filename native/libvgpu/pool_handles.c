/* Pools as programs make, find and end them. See pool_entries.h. */
#include <string.h>

#include "books.h"
#include "overhead.h"
#include "pool_entries.h"
#include "pools.h"

static void learn(CUmemoryPool handle, const struct pool_kind *kind) {
    books_lock();
    pool_entry(handle, kind);
    books_unlock();
}

/* A pool that was just made: what is known under its handle is of a call with the handle of one that is gone. */
static void learn_new(CUmemoryPool handle, const struct pool_kind *kind) {
    books_lock();
    struct pool *entry = pool_entry(handle, kind);
    if (entry != NULL) {
        entry->kind = *kind;
    }
    books_unlock();
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    if (!guard_on() || pool == NULL || properties == NULL) {
        return real.cuMemPoolCreate(pool, properties);
    }
    struct pool_kind kind = pool_kind_at(&properties->location, properties->allocType);
    if (kind.foreign) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = real.cuMemPoolCreate(pool, properties);
    if (result == CUDA_SUCCESS) {
        learn_new(*pool, &kind);
    }
    return result;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, unsigned long long flags) {
    bool on = guard_on();
    CUresult result = real.cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
    if (on && result == CUDA_SUCCESS) {
        learn_new(*pool, &(struct pool_kind){0}); /* its memory is charged where it was made */
    }
    return result;
}

/* --- pools that are there already -------------------------------------------------------------------------------------------------- */

static CUresult found(const CUmemoryPool *pool, const CUmemLocation *location, int type, CUresult result) {
    if (result == CUDA_SUCCESS && pool != NULL && location != NULL) {
        struct pool_kind kind = pool_kind_at(location, type);
        learn(*pool, &kind);
    }
    return result;
}

#define POOL_OF_DEVICE(name)                                                                             \
    CUresult name(CUmemoryPool *pool, CUdevice device) {                                                 \
        bool on = guard_on();                                                                            \
        CUresult result = real.name(pool, device);                                                       \
        CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};                    \
        return on ? found(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, result) : result;              \
    }

POOL_OF_DEVICE(cuDeviceGetDefaultMemPool)
POOL_OF_DEVICE(cuDeviceGetMemPool)

#define POOL_OF_LOCATION(name)                                             \
    CUresult name(CUmemoryPool *pool, CUmemLocation *location, int type) { \
        bool on = guard_on();                                              \
        CUresult result = real.name(pool, location, type);                 \
        return on ? found(pool, location, type, result) : result;          \
    }

POOL_OF_LOCATION(cuMemGetDefaultMemPool)
POOL_OF_LOCATION(cuMemGetMemPool)

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    CUresult result = (guard_on(), real.cuDeviceSetMemPool(device, pool));
    pools_forget_current();
    return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool) {
    CUresult result = (guard_on(), real.cuMemSetMemPool(location, type, pool));
    pools_forget_current();
    return result;
}

/* --- the end ------------------------------------------------------------------------------------------------------------------------ */

/* What a destroyed pool was charged with. Its memory lives until its last piece is freed: of the device's memory the charge moves to the
 * card's overhead, which is measured; of managed memory it stays. */
static void ended(struct pool *entry, const struct pool_kind *kind, uint64_t cover) {
    books_settling();
    books_lock();
    bool stays = kind->managed && entry->live > 0;
    uint64_t charged = stays ? 0 : atomic_exchange(&entry->charged, 0);
    if (!stays) {
        atomic_store(&entry->handle, NULL);
    }
    books_unlock();
    cards_return(kind->cards, LEDGER_PENDING, cover);
    cards_return(kind->cards, kind->managed ? LEDGER_MANAGED : LEDGER_POOL, charged);
    books_settled();
    for (int index = 0; index < VGPU_MAX_DEVICES && !kind->managed; index++) {
        if ((kind->cards & card_alone(index)) != 0) {
            overhead_measure(index, 0);
        }
    }
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    if (!guard_on()) {
        return real.cuMemPoolDestroy(handle);
    }
    /* Nobody finds the entry by the handle any more: from the call on, the driver may give it to a new pool. */
    books_lock();
    struct pool *entry = handle != NULL && handle != POOL_DESTROYED ? pool_find(handle) : NULL;
    struct pool_kind kind = entry != NULL ? entry->kind : (struct pool_kind){0};
    uint64_t cover = 0;
    if (entry != NULL) {
        atomic_store(&entry->handle, POOL_DESTROYED);
        cover = atomic_exchange(&entry->cover, 0);
    }
    books_unlock();
    overhead_operation_begins();
    CUresult result = real.cuMemPoolDestroy(handle);
    if (result != CUDA_SUCCESS && entry != NULL) {
        books_lock();
        atomic_fetch_add(&entry->cover, cover);
        atomic_store(&entry->fresh, 0);
        atomic_store(&entry->handle, handle);
        books_unlock();
    }
    overhead_operation_ends();
    if (result == CUDA_SUCCESS) {
        pools_forget_current();
        if (entry != NULL) {
            ended(entry, &kind, cover);
        }
    }
    return result;
}
