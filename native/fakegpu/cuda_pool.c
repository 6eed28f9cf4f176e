/* Pools as programs see them: which there are, what they may hold, what they hold. */
#include "cuda_pool.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_ipc_share.h"

CUmemoryPool pools;
static CUmemoryPool defaults[FAKE_MAX_DEVICES], current[FAKE_MAX_DEVICES];
static CUmemoryPool other_defaults[2], other_current[2]; /* managed memory, host memory */

bool pool_known(CUmemoryPool pool)
{
    for (CUmemoryPool other = pools; other != NULL; other = other->next)
        if (other == pool)
            return pool->alive;
    return false;
}

CUmemoryPool pool_make(CUdevice device, bool counted, int allocation_type)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pool->alive = true;
    pool->device = device;
    pool->counted = counted;
    pool->allocation_type = allocation_type;
    pool->kind = allocation_type == CU_MEM_ALLOCATION_TYPE_MANAGED ? FAKE_MANAGED : FAKE_PROCESS;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->access[device] = 3;
    pool->placed = true;
    pool->next = pools;
    pools = pool;
    return pool;
}

static CUmemoryPool default_of(CUmemoryPool *slot, CUdevice device, bool counted, int allocation_type)
{
    if (*slot == NULL && (*slot = pool_make(device, counted, allocation_type)) != NULL)
        (*slot)->is_default = true;
    return *slot;
}

CUmemoryPool pool_of_device(CUdevice device)
{
    if (current[device] == NULL)
        current[device] = default_of(&defaults[device], device, true, CU_MEM_ALLOCATION_TYPE_PINNED);
    return current[device];
}

void pools_device_idle(CUdevice device)
{
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next)
        if (pool->counted && pool->device == device)
            pool_empty(pool);
}

/* ---- making and ending ---- */

ENTRY(cuMemPoolCreate, (CUmemoryPool *pool, const CUmemPoolProps *properties))
{
    ENTER();
    if (pool == NULL || properties == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED && properties->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    bool managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    bool nowhere = managed && properties->location.type == CU_MEM_LOCATION_TYPE_INVALID;
    CUdevice device = 0;
    bool placed = location_device(&properties->location, &device);
    if (!placed && !nowhere && !location_is_host(&properties->location))
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    CUmemoryPool made = pool_make(device, placed || managed, properties->allocType);
    if (made != NULL) {
        made->placed = placed || !managed;
        made->most = properties->maxSize;
        made->handle_types = properties->handleTypes;
        *pool = made;
    }
    driver_unlock();
    return made != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* What is still allocated stays until it is freed; then the pool's memory goes. */
ENTRY(cuMemPoolDestroy, (CUmemoryPool pool))
{
    ENTER();
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    if (!pool_known(pool) || pool->is_default) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        pool->alive = false;
        if (pool->share != NULL)
            share_let_go(pool->share);
        pool->share = NULL;
        for (int i = 0; i < FAKE_MAX_DEVICES; i++)
            if (current[i] == pool)
                current[i] = defaults[i];
        for (int i = 0; i < 2; i++)
            if (other_current[i] == pool)
                other_current[i] = other_defaults[i];
        if (pool->used == 0)
            pool_empty(pool);
        else
            pool_trim(pool, 0);
    }
    driver_unlock();
    return result;
}

ENTRY(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep))
{
    ENTER();
    driver_lock();
    CUresult result = pool_known(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        pool_trim(pool, keep);
    driver_unlock();
    return result;
}

/* ---- attributes ---- */

ENTRY(cuMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *value))
{
    ENTER();
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    if (!pool_known(pool))
        result = CUDA_ERROR_INVALID_VALUE;
    else if (attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
             attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        memcpy(value, &pool->reuse[attribute - 1], sizeof(int));
    else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        memcpy(value, &pool->threshold, sizeof(uint64_t));
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        memcpy(value, &pool->reserved, sizeof(uint64_t));
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        memcpy(value, &pool->reserved_high, sizeof(uint64_t));
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        memcpy(value, &pool->used, sizeof(uint64_t));
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        memcpy(value, &pool->used_high, sizeof(uint64_t));
    else
        result = CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}

/* The high marks can only be set back, by writing 0. */
ENTRY(cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value))
{
    ENTER();
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    uint64_t wide = 0;
    if (attribute >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        memcpy(&wide, value, sizeof wide);
    driver_lock();
    if (!pool_known(pool))
        result = CUDA_ERROR_INVALID_VALUE;
    else if (attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
             attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        memcpy(&pool->reuse[attribute - 1], value, sizeof(int));
    else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = wide;
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && wide == 0)
        pool->reserved_high = pool->reserved;
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH && wide == 0)
        pool->used_high = pool->used;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}

