/* Contexts come and go.
 *
 * A context costs some hundred MiB (518 on an H200), known only after one was made: the agent's figure in the policy, or what the first
 * process of the container measured, is reserved before; what NVML then counts is charged. A context that goes takes along what was
 * allocated in it.
 */
#include "contexts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "arrays.h"
#include "books.h"
#include "guard.h"
#include "ledger.h"
#include "linear.h"
#include "managed.h"
#include "overhead.h"
#include "pools.h"
#include "state.h"
#include "test_points.h"

#define USUAL_CONTEXT (640 * MIB) /* reserved for the first context where nobody measured one yet */

static atomic_int created[VGPU_MAX_DEVICES];        /* by cuCtxCreate */
static atomic_int primary_active[VGPU_MAX_DEVICES]; /* 0 or 1 */
static atomic_int green[VGPU_MAX_DEVICES];          /* by cuGreenCtxCreate: each holds the primary context */
static CUcontext primary_of[VGPU_MAX_DEVICES];      /* under the books' lock */
static pthread_mutex_t primary_locks[VGPU_MAX_DEVICES]; /* all zero: PTHREAD_MUTEX_INITIALIZER of glibc */
static atomic_int only_index;                       /* the card of all contexts + 1; 0 if there are several or none */

int contexts_alive(int index) {
    return atomic_load(&created[index]) + (atomic_load(&primary_active[index]) != 0 || atomic_load(&green[index]) > 0);
}

card_set contexts_cards(void) {
    card_set cards = 0;
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        cards |= contexts_alive(index) > 0 ? card_alone(index) : 0;
    }
    return cards;
}

int contexts_only_index(void) { return atomic_load_explicit(&only_index, memory_order_relaxed) - 1; }

/* After a context came or went. */
static void find_only_index(void) {
    int only = -1;
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        if (contexts_alive(index) > 0) {
            only = only == -1 ? index : -2;
        }
    }
    atomic_store(&only_index, only >= 0 ? only + 1 : 0);
}

void contexts_forget_after_fork(void) {
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        atomic_store(&created[index], 0);
        atomic_store(&primary_active[index], 0);
        atomic_store(&green[index], 0);
        primary_of[index] = NULL;
        pthread_mutex_init(&primary_locks[index], NULL);
    }
    atomic_store(&only_index, 0);
    attach_forget_after_fork();
}

/* What to reserve for a new context; `*measured` says whether anybody knows. */
static uint64_t expected_cost(int index, bool *measured) {
    uint64_t known = guard_limits()->devices[index].context_bytes;
    const struct vgpu_state *state = guard_state();
    if (state != NULL && state->devices[index].context_bytes > known) {
        known = state->devices[index].context_bytes;
    }
    *measured = known != 0;
    return known != 0 ? known : USUAL_CONTEXT;
}

static bool reserve_context(int index, uint64_t *reserved) {
    bool measured;
    if (!guard_attached_now()) {
        return false;
    }
    *reserved = expected_cost(index, &measured);
    if (ledger_reserve(index, *reserved)) {
        return true;
    }
    /* Nobody knows the cost on this card yet, and the guess does not fit: take what there is, and judge by the measurement. */
    *reserved = ledger_room(index);
    return !measured && *reserved > 0 && ledger_reserve_lightly(index, *reserved);
}

static void learn_cost(int index, uint64_t cost) {
    struct vgpu_state *state = guard_state();
    if (cost > 0 && state != NULL && state->devices[index].context_bytes == 0 && state_lock(state)) {
        state->devices[index].context_bytes = cost;
        state_unlock(state);
    }
}

/* After a context was made under `reserved`. False: it does not fit after all. */
static bool charge_context(CUcontext context, int index, uint64_t reserved) {
    uint64_t before = overhead_own(index);
    overhead_measure(index, reserved);
    uint64_t after = overhead_own(index);
    learn_cost(index, after > before ? after - before : 0);
    TEST_POINT("contexts.charged");
    return (after <= before + reserved || ledger_room(index) > 0) &&
           contexts_allow_local_memory(context, index, contexts_local_memory_everywhere()) && managed_follow(index);
}

static void drop_all_of(CUcontext context) {
    linear_drop_context(context);
    managed_drop_context(context);
    arrays_drop_context(context);
    books_lock();
    table_take(&books.contexts, (uint64_t)(uintptr_t)context, NULL);
    books_unlock();
}

static void context_went(int index) {
    find_only_index();
    overhead_drop_floor(index);
    if (contexts_cards() == 0) {
        pools_without_contexts();
    }
}

