/* Contexts as programs make, choose and end them: primary ones by counting, others by name, a stack per thread. */
#include "cuda_context.h"

static CUcontext primaries[FAKE_MAX_DEVICES]; /* made at the first retain, kept for ever: the handle stays the same */
static unsigned int primary_flags[FAKE_MAX_DEVICES];

static bool primary_active(CUdevice device)
{
    return primaries[device] != NULL && primaries[device]->alive;
}

ENTRY(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device))
{
    ENTER();
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    if (primaries[device] == NULL) {
        result = context_make(&primaries[device], device, primary_flags[device], 13000);
        if (result == CUDA_SUCCESS) {
            primaries[device]->primary = true;
            primaries[device]->references = 0;
        }
    }
    if (result == CUDA_SUCCESS && !primaries[device]->alive) {
        primaries[device]->flags = primary_flags[device];
        result = context_begin(primaries[device]);
    }
    if (result == CUDA_SUCCESS) {
        primaries[device]->references++;
        *context = primaries[device];
    }
    driver_unlock();
    return result;
}

static CUresult primary_release(CUdevice device, bool wholly)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    CUcontext context = primaries[device];
    if (!primary_active(device)) {
        result = wholly ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    } else if (wholly || --context->references == 0) {
        context->references = 0;
        context_end(context);
    }
    driver_unlock();
    return result;
}

ENTRY(cuDevicePrimaryCtxRelease, (CUdevice device))
{
    ENTER();
    return primary_release(device, false);
}

ENTRY(cuDevicePrimaryCtxRelease_v2, (CUdevice device))
{
    ENTER();
    return primary_release(device, false);
}

ENTRY(cuDevicePrimaryCtxReset, (CUdevice device))
{
    ENTER();
    return primary_release(device, true);
}

ENTRY(cuDevicePrimaryCtxReset_v2, (CUdevice device))
{
    ENTER();
    return primary_release(device, true);
}

ENTRY(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))
{
    ENTER();
    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    *active = primary_active(device);
    *flags = primary_flags[device];
    driver_unlock();
    return CUDA_SUCCESS;
}

static CUresult primary_set_flags(CUdevice device, unsigned int flags, bool while_active)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    if (primary_active(device) && !while_active)
        result = CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
    else
        primary_flags[device] = flags;
    if (result == CUDA_SUCCESS && primary_active(device))
        primaries[device]->flags = flags;
    driver_unlock();
    return result;
}

ENTRY(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned int flags))
{
    ENTER();
    return primary_set_flags(device, flags, false);
}

ENTRY(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags))
{
    ENTER();
    return primary_set_flags(device, flags, true);
}

static CUresult create(CUcontext *context, unsigned int flags, CUdevice device, unsigned int api_version)
{
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUcontext made;
    driver_lock();
    CUresult result = context_make(&made, device, flags, api_version);
    if (result == CUDA_SUCCESS)
        result = context_begin(made);
    if (result == CUDA_SUCCESS && !context_push(made)) {
        context_end(made);
        result = CUDA_ERROR_INVALID_VALUE;
    }
    driver_unlock();
    if (result == CUDA_SUCCESS)
        *context = made;
    return result;
}

ENTRY(cuCtxCreate, (CUcontext *context, unsigned int flags, CUdevice device))
{
    ENTER();
    return create(context, flags, device, 3010);
}

ENTRY(cuCtxCreate_v2, (CUcontext *context, unsigned int flags, CUdevice device))
{
    ENTER();
    return create(context, flags, device, 3020);
}

ENTRY(cuCtxCreate_v3, (CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device))
{
    ENTER();
    (void)affinity;
    (void)count;
    return create(context, flags, device, 3020);
}

ENTRY(cuCtxCreate_v4, (CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device))
{
    ENTER();
    (void)params;
    return create(context, flags, device, 3020);
}

/* No driver has it: what one will add some day, newer than all that libvgpu knows. */
ENTRY(cuCtxCreate_v5, (CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device))
{
    ENTER();
    (void)params;
    return create(context, flags, device, 3020);
}

