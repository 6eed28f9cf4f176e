/* Commands on pools of stream-ordered memory; memory of them is taken by `take pool:<name> ...` or, from the device's, `take async ...`.
 *
 *   pool create <name> [<most bytes>] | pool destroy <name> | pool trim <name> <keep> | pool threshold <name> <bytes>
 *   pool attribute <name> <number>    pool use <name> (make it the device's)
 * `default` names the device's own pool.
 */
#include <string.h>

#include "probe.h"

static bool pool_named(const char *name, CUmemoryPool *pool) {
    if (strcmp(name, "default") == 0) {
        CUdevice device = 0;
        return current_device(&device) == CUDA_SUCCESS && CALL(cuDeviceGetDefaultMemPool, pool, device) == CUDA_SUCCESS;
    }
    const struct thing *thing = thing_find(THING_POOL, name);
    if (thing == NULL) {
        return false;
    }
    *pool = thing->object;
    return true;
}

static void create(const struct command *command, struct answer *answer) {
    CUdevice device = 0;
    CUresult result = current_device(&device);
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.maxSize = size_word(command, 3, 0);
    CUmemoryPool pool = NULL;
    if (result == CUDA_SUCCESS) {
        result = CALL(cuMemPoolCreate, &pool, &properties);
    }
    if (result == CUDA_SUCCESS) {
        thing_add(THING_POOL, word(command, 2, ""), pool, 0, 0);
    }
    answer_result(answer, result);
}

static void attribute(const struct command *command, struct answer *answer, CUmemoryPool pool) {
    uint64_t value = 0;
    CUresult result = CALL(cuMemPoolGetAttribute, pool, (int)size_word(command, 3, 0), &value);
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
    } else {
        answer_ok(answer, "%llu", (unsigned long long)value);
    }
}

bool pool_commands(const struct command *command, struct answer *answer) {
    if (strcmp(command->words[0], "pool") != 0) {
        return false;
    }
    const char *what = word(command, 1, ""), *name = word(command, 2, "");
    if (strcmp(what, "create") == 0) {
        create(command, answer);
        return true;
    }
    CUmemoryPool pool = NULL;
    if (!pool_named(name, &pool)) {
        answer_bad(answer, "no pool %s", name);
    } else if (strcmp(what, "destroy") == 0) {
        answer_result(answer, CALL(cuMemPoolDestroy, pool));
        thing_forget(thing_find(THING_POOL, name));
    } else if (strcmp(what, "trim") == 0) {
        answer_result(answer, CALL(cuMemPoolTrimTo, pool, size_word(command, 3, 0)));
    } else if (strcmp(what, "threshold") == 0) {
        uint64_t bytes = size_word(command, 3, 0);
        answer_result(answer, CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
    } else if (strcmp(what, "attribute") == 0) {
        attribute(command, answer, pool);
    } else if (strcmp(what, "use") == 0) {
        CUdevice device = 0;
        CUresult result = current_device(&device);
        answer_result(answer, result != CUDA_SUCCESS ? result : CALL(cuDeviceSetMemPool, device, pool));
    } else {
        answer_bad(answer, "pool %s", what);
    }
    return true;
}
