/* References to contexts that cuCtxCreate made: cuCtxAttach adds one, cuCtxDetach takes one, and only the last detach ends the context.
 *
 * The owner of a record of kind CONTEXT_CREATED counts those that were added. A detach of what another function made (a driver may allow
 * it for a primary context) ends what the driver then calls inactive, and nothing else: what lives must stay counted.
 */
#include <pthread.h>
#include <stdbool.h>

#include "books.h"
#include "contexts.h"
#include "guard.h"

static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER; /* the driver's count and ours change together */

void attach_forget_after_fork(void) { pthread_mutex_init(&attaching, NULL); }

CUresult cuCtxAttach(CUcontext *context, unsigned int flags) {
    if (!guard_on()) {
        return real.cuCtxAttach(context, flags);
    }
    pthread_mutex_lock(&attaching);
    CUresult result = real.cuCtxAttach(context, flags);
    if (result == CUDA_SUCCESS) {
        books_lock();
        struct record *known = table_find(&books.contexts, (uint64_t)(uintptr_t)*context);
        if (known != NULL && known->kind == CONTEXT_CREATED) {
            known->owner++;
        }
        books_unlock();
    }
    pthread_mutex_unlock(&attaching);
    return result;
}

static CUresult detach(CUcontext context) {
    books_lock();
    struct record *known = table_find(&books.contexts, (uint64_t)(uintptr_t)context);
    bool is_created = known != NULL && known->kind == CONTEXT_CREATED, is_last = is_created && known->owner == 0;
    books_unlock();
    if (is_last) {
        return contexts_end(context, real.cuCtxDetach);
    }
    CUdevice device = device_of_context(context);
    CUresult result = real.cuCtxDetach(context);
    if (result != CUDA_SUCCESS || device < 0) {
        return result;
    }
    if (!is_created) {
        contexts_primary_left(device);
        return result;
    }
    books_lock();
    known = table_find(&books.contexts, (uint64_t)(uintptr_t)context);
    if (known != NULL && known->owner > 0) {
        known->owner--;
    }
    books_unlock();
    return result;
}

CUresult cuCtxDetach(CUcontext context) {
    if (!guard_on()) {
        return real.cuCtxDetach(context);
    }
    pthread_mutex_lock(&attaching);
    CUresult result = detach(context);
    pthread_mutex_unlock(&attaching);
    return result;
}