ENTRY(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *descriptions, size_t count))
{
    ENTER();
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    if (!pool_known(pool) || (descriptions == NULL && count > 0))
        result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        const CUmemLocation *location = &descriptions[i].location;
        if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
            continue;
        if (!device_valid(location->id) || (location->id == pool->device && descriptions[i].flags != 3))
            result = CUDA_ERROR_INVALID_VALUE;
        else
            pool->access[location->id] = descriptions[i].flags;
    }
    driver_unlock();
    return result;
}

ENTRY(cuMemPoolGetAccess, (int *flags, CUmemoryPool pool, CUmemLocation *location))
{
    ENTER();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (flags != NULL && location != NULL && pool_known(pool) && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
        device_valid(location->id)) {
        *flags = pool->access[location->id];
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

/* ---- the pools that cuMemAllocAsync takes from ---- */

ENTRY(cuDeviceGetDefaultMemPool, (CUmemoryPool *pool, CUdevice device))
{
    ENTER();
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    *pool = default_of(&defaults[device], device, true, CU_MEM_ALLOCATION_TYPE_PINNED);
    driver_unlock();
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ENTRY(cuDeviceGetMemPool, (CUmemoryPool *pool, CUdevice device))
{
    ENTER();
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    *pool = pool_of_device(device);
    driver_unlock();
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* (locked) */
static CUresult set_device_pool(CUdevice device, CUmemoryPool pool)
{
    if (!pool_known(pool) || pool->imported || !pool->counted || pool->device != device)
        return CUDA_ERROR_INVALID_VALUE;
    default_of(&defaults[device], device, true, CU_MEM_ALLOCATION_TYPE_PINNED);
    current[device] = pool;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool))
{
    ENTER();
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    CUresult result = set_device_pool(device, pool);
    driver_unlock();
    return result;
}

/* By location and type: -1 is no such place, 0 and 1 index other_defaults, 2 is a device's own. */
static int place_of(const CUmemLocation *location, int type)
{
    if (location == NULL || (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED))
        return -1;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return 0;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return 1;
    return device_valid(location->id) ? 2 : -1;
}

static CUmemoryPool place_default(int place, CUdevice device)
{
    if (place == 2)
        return default_of(&defaults[device], device, true, CU_MEM_ALLOCATION_TYPE_PINNED);
    bool managed = place == 0;
    CUmemoryPool pool =
        default_of(&other_defaults[place], 0, managed, managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED);
    if (pool != NULL && pool->spans == NULL)
        pool->placed = !managed;
    return pool;
}

ENTRY(cuMemGetDefaultMemPool, (CUmemoryPool *pool, CUmemLocation *location, int type))
{
    ENTER();
    int place = place_of(location, type);
    if (pool == NULL || place < 0)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    *pool = place_default(place, location->id);
    driver_unlock();
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ENTRY(cuMemGetMemPool, (CUmemoryPool *pool, CUmemLocation *location, int type))
{
    ENTER();
    int place = place_of(location, type);
    if (pool == NULL || place < 0)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (place == 2)
        *pool = pool_of_device(location->id);
    else
        *pool = other_current[place] != NULL ? other_current[place] : place_default(place, 0);
    driver_unlock();
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ENTRY(cuMemSetMemPool, (CUmemLocation *location, int type, CUmemoryPool pool))
{
    ENTER();
    int place = place_of(location, type);
    if (place < 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    if (place == 2)
        result = set_device_pool(location->id, pool);
    else if (!pool_known(pool) || pool->allocation_type != type)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        other_current[place] = pool;
    driver_unlock();
    return result;
}
