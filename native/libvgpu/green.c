/* Green contexts: a part of a card's multiprocessors, inside the primary context, which the driver makes for the first of them.
 *
 * So the first one pays for a primary context like anybody else, before it is made. What a green context takes besides (15 MiB were seen)
 * is reserved in advance and measured.
 */
#include "books.h"
#include "contexts.h"
#include "guard.h"
#include "overhead.h"

#define GREEN_CONTEXT (32 * MIB)

/* books.contexts: key = green context, index = card, kind = CONTEXT_GREEN, owner = the context that it becomes to be current. */

static bool ever_any; /* a green context, in this process or the one that forked it; under the books' lock */

static void remember(CUgreenCtx green, int index) {
    CUcontext as_context = NULL;
    if (real.cuCtxFromGreenCtx != NULL && real.cuCtxFromGreenCtx(&as_context, green) != CUDA_SUCCESS) {
        as_context = NULL;
    }
    books_lock();
    ever_any = true;
    table_put(&books.contexts, &(struct record){.key = (uint64_t)(uintptr_t)green,
                                                .owner = (uint64_t)(uintptr_t)as_context,
                                                .index = index,
                                                .kind = CONTEXT_GREEN});
    books_unlock();
}

struct owner {
    uint64_t context;
    int index;
};

static void find_owner(const struct record *record, void *found) {
    struct owner *owner = found;
    if (record->kind == CONTEXT_GREEN && record->owner == owner->context) {
        owner->index = record->index;
    }
}

CUcontext contexts_owner(void) {
    CUcontext current = NULL;
    if (real.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == NULL || !ever_any) {
        return current;
    }
    struct owner owner = {.context = (uint64_t)(uintptr_t)current, .index = -1};
    table_each(&books.contexts, find_owner, &owner);
    CUcontext primary = owner.index >= 0 ? contexts_primary_of(owner.index) : NULL;
    return primary != NULL ? primary : current;
}

int contexts_index_of_green(CUgreenCtx green) {
    books_lock();
    const struct record *known = table_find(&books.contexts, (uint64_t)(uintptr_t)green);
    int index = known != NULL && known->kind == CONTEXT_GREEN ? known->index : GUARD_FORWARD;
    books_unlock();
    return index;
}

static CUresult create(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned int flags, int index) {
    struct coming_context coming;
    if (!contexts_primary_comes(device, index, GREEN_CONTEXT, &coming)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = real.cuGreenCtxCreate(green, description, device, flags);
    if (result != CUDA_SUCCESS) {
        ledger_return(index, LEDGER_PENDING, coming.reserved);
        return result;
    }
    contexts_count_green(index, 1);
    remember(*green, index);
    if (!contexts_primary_came(device, index, &coming)) {
        cuGreenCtxDestroy(*green);
        *green = NULL;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned int flags) {
    int index = guard_on() && green != NULL ? guard_index_of(device) : GUARD_FORWARD;
    if (index < 0) {
        return index == GUARD_FORWARD ? real.cuGreenCtxCreate(green, description, device, flags) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    contexts_primary_lock(index);
    CUresult result = create(green, description, device, flags, index);
    contexts_primary_unlock(index);
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    if (!guard_on()) {
        return real.cuGreenCtxDestroy(green);
    }
    struct record gone = {0};
    books_lock();
    bool known = table_take(&books.contexts, (uint64_t)(uintptr_t)green, &gone);
    books_unlock();
    CUresult result = real.cuGreenCtxDestroy(green);
    if (known && result != CUDA_SUCCESS) {
        books_lock();
        table_put(&books.contexts, &gone);
        books_unlock();
    } else if (known) {
        contexts_count_green(gone.index, -1);
        books_lock();
        if (gone.owner != 0) {
            table_take(&books.contexts, gone.owner, NULL); /* another context may get its address */
        }
        books_unlock();
        contexts_primary_left(guard_device_of(gone.index));
    }
    return result;
}
