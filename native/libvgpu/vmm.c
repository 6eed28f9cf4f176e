/* Virtual memory management: cuMemCreate and what refers to it.
 *
 * Physical memory counts from cuMemCreate on, and as long as anything refers to it: handles (created, retained) or mappings. A program that
 * releases the handle of mapped memory still has the memory. So each piece of physical memory is an object of ours with a count of
 * references, and is given back when the last one goes. Memory imported from another process is charged to the one that made it.
 */
#include <stdbool.h>

#include "books.h"
#include "cards.h"
#include "guard.h"
#include "ledger.h"
#include "overhead.h"
#include "test_points.h"

static uint64_t last_object; /* numbers objects; under the books' lock */

/* books.objects: key = object, size = bytes, index = card_set (0: not charged here), kind = references, owner = EXPORTED | UNSURE.
 * books.handles: key = handle, owner = object, kind = references by this handle.
 * books.mappings: key = address, size = bytes, owner = object. */

enum { EXPORTED = 1, UNSURE = 2 /* of a location that is not known */ };

/* With the books locked: one reference less. True if it was the last; *gone is the object then. */
static bool let_go(uint64_t object, struct record *gone) {
    struct record *known = table_find(&books.objects, object);
    return known != NULL && --known->kind == 0 && table_take(&books.objects, object, gone);
}

static void uncharge(const struct record *gone) {
    cards_return((card_set)gone->index, LEDGER_VMM, gone->size);
    if ((gone->owner & EXPORTED) != 0) {
        overhead_suspect_all(); /* another process may hold it still */
    }
    if ((gone->owner & UNSURE) != 0) {
        overhead_measure_each((card_set)gone->index); /* where it was not, as much of the overhead was taken for it */
    }
}

/* With the books locked: one reference more. */
static void hold(uint64_t object) {
    struct record *known = table_find(&books.objects, object);
    if (known != NULL) {
        known->kind++;
    }
}

/* With the books locked: a handle refers to an object (once more). */
static void refer(CUmemGenericAllocationHandle handle, uint64_t object) {
    struct record *known = table_find(&books.handles, handle);
    if (known != NULL) {
        known->kind++;
    } else {
        table_put(&books.handles, &(struct record){.key = handle, .owner = object, .kind = 1});
    }
    hold(object);
}

