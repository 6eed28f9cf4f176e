/* Memory by where it lies, and ways to another card.
 *
 * A place is two words: device|host|none or the number of a location's type, and an id. A type of memory is pinned or managed.
 *
 *   prefetch <piece> v1|v2|batch|discard <place>      advise <piece> v1|v2 <advice> <place>
 *   access <range> <place> (cuMemSetAccess)           poolaccess <pool> <place>
 *   poolat <name> <type> <place> (cuMemPoolCreate)    poolof <name> mem|memdefault|device|devicedefault <type> <place>
 *   vmmat <handle> <size> <place>                     graphat <size> <place> (makes a graph ready, and ends it)
 *   green create <name> <device> | green destroy|use <name>
 *   peer <context> | multicast <device>
 */
#include <string.h>

#include "probe.h"

static CUmemLocation place_at(const struct command *command, int index) {
    static const struct {
        const char *name;
        int type;
    } names[] = {{"none", CU_MEM_LOCATION_TYPE_INVALID}, {"device", CU_MEM_LOCATION_TYPE_DEVICE}, {"host", CU_MEM_LOCATION_TYPE_HOST}};
    CUmemLocation place = {.type = (int)size_word(command, index, 0), .id = (int)size_word(command, index + 1, 0)};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(word(command, index, ""), names[i].name) == 0) {
            place.type = names[i].type;
        }
    }
    return place;
}

static int type_at(const struct command *command, int index) {
    return strcmp(word(command, index, ""), "managed") == 0 ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
}

static CUdevice number_of(CUmemLocation place) { return place.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU : place.id; }

static void prefetch_command(const struct command *command, struct answer *answer, const struct thing *piece) {
    const char *how = word(command, 2, "");
    CUmemLocation place = place_at(command, 3);
    CUdeviceptr pointer = piece->value;
    size_t size = piece->size, first = 0;
    CUresult result;
    if (strcmp(how, "v1") == 0) {
        result = CALL(cuMemPrefetchAsync, pointer, size, number_of(place), NULL);
    } else if (strcmp(how, "v2") == 0) {
        result = CALL(cuMemPrefetchAsync_v2, pointer, size, place, 0, NULL);
    } else if (strcmp(how, "batch") == 0) {
        result = CALL(cuMemPrefetchBatchAsync, &pointer, &size, 1, &place, &first, 1, 0, NULL);
    } else {
        result = CALL(cuMemDiscardAndPrefetchBatchAsync, &pointer, &size, 1, &place, &first, 1, 0, NULL);
    }
    answer_result(answer, result);
}

static void advise_command(const struct command *command, struct answer *answer, const struct thing *piece) {
    int advice = (int)size_word(command, 3, 0);
    CUmemLocation place = place_at(command, 4);
    bool first = strcmp(word(command, 2, ""), "v1") == 0;
    answer_result(answer, first ? CALL(cuMemAdvise, piece->value, piece->size, advice, number_of(place))
                                : CALL(cuMemAdvise_v2, piece->value, piece->size, advice, place));
}

static void access_command(const struct command *command, struct answer *answer) {
    CUmemAccessDesc access = {.location = place_at(command, 2), .flags = 3};
    bool of_pool = strcmp(command->words[0], "poolaccess") == 0;
    const struct thing *thing = thing_find(of_pool ? THING_POOL : THING_RANGE, word(command, 1, ""));
    if (thing == NULL) {
        answer_bad(answer, "nothing is called %s", word(command, 1, ""));
    } else {
        answer_result(answer, of_pool ? CALL(cuMemPoolSetAccess, thing->object, &access, 1)
                                      : CALL(cuMemSetAccess, thing->value, thing->size, &access, 1));
    }
}

static void pool_command(const struct command *command, struct answer *answer) {
    CUmemoryPool pool = NULL;
    CUresult result;
    if (strcmp(command->words[0], "poolat") == 0) {
        CUmemPoolProps properties;
        memset(&properties, 0, sizeof properties);
        properties.allocType = type_at(command, 2);
        properties.location = place_at(command, 3);
        properties.handleTypes = properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
        result = CALL(cuMemPoolCreate, &pool, &properties);
    } else {
        const char *how = word(command, 2, "");
        int type = type_at(command, 3);
        CUmemLocation place = place_at(command, 4);
        if (strcmp(how, "mem") == 0) {
            result = CALL(cuMemGetMemPool, &pool, &place, type);
        } else if (strcmp(how, "memdefault") == 0) {
            result = CALL(cuMemGetDefaultMemPool, &pool, &place, type);
        } else if (strcmp(how, "device") == 0) {
            result = CALL(cuDeviceGetMemPool, &pool, place.id);
        } else {
            result = CALL(cuDeviceGetDefaultMemPool, &pool, place.id);
        }
    }
    if (result == CUDA_SUCCESS) {
        thing_add(THING_POOL, word(command, 1, ""), pool, 0, 0);
    }
    answer_result(answer, result);
}