#define MOST_CONTEXTS 64

struct found_contexts {
    int count;
    struct {
        CUcontext context;
        int index;
    } of[MOST_CONTEXTS];
};

static void find_created(const struct record *record, void *found_contexts) {
    struct found_contexts *found = found_contexts;
    if (record->kind == CONTEXT_CREATED && found->count < MOST_CONTEXTS) {
        found->of[found->count].context = (CUcontext)(uintptr_t)record->key;
        found->of[found->count++].index = record->index;
    }
}

bool contexts_each(bool (*visit)(CUcontext context, int index, uint64_t argument), uint64_t argument) {
    struct found_contexts found = {0};
    books_lock();
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        if (primary_of[index] != NULL) {
            found.of[found.count].context = primary_of[index];
            found.of[found.count++].index = index;
        }
    }
    table_each(&books.contexts, find_created, &found);
    books_unlock();
    for (int at = 0; at < found.count; at++) {
        if (!visit(found.of[at].context, found.of[at].index, argument)) {
            return false;
        }
    }
    return true;
}

/* --- primary contexts ------------------------------------------------------------------------------------------------------------- */

static bool primary_is_active(CUdevice device) {
    unsigned int flags;
    int active = 0;
    return real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

/* After a primary context was made under `reserved`. False: it does not fit after all. */
static bool primary_made(CUcontext context, int index, uint64_t reserved) {
    books_lock();
    primary_of[index] = context;
    books_unlock();
    atomic_store(&primary_active[index], 1);
    find_only_index();
    return charge_context(context, index, reserved);
}

/* After a release or reset: if nobody holds it any more, all that was in it is gone. */
static void after_release(CUdevice device, CUresult result) {
    int index = result == CUDA_SUCCESS ? guard_index_of(device) : GUARD_FORWARD;
    if (index < 0 || primary_is_active(device)) {
        return;
    }
    books_lock();
    CUcontext gone = primary_of[index];
    primary_of[index] = NULL;
    books_unlock();
    atomic_store(&primary_active[index], 0);
    context_went(index);
    if (gone != NULL) {
        drop_all_of(gone);
    }
    overhead_measure(index, 0);
}

void contexts_primary_lock(int index) { pthread_mutex_lock(&primary_locks[index]); }
void contexts_primary_unlock(int index) { pthread_mutex_unlock(&primary_locks[index]); }

static CUresult retain(CUcontext *context, CUdevice device, int index) {
    uint64_t reserved;
    if (primary_is_active(device)) {
        return real.cuDevicePrimaryCtxRetain(context, device);
    }
    if (!reserve_context(index, &reserved)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    TEST_POINT("contexts.reserved");
    CUresult result = real.cuDevicePrimaryCtxRetain(context, device);
    TEST_POINT("contexts.made");
    if (result != CUDA_SUCCESS) {
        ledger_return(index, LEDGER_PENDING, reserved);
        return result;
    }
    if (!primary_made(*context, index, reserved)) {
        cuDevicePrimaryCtxRelease_v2(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    int index = guard_on() ? guard_index_of(device) : GUARD_FORWARD;
    if (index < 0) {
        return index == GUARD_FORWARD ? real.cuDevicePrimaryCtxRetain(context, device) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    contexts_primary_lock(index);
    CUresult result = retain(context, device, index);
    contexts_primary_unlock(index);
    return result;
}

bool contexts_primary_comes(CUdevice device, int index, uint64_t more, struct coming_context *coming) {
    *coming = (struct coming_context){.primary = !primary_is_active(device)};
    if (coming->primary && !reserve_context(index, &coming->reserved)) {
        return false;
    }
    bool measured;
    expected_cost(index, &measured);
    if (guard_attached_now() && ledger_reserve(index, more)) {
        coming->reserved += more;
        return true;
    }
    if (coming->primary && !measured) {
        return true; /* all the room there is was taken for the context: the measurement judges */
    }
    ledger_return(index, LEDGER_PENDING, coming->reserved);
    return false;
}

bool contexts_primary_came(CUdevice device, int index, const struct coming_context *coming) {
    CUcontext primary = NULL;
    if (coming->primary && real.cuDevicePrimaryCtxRetain(&primary, device) == CUDA_SUCCESS) {
        bool fits = primary_made(primary, index, coming->reserved);
        real.cuDevicePrimaryCtxRelease_v2(device);
        return fits;
    }
    uint64_t before = ledger_own(index, LEDGER_OVERHEAD);
    find_only_index();
    overhead_measure(index, coming->reserved);
    return ledger_own(index, LEDGER_OVERHEAD) <= before + coming->reserved || ledger_room(index) > 0;
}

void contexts_count_green(int index, int by) {
    if (atomic_fetch_add(&green[index], by) + by < 0) {
        atomic_fetch_sub(&green[index], by); /* a reset came before */
    }
}

void contexts_primary_left(CUdevice device) { after_release(device, CUDA_SUCCESS); }

CUcontext contexts_primary_of(int index) { return primary_of[index]; }

/* A reset leaves the context retained but empty, until it is used again: the driver calls that inactive. Green contexts are gone then. */
static void before_reset(CUdevice device) {
    int index = guard_index_of(device);
    if (index >= 0) {
        atomic_store(&green[index], 0);
    }
}

#define RELEASING(name, before)            \
    CUresult name(CUdevice device) {       \
        bool on = guard_on();              \
        if (on) {                          \
            before;                        \
        }                                  \
        CUresult result = real.name(device); \
        if (on) {                          \
            after_release(device, result); \
        }                                  \
        return result;                     \
    }

RELEASING(cuDevicePrimaryCtxRelease, (void)0)
RELEASING(cuDevicePrimaryCtxRelease_v2, (void)0)
RELEASING(cuDevicePrimaryCtxReset, before_reset(device))
RELEASING(cuDevicePrimaryCtxReset_v2, before_reset(device))

/* --- other contexts --------------------------------------------------------------------------------------------------------------- */

/* Before a context is made. GUARD_FORWARD: just forward. */
static int before_creation(CUdevice device, uint64_t *reserved) {
    int index = guard_index_of(device);
    if (index >= 0 && !reserve_context(index, reserved)) {
        return GUARD_REFUSE;
    }
    return index;
}

static CUresult after_creation(CUcontext *context, int index, uint64_t reserved, CUresult result) {
    if (result != CUDA_SUCCESS) {
        ledger_return(index, LEDGER_PENDING, reserved);
        return result;
    }
    books_lock();
    table_put(&books.contexts, &(struct record){.key = (uint64_t)(uintptr_t)*context, .index = index, .kind = CONTEXT_CREATED});
    books_unlock();
    atomic_fetch_add(&created[index], 1);
    find_only_index();
    if (!charge_context(*context, index, reserved)) {
        cuCtxDestroy_v2(*context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

#define CREATE_CONTEXT(call)                                        \
    if (!guard_on()) {                                              \
        return call;                                                \
    }                                                               \
    uint64_t reserved;                                              \
    int index = before_creation(device, &reserved);                 \
    if (index == GUARD_REFUSE) {                                    \
        return CUDA_ERROR_OUT_OF_MEMORY;                            \
    }                                                               \
    if (index == GUARD_FORWARD) {                                   \
        return call;                                                \
    }                                                               \
    CUresult result = call;                                         \
    return after_creation(context, index, reserved, result)

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) { CREATE_CONTEXT(real.cuCtxCreate(context, flags, device)); }

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE_CONTEXT(real.cuCtxCreate_v2(context, flags, device));
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device) {
    CREATE_CONTEXT(real.cuCtxCreate_v3(context, affinity, count, flags, device));
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
    CREATE_CONTEXT(real.cuCtxCreate_v4(context, params, flags, device));
}

CUresult contexts_end(CUcontext context, CUresult (*end)(CUcontext context)) {
    CUdevice device = device_of_context(context);
    int index = device >= 0 ? guard_index_of(device) : GUARD_FORWARD;
    CUresult result = end(context);
    if (result != CUDA_SUCCESS || index < 0) {
        return result;
    }
    books_lock();
    const struct record *known = table_find(&books.contexts, (uint64_t)(uintptr_t)context);
    bool counted = known != NULL && known->kind == CONTEXT_CREATED;
    books_unlock();
    if (counted) {
        atomic_fetch_sub(&created[index], 1);
    }
    context_went(index);
    drop_all_of(context);
    bool measured;
    if (!overhead_measure(index, 0) && counted) {
        ledger_return(index, LEDGER_OVERHEAD, expected_cost(index, &measured));
    }
    return result;
}

CUresult cuCtxDestroy_v2(CUcontext context) { return guard_on() ? contexts_end(context, real.cuCtxDestroy_v2) : real.cuCtxDestroy_v2(context); }
CUresult cuCtxDestroy(CUcontext context) { return guard_on() ? contexts_end(context, real.cuCtxDestroy) : real.cuCtxDestroy(context); }
