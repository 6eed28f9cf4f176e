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

static void remember(CUgreenCtx green, int index) {
    CUcontext as_context = NULL;
    if (real.cuCtxFromGreenCtx != NULL && real.cuCtxFromGreenCtx(&as_context, green) != CUDA_SUCCESS) {
        as_context = NULL;
    }
    books_lock();
    table_put(&books.contexts, &(struct record){.key = (uint64_t)(uintptr_t)green,
                                                .owner = (uint64_t)(uintptr_t)as_context,
                                                .index = index,
                                                .kind = CONTEXT_GREEN});
    books_unlock();
}

int contexts_index_of_green(CUgreenCtx green) {
    books_lock();
    const struct record *known = table_find(&books.contexts, (uint64_t)(uintptr_t)green);
    int index = known != NULL && known->kind == CONTEXT_GREEN ? known->index : GUARD_FORWARD;
    books_unlock();
    return index;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned int flags) {
    if (!guard_on()) {
        return real.cuGreenCtxCreate(green, description, device, flags);
    }
    int index = guard_index_of(device);
    if (index == GUARD_FORWARD || green == NULL) {
        return real.cuGreenCtxCreate(green, description, device, flags);
    }
    struct coming_context coming;
    if (index == GUARD_REFUSE || !contexts_primary_comes(device, index, GREEN_CONTEXT, &coming)) {
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
        contexts_primary_left(guard_device_of(gone.index), (CUcontext)(uintptr_t)gone.owner);
    }
    return result;
}
