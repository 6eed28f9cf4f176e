/* Contexts: what they cost on the card, which is current in a thread, how they end.
 *
 * A context costs what the card's line in `devices` says; streams and loaded code come on top and stay until it ends. The stack limit
 * beyond 1 KiB is taken for all threads that the card can run at once; a kernel with more local memory than that raises it.
 */
#include "cuda_context.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_host.h"
#include "cuda_ipc_share.h"
#include "cuda_linear.h"

#define STACK_DEPTH 64
#define FREE_LOCAL_BYTES 1024 /* per thread: part of what every context costs */

static struct CUctx_st *contexts;
static uint64_t last_id;
static __thread CUcontext stack[STACK_DEPTH];
static __thread int depth;

CUresult card_take(int card, enum fake_kind kind, uint64_t bytes)
{
    shares_settle();
    return store_take(card, kind, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult context_take(CUcontext context, uint64_t bytes)
{
    return card_take(context->card, FAKE_PROCESS, bytes);
}

void context_give(CUcontext context, uint64_t bytes)
{
    if (bytes > 0)
        store_give(context->card, FAKE_PROCESS, bytes);
}

CUresult context_overhead(CUcontext context, uint64_t bytes)
{
    CUresult result = context_take(context, bytes);
    if (result == CUDA_SUCCESS)
        context->overhead += bytes;
    return result;
}

/* What the limit says is on the card at once, and given back when it is lowered. */
static CUresult set_stack_limit(CUcontext context, uint64_t bytes_per_thread)
{
    const struct fake_device *info = device_info(context->device);
    uint64_t beyond = bytes_per_thread > FREE_LOCAL_BYTES ? bytes_per_thread - FREE_LOCAL_BYTES : 0;
    uint64_t wanted = beyond * (uint64_t)info->sms * (uint64_t)info->threads;
    if (wanted > context->local_charged) {
        CUresult result = context_take(context, wanted - context->local_charged);
        if (result != CUDA_SUCCESS)
            return result;
    } else {
        context_give(context, context->local_charged - wanted);
    }
    context->local_charged = wanted;
    context->limits[CU_LIMIT_STACK_SIZE] = bytes_per_thread;
    return CUDA_SUCCESS;
}

CUresult context_local_memory(CUcontext context, uint64_t bytes_per_thread)
{
    return bytes_per_thread <= context->limits[CU_LIMIT_STACK_SIZE] ? CUDA_SUCCESS : set_stack_limit(context, bytes_per_thread);
}

CUresult context_begin(CUcontext context)
{
    const struct fake_device *info = device_info(context->device);
    if (fault_lost(info->uuid))
        return CUDA_ERROR_UNKNOWN;
    CUresult result = card_take(context->card, FAKE_PROCESS, info->context);
    if (result != CUDA_SUCCESS)
        return result;
    context->overhead = info->context;
    context->local_charged = 0;
    memset(context->limits, 0, sizeof context->limits);
    context->limits[CU_LIMIT_STACK_SIZE] = FREE_LOCAL_BYTES;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 * FAKE_MIB;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * FAKE_MIB;
    context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    context->id = ++last_id;
    context->alive = true;
    return CUDA_SUCCESS;
}

CUresult context_make(CUcontext *context, CUdevice device, unsigned int flags, unsigned int api_version)
{
    struct CUctx_st *made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = device;
    made->card = device_card(device);
    made->flags = flags;
    made->api_version = api_version;
    made->references = 1;
    made->next = contexts;
    contexts = made;
    *context = made;
    return CUDA_SUCCESS;
}

void context_end(CUcontext context)
{
    streams_context_gone(context);
    linear_context_gone(context);
    arrays_context_gone(context);
    host_context_gone(context);
    context_give(context, context->overhead + context->local_charged);
    context->overhead = context->local_charged = 0;
    context->alive = false;
    for (struct CUctx_st *other = contexts; other != NULL; other = other->next)
        if (other->alive && other->inside == NULL && other->device == context->device)
            return;
    pools_device_idle(context->device);
}

bool context_push(CUcontext context)
{
    if (depth == STACK_DEPTH)
        return false;
    stack[depth++] = context;
    return true;
}

CUcontext context_pop(void)
{
    return depth > 0 ? stack[--depth] : NULL;
}

CUcontext context_top(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

static CUresult usable(CUcontext context)
{
    driver_lock();
    bool known = false;
    for (struct CUctx_st *other = contexts; other != NULL && !known; other = other->next)
        known = other == context;
    bool alive = known && context->alive;
    driver_unlock();
    if (!known)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return fault_lost(device_info(context->device)->uuid) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult context_current(CUcontext *context)
{
    *context = context_top();
    return *context == NULL ? CUDA_ERROR_INVALID_CONTEXT : context_check(context);
}

CUresult context_check(CUcontext *context)
{
    if (*context == NULL)
        return context_current(context);
    CUresult result = usable(*context);
    if (result == CUDA_SUCCESS && (*context)->inside != NULL) {
        *context = (*context)->inside;
        result = usable(*context);
    }
    return result;
}

/* ---- limits ---- */

ENTRY(cuCtxGetLimit, (size_t *value, int limit))
{
    ENTER();
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL || limit < 0 || limit >= (int)(sizeof context->limits / sizeof *context->limits))
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    *value = context->limits[limit];
    driver_unlock();
    return CUDA_SUCCESS;
}

/* A lower stack limit also forgets what kernels needed before: they raise it again. */
ENTRY(cuCtxSetLimit, (int limit, size_t value))
{
    ENTER();
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (limit < 0 || limit >= (int)(sizeof context->limits / sizeof *context->limits))
        return CUDA_ERROR_INVALID_VALUE;
    if (limit == CU_LIMIT_STACK_SIZE && value > 512 * 1024)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (limit == CU_LIMIT_STACK_SIZE)
        result = set_stack_limit(context, value);
    else
        context->limits[limit] = value;
    driver_unlock();
    return result;
}
