/* Green contexts, thinly: a part of the card's multiprocessors by number, and streams in the device's primary context. The timeline is
 * the whole card's; what counts here is that the calls, their handles and their memory are there. */
#include "cuda_context.h"
#include "cuda_stream.h"

#include <string.h>

#define PARTITION_STEP 8u /* multiprocessors, on cards of compute capability 9 */
#define REQUIRED_FLAG 1u
#define COST (14 * FAKE_MIB) /* as seen on an H200, beside the primary context; it stays until that ends */

struct CUdevResourceDesc_st {
    struct object object;
    unsigned int sms;
};

struct CUgreenCtx_st {
    struct object object;
    CUdevice device;
    CUcontext primary;
    CUcontext as_context; /* what is current in its stead */
    unsigned int sms;
    uint64_t id;
};

DECLARE_ENTRY(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))
DECLARE_ENTRY(cuDevicePrimaryCtxRelease_v2, (CUdevice device))

static uint64_t ids;

static void describe(CUdevResource *resource, unsigned int sms) {
    memset(resource, 0, sizeof *resource);
    resource->type = CU_DEV_RESOURCE_TYPE_SM;
    resource->sm.smCount = sms;
    resource->sm.minSmPartitionSize = PARTITION_STEP;
    resource->sm.smCoscheduledAlignment = PARTITION_STEP;
}

ENTRY(cuDeviceGetDevResource, (CUdevice device, CUdevResource *resource, int type)) {
    ENTER();
    if (!device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (resource == NULL || type != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    describe(resource, (unsigned int)device_info(device)->sms);
    return CUDA_SUCCESS;
}

ENTRY(cuCtxGetDevResource, (CUcontext context, CUdevResource *resource, int type)) {
    ENTER();
    CUresult result = context_check(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (resource == NULL || type != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    describe(resource, (unsigned int)device_info(context->device)->sms);
    return CUDA_SUCCESS;
}

ENTRY(cuDevSmResourceSplitByCount, (CUdevResource * result, unsigned int *groups, const CUdevResource *input,
                                    CUdevResource *remaining, unsigned int flags, unsigned int least)) {
    ENTER();
    (void)flags;
    if (groups == NULL || input == NULL || input->type != CU_DEV_RESOURCE_TYPE_SM || least > input->sm.smCount) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned int size = (unsigned int)round_up(least == 0 ? 1 : least, PARTITION_STEP);
    unsigned int possible = input->sm.smCount / size;
    if (possible == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned int left = input->sm.smCount;
    if (result == NULL) {
        *groups = possible; /* only asked how many there could be */
        return CUDA_SUCCESS;
    }
    *groups = *groups < possible ? *groups : possible;
    for (unsigned int i = 0; i < *groups; i++) {
        describe(&result[i], size);
        left -= size;
    }
    if (remaining != NULL) {
        describe(remaining, left);
    }
    return CUDA_SUCCESS;
}

ENTRY(cuDevResourceGenerateDesc, (CUdevResourceDesc * made, CUdevResource *resources, unsigned int count)) {
    ENTER();
    if (made == NULL || resources == NULL || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned int sms = 0;
    for (unsigned int i = 0; i < count; i++) {
        if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        sms += resources[i].sm.smCount;
    }
    driver_lock();
    CUdevResourceDesc description = object_make(OBJECT_RESOURCES, sizeof *description);
    if (description != NULL) {
        description->sms = sms;
        *made = description;
    }
    driver_unlock();
    return description == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

ENTRY(cuGreenCtxCreate, (CUgreenCtx * made, CUdevResourceDesc description, CUdevice device, unsigned int flags)) {
    ENTER();
    if (!device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    driver_lock();
    bool known = object_is(description, OBJECT_RESOURCES);
    driver_unlock();
    if (made == NULL || !known || flags != REQUIRED_FLAG) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUcontext primary;
    CUresult result = fake_cuDevicePrimaryCtxRetain(&primary, device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    driver_lock();
    CUgreenCtx green = object_make(OBJECT_GREEN, sizeof *green);
    if (green != NULL) {
        green->device = device;
        green->primary = primary;
        green->sms = description->sms;
        green->id = ++ids;
        *made = green;
    }
    driver_unlock();
    if (green != NULL) {
        driver_lock();
        result = context_make(&green->as_context, device, 0, primary->api_version);
        if (result == CUDA_SUCCESS) {
            result = context_overhead(primary, COST);
        }
        if (result != CUDA_SUCCESS) {
            object_recycle(green);
        } else {
            green->as_context->inside = primary;
            green->as_context->alive = true;
        }
        driver_unlock();
    }
    if (green == NULL || result != CUDA_SUCCESS) {
        fake_cuDevicePrimaryCtxRelease_v2(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* What a handle stands for, or device -1 if it is not valid. */
static struct CUgreenCtx_st read_green(CUgreenCtx handle) {
    struct CUgreenCtx_st found = {.device = -1};
    driver_lock();
    if (object_is(handle, OBJECT_GREEN)) {
        found = *handle;
    }
    driver_unlock();
    return found;
}

ENTRY(cuGreenCtxDestroy, (CUgreenCtx green)) {
    ENTER();
    driver_lock();
    bool known = object_is(green, OBJECT_GREEN);
    CUdevice device = known ? green->device : -1;
    if (known) {
        green->as_context->alive = false;
        object_recycle(green);
    }
    driver_unlock();
    return known ? fake_cuDevicePrimaryCtxRelease_v2(device) : CUDA_ERROR_INVALID_HANDLE;
}

ENTRY(cuCtxFromGreenCtx, (CUcontext * context, CUgreenCtx green)) {
    ENTER();
    struct CUgreenCtx_st found = read_green(green);
    if (context == NULL || found.device < 0) {
        return context == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    *context = found.as_context;
    return CUDA_SUCCESS;
}

ENTRY(cuGreenCtxGetDevResource, (CUgreenCtx green, CUdevResource *resource, int type)) {
    ENTER();
    struct CUgreenCtx_st found = read_green(green);
    if (found.device < 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (resource == NULL || type != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    describe(resource, found.sms);
    return CUDA_SUCCESS;
}

ENTRY(cuGreenCtxStreamCreate, (CUstream * stream, CUgreenCtx green, unsigned int flags, int priority)) {
    ENTER();
    struct CUgreenCtx_st found = read_green(green);
    if (found.device < 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if ((flags & CU_STREAM_NON_BLOCKING) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUcontext primary = found.primary;
    CUresult result = context_check(&primary);
    return result != CUDA_SUCCESS ? result : stream_create(stream, primary, green, flags, priority);
}

ENTRY(cuGreenCtxGetId, (CUgreenCtx green, unsigned long long *id)) {
    ENTER();
    struct CUgreenCtx_st found = read_green(green);
    if (id == NULL || found.device < 0) {
        return id == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    *id = found.id;
    return CUDA_SUCCESS;
}