/* Ends a context that cuCtxCreate made, once no thread refers to it. It leaves the top of the caller's stack. */
static CUresult unreference(CUcontext context, bool wholly)
{
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = context_check(&context);
    if (result == CUDA_ERROR_UNKNOWN) /* a lost card's context can still be let go */
        result = CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    if (context->primary)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (!context->alive)
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    else if (wholly || --context->references == 0)
        context_end(context);
    bool ended = result == CUDA_SUCCESS && !context->alive;
    driver_unlock();
    if (ended && context_top() == context)
        context_pop();
    return result;
}

ENTRY(cuCtxDestroy, (CUcontext context))
{
    ENTER();
    return unreference(context, true);
}

ENTRY(cuCtxDestroy_v2, (CUcontext context))
{
    ENTER();
    return unreference(context, true);
}

ENTRY(cuCtxDetach, (CUcontext context))
{
    ENTER();
    return unreference(context, false);
}

ENTRY(cuCtxAttach, (CUcontext *context, unsigned int flags))
{
    ENTER();
    if (context == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = context_current(context);
    if (result == CUDA_SUCCESS) {
        driver_lock();
        (*context)->references++;
        driver_unlock();
    }
    return result;
}

/* ---- the calling thread's stack ---- */

ENTRY(cuCtxSetCurrent, (CUcontext context))
{
    ENTER();
    CUcontext checked = context;
    CUresult result = context == NULL ? CUDA_SUCCESS : context_check(&checked);
    if (result != CUDA_SUCCESS)
        return result;
    context_pop();
    if (context != NULL)
        context_push(context);
    return CUDA_SUCCESS;
}

ENTRY(cuCtxGetCurrent, (CUcontext *context))
{
    ENTER();
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *context = context_top();
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext checked = context;
    CUresult result = context_check(&checked);
    if (result != CUDA_SUCCESS)
        return result;
    return context_push(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult pop(CUcontext *context)
{
    CUcontext top = context_pop();
    if (top == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context != NULL)
        *context = top;
    return CUDA_SUCCESS;
}

ENTRY(cuCtxPushCurrent, (CUcontext context))
{
    ENTER();
    return push(context);
}

ENTRY(cuCtxPushCurrent_v2, (CUcontext context))
{
    ENTER();
    return push(context);
}

ENTRY(cuCtxPopCurrent, (CUcontext *context))
{
    ENTER();
    return pop(context);
}

ENTRY(cuCtxPopCurrent_v2, (CUcontext *context))
{
    ENTER();
    return pop(context);
}

/* ---- what a context is ---- */

static CUresult device_of(CUdevice *device, CUcontext context)
{
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = context_check(&context);
    if (result == CUDA_SUCCESS)
        *device = context->device;
    return result;
}

ENTRY(cuCtxGetDevice, (CUdevice *device))
{
    ENTER();
    return device_of(device, NULL);
}

ENTRY(cuCtxGetDevice_v2, (CUdevice *device, CUcontext context))
{
    ENTER();
    return device_of(device, context);
}

ENTRY(cuCtxGetApiVersion, (CUcontext context, unsigned int *version))
{
    ENTER();
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = context_check(&context);
    if (result == CUDA_SUCCESS)
        *version = context->api_version;
    return result;
}

ENTRY(cuCtxGetFlags, (unsigned int *flags))
{
    ENTER();
    if (flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS)
        *flags = context->flags;
    return result;
}

ENTRY(cuCtxGetId, (CUcontext context, unsigned long long *id))
{
    ENTER();
    if (id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = context_check(&context);
    if (result == CUDA_SUCCESS)
        *id = context->id;
    return result;
}

/* ---- waiting ---- */

static CUresult synchronize(CUcontext context)
{
    CUresult result = context_check(&context);
    if (result != CUDA_SUCCESS)
        return result;
    result = streams_synchronize_context(context);
    driver_lock();
    if (result == CUDA_SUCCESS && context->alive)
        pools_synchronized(context, NULL);
    driver_unlock();
    return result;
}

ENTRY(cuCtxSynchronize, (void))
{
    ENTER();
    return synchronize(NULL);
}

ENTRY(cuCtxSynchronize_v2, (CUcontext context))
{
    ENTER();
    return synchronize(context);
}
