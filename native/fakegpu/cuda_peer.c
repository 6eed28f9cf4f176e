/* One card's memory in reach of another, thinly: the calls and what they check are there, nothing is kept. */
#include "cuda_internal.h"

static CUresult peer_of(CUcontext peer)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS && peer == NULL)
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS)
        result = context_check(&peer);
    return result == CUDA_SUCCESS && peer->device == context->device ? CUDA_ERROR_INVALID_DEVICE : result;
}

ENTRY(cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags))
{
    ENTER();
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : peer_of(peer);
}

ENTRY(cuCtxDisablePeerAccess, (CUcontext peer))
{
    ENTER();
    return peer_of(peer);
}

/* ---- multicast objects: a number each, and how many devices they still want ---- */

#define FIRST_OBJECT 0x4d430000ull
#define MOST_OBJECTS 64u

static unsigned int wanted[MOST_OBJECTS];
static unsigned int made;

ENTRY(cuMulticastCreate, (CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties))
{
    ENTER();
    if (handle == NULL || properties == NULL || properties->numDevices == 0 || properties->size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    if (made < MOST_OBJECTS) {
        wanted[made] = properties->numDevices;
        *handle = FIRST_OBJECT + made++;
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

ENTRY(cuMulticastAddDevice, (CUmemGenericAllocationHandle handle, CUdevice device))
{
    ENTER();
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    bool known = handle >= FIRST_OBJECT && handle < FIRST_OBJECT + made && wanted[handle - FIRST_OBJECT] > 0;
    if (known)
        wanted[handle - FIRST_OBJECT]--;
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