static void vmm_command(const struct command *command, struct answer *answer) {
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = place_at(command, 3);
    CUmemGenericAllocationHandle handle = 0;
    size_t size = size_word(command, 2, 0);
    CUresult result = CALL(cuMemCreate, &handle, size, &properties, 0);
    if (result == CUDA_SUCCESS) {
        thing_add(THING_HANDLE, word(command, 1, ""), NULL, handle, size);
    }
    answer_result(answer, result);
}

static void graph_command(const struct command *command, struct answer *answer) {
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    memset(&params, 0, sizeof params);
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = place_at(command, 2);
    params.bytesize = size_word(command, 1, 0);
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    CUgraphExec exec = NULL;
    CUresult result = CALL(cuGraphCreate, &graph, 0);
    if (result == CUDA_SUCCESS) {
        result = CALL(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &params);
    }
    if (result == CUDA_SUCCESS) {
        result = CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
    }
    if (result == CUDA_SUCCESS) {
        CALL(cuGraphExecDestroy, exec);
    }
    answer_result(answer, result);
    CALL(cuGraphDestroy, graph);
}

static void green_command(const struct command *command, struct answer *answer) {
    const char *what = word(command, 1, ""), *name = word(command, 2, "");
    struct thing *thing = thing_find(THING_GREEN, name);
    if (strcmp(what, "create") == 0) {
        CUdevice device = (CUdevice)size_word(command, 3, 0);
        CUdevResource whole;
        CUdevResourceDesc description = NULL;
        CUgreenCtx green = NULL;
        CUresult result = CALL(cuDeviceGetDevResource, device, &whole, CU_DEV_RESOURCE_TYPE_SM);
        if (result == CUDA_SUCCESS) {
            result = CALL(cuDevResourceGenerateDesc, &description, &whole, 1);
        }
        if (result == CUDA_SUCCESS) {
            result = CALL(cuGreenCtxCreate, &green, description, device, 1 /* with a default stream */);
        }
        if (result == CUDA_SUCCESS) {
            thing_add(THING_GREEN, name, green, 0, 0);
        }
        answer_result(answer, result);
    } else if (thing == NULL) {
        answer_bad(answer, "no green context %s", name);
    } else if (strcmp(what, "destroy") == 0) {
        answer_result(answer, CALL(cuGreenCtxDestroy, thing->object));
        thing_forget(thing);
    } else {
        CUcontext context = NULL;
        CUresult result = CALL(cuCtxFromGreenCtx, &context, thing->object);
        answer_result(answer, result != CUDA_SUCCESS ? result : CALL(cuCtxSetCurrent, context));
    }
}

static void multicast_command(const struct command *command, struct answer *answer) {
    CUmulticastObjectProp properties = {.numDevices = 2, .size = (size_t)2 << 20};
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = CALL(cuMulticastCreate, &handle, &properties);
    answer_result(answer, result != CUDA_SUCCESS ? result : CALL(cuMulticastAddDevice, handle, (CUdevice)size_word(command, 1, 0)));
}

bool door_commands(const struct command *command, struct answer *answer) {
    const char *name = command->words[0];
    bool moves = strcmp(name, "prefetch") == 0 || strcmp(name, "advise") == 0;
    const struct thing *piece = moves ? thing_find(THING_PIECE, word(command, 1, "")) : NULL;
    const struct thing *context = strcmp(name, "peer") == 0 ? thing_find(THING_CONTEXT, word(command, 1, "")) : NULL;
    if (moves && piece == NULL) {
        answer_bad(answer, "no piece %s", word(command, 1, ""));
    } else if (strcmp(name, "prefetch") == 0) {
        prefetch_command(command, answer, piece);
    } else if (strcmp(name, "advise") == 0) {
        advise_command(command, answer, piece);
    } else if (strcmp(name, "access") == 0 || strcmp(name, "poolaccess") == 0) {
        access_command(command, answer);
    } else if (strcmp(name, "poolat") == 0 || strcmp(name, "poolof") == 0) {
        pool_command(command, answer);
    } else if (strcmp(name, "vmmat") == 0) {
        vmm_command(command, answer);
    } else if (strcmp(name, "graphat") == 0) {
        graph_command(command, answer);
    } else if (strcmp(name, "green") == 0) {
        green_command(command, answer);
    } else if (strcmp(name, "multicast") == 0) {
        multicast_command(command, answer);
    } else if (strcmp(name, "peer") == 0) {
        answer_result(answer, CALL(cuCtxEnablePeerAccess, context != NULL ? context->object : NULL, 0));
    } else {
        return false;
    }
    return true;
}