static void new_object(CUmemGenericAllocationHandle handle, uint64_t size, card_set cards, uint64_t marks) {
    books_lock();
    uint64_t object = ++last_object;
    if (table_put(&books.objects, &(struct record){.key = object, .size = size, .index = (int32_t)cards, .owner = marks})) {
        refer(handle, object);
    }
    books_unlock();
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties, unsigned long long flags) {
    if (!guard_on() || properties == NULL || handle == NULL || size == 0) {
        return real.cuMemCreate(handle, size, properties, flags);
    }
    bool pinned = properties->type == CU_MEM_ALLOCATION_TYPE_PINNED; /* what is not might move */
    if (pinned && location_is_host(&properties->location)) {
        return real.cuMemCreate(handle, size, properties, flags);
    }
    bool known = pinned && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct whereabouts where = known ? location_find(&properties->location) : location_unknown();
    if (where.forward) {
        return real.cuMemCreate(handle, size, properties, flags);
    }
    uint64_t bytes = round_up(size, DEVICE_PAGE);
    if (where.refuse || !cards_reserve(where.cards, bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    TEST_POINT("vmm.reserved");
    overhead_operation_begins();
    CUresult result = real.cuMemCreate(handle, size, properties, flags);
    TEST_POINT("vmm.created");
    if (result == CUDA_SUCCESS) {
        new_object(*handle, bytes, where.cards, known ? 0 : UNSURE);
        cards_settle(where.cards, bytes, LEDGER_VMM, bytes);
    } else {
        cards_return(where.cards, LEDGER_PENDING, bytes);
    }
    overhead_operation_ends();
    return result;
}

CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, int type, unsigned long long flags) {
    bool on = guard_on();
    CUresult result = real.cuMemExportToShareableHandle(shared, handle, type, flags);
    if (on && result == CUDA_SUCCESS) {
        books_lock();
        const struct record *known = table_find(&books.handles, handle);
        struct record *object = known != NULL ? table_find(&books.objects, known->owner) : NULL;
        if (object != NULL) {
            object->owner |= EXPORTED;
        }
        books_unlock();
    }
    return result;
}

/* Memory of a card that this process sees but that was not granted. A card that it does not see cannot be told: a peer's, on its way to
 * us over the fabric or from a process of the container that sees other cards. */
static bool is_foreign(CUmemGenericAllocationHandle handle) {
    CUmemAllocationProp properties = {0};
    return real.cuMemGetAllocationPropertiesFromHandle(&properties, handle) == CUDA_SUCCESS &&
           properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && device_is_foreign(properties.location.id);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type) {
    bool on = guard_on();
    CUresult result = real.cuMemImportFromShareableHandle(handle, shared, type);
    if (on && result == CUDA_SUCCESS && is_foreign(*handle)) {
        real.cuMemRelease(*handle);
        *handle = 0;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (on && result == CUDA_SUCCESS) {
        books_lock();
        const struct record *known = table_find(&books.handles, *handle);
        uint64_t object = known != NULL ? known->owner : 0;
        if (object != 0) {
            refer(*handle, object); /* our own memory, imported back: the driver gives the same handle */
        }
        books_unlock();
        if (object == 0) {
            new_object(*handle, 0, 0, 0);
        }
    }
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    if (!guard_on()) {
        return real.cuMemRelease(handle);
    }
    /* Before the call: after it the driver may give the same handle to another thread. */
    struct record before = {0};
    books_lock();
    struct record *known = table_find(&books.handles, handle);
    if (known != NULL) {
        before = *known;
        if (--known->kind == 0) {
            table_take(&books.handles, handle, NULL);
        }
    }
    books_unlock();
    overhead_operation_begins();
    CUresult result = real.cuMemRelease(handle);
    TEST_POINT("vmm.released");
    if (before.key != 0) {
        struct record gone = {0};
        books_lock();
        bool last = false;
        if (result == CUDA_SUCCESS) {
            last = let_go(before.owner, &gone);
        } else {
            struct record *again = table_find(&books.handles, handle);
            if (again != NULL) {
                again->kind++;
            } else {
                before.kind = 1;
                table_put(&books.handles, &before);
            }
        }
        books_unlock();
        if (last) {
            uncharge(&gone);
        }
    }
    overhead_operation_ends();
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    bool on = guard_on();
    CUresult result = real.cuMemMap(address, size, offset, handle, flags);
    if (on && result == CUDA_SUCCESS) {
        books_lock();
        const struct record *known = table_find(&books.handles, handle);
        if (known != NULL) {
            uint64_t object = known->owner;
            table_put(&books.mappings, &(struct record){.key = address, .size = size, .owner = object});
            hold(object);
        }
        books_unlock();
    }
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    if (!guard_on()) {
        return real.cuMemUnmap(address, size);
    }
    overhead_operation_begins();
    CUresult result = real.cuMemUnmap(address, size);
    TEST_POINT("vmm.unmapped");
    /* One call may end several mappings that lie side by side. */
    for (uint64_t at = address; result == CUDA_SUCCESS && at < address + size;) {
        struct record mapping = {0};
        struct record gone = {0};
        books_lock();
        bool known = table_take(&books.mappings, at, &mapping);
        bool last = known && let_go(mapping.owner, &gone);
        books_unlock();
        if (last) {
            uncharge(&gone);
        }
        at += known && mapping.size > 0 ? mapping.size : DEVICE_PAGE;
    }
    overhead_operation_ends();
    return result;
}

struct lookup {
    uint64_t address;
    uint64_t object;
};

static void containing(const struct record *mapping, void *context) {
    struct lookup *lookup = context;
    if (mapping->key <= lookup->address && lookup->address < mapping->key + mapping->size) {
        lookup->object = mapping->owner;
    }
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    bool on = guard_on();
    CUresult result = real.cuMemRetainAllocationHandle(handle, address);
    if (on && result == CUDA_SUCCESS) {
        struct lookup lookup = {.address = (uint64_t)(uintptr_t)address};
        books_lock();
        table_each(&books.mappings, containing, &lookup);
        if (lookup.object != 0) {
            refer(*handle, lookup.object);
        }
        books_unlock();
    }
    return result;
}

/* Sparse arrays can be backed by handles; which parts, only the driver knows. The measurement sees what that costs, and overcounts nothing:
 * memory that is still mapped into an array after its handle went shows as overhead. */
CUresult cuMemMapArrayAsync(void *list, unsigned int count, CUstream stream) {
    if (guard_on()) {
        overhead_suspect();
    }
    return real.cuMemMapArrayAsync(list, count, stream);
}

CUresult cuMemMapArrayAsync_ptsz(void *list, unsigned int count, CUstream stream) {
    if (guard_on()) {
        overhead_suspect();
    }
    return real.cuMemMapArrayAsync_ptsz(list, count, stream);
}
