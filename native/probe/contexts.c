/* Commands on devices, contexts, streams and events.
 *
 *   init | count | device <n> (retain the primary context, make it current) | release <n> | reset <n>
 *   ctx create <name> <device> [v4] | ctx destroy|detach|push|set <name> | ctx attach | ctx pop | ctx sync
 *   limit stack|heap|printf [<bytes>]
 *   stream create|destroy|sync <name> | event create|destroy|sync <name> | event record <name> [<stream>]
 */
#include <string.h>

#include "probe.h"

static void device_command(const struct command *command, struct answer *answer) {
    CUdevice device = 0;
    CUcontext context = NULL;
    CUresult result = CALL(cuDeviceGet, &device, (int)size_word(command, 1, 0));
    if (result == CUDA_SUCCESS) {
        result = CALL(cuDevicePrimaryCtxRetain, &context, device);
    }
    if (result == CUDA_SUCCESS) {
        result = CALL(cuCtxSetCurrent, context);
    }
    answer_result(answer, result);
}

static void context_command(const struct command *command, struct answer *answer) {
    const char *what = word(command, 1, ""), *name = word(command, 2, "");
    CUcontext context = NULL;
    if (strcmp(what, "pop") == 0) {
        answer_result(answer, CALL(cuCtxPopCurrent_v2, &context));
        return;
    }
    if (strcmp(what, "sync") == 0) {
        answer_result(answer, CALL(cuCtxSynchronize));
        return;
    }
    if (strcmp(what, "attach") == 0) {
        answer_result(answer, CALL(cuCtxAttach, &context, 0));
        return;
    }
    if (strcmp(what, "create") == 0) {
        CUdevice device = (CUdevice)size_word(command, 3, 0);
        CUresult result = strcmp(word(command, 4, "v2"), "v4") == 0 ? CALL(cuCtxCreate_v4, &context, NULL, 0, device)
                                                                   : CALL(cuCtxCreate_v2, &context, 0, device);
        if (result == CUDA_SUCCESS) {
            thing_add(THING_CONTEXT, name, context, 0, 0);
        }
        answer_result(answer, result);
        return;
    }
    struct thing *thing = thing_find(THING_CONTEXT, name);
    if (thing == NULL) {
        answer_bad(answer, "no context %s", name);
    } else if (strcmp(what, "destroy") == 0) {
        answer_result(answer, CALL(cuCtxDestroy_v2, thing->object));
        thing_forget(thing);
    } else if (strcmp(what, "detach") == 0) {
        answer_result(answer, CALL(cuCtxDetach, thing->object));
    } else if (strcmp(what, "push") == 0) {
        answer_result(answer, CALL(cuCtxPushCurrent_v2, thing->object));
    } else if (strcmp(what, "set") == 0) {
        answer_result(answer, CALL(cuCtxSetCurrent, thing->object));
    } else {
        answer_bad(answer, "ctx %s", what);
    }
}

static void limit_command(const struct command *command, struct answer *answer) {
    const char *name = word(command, 1, "");
    int limit = strcmp(name, "heap") == 0 ? CU_LIMIT_MALLOC_HEAP_SIZE
                : strcmp(name, "printf") == 0 ? CU_LIMIT_PRINTF_FIFO_SIZE
                                              : CU_LIMIT_STACK_SIZE;
    if (command->count > 2) {
        answer_result(answer, CALL(cuCtxSetLimit, limit, size_word(command, 2, 0)));
        return;
    }
    size_t value = 0;
    CUresult result = CALL(cuCtxGetLimit, &value, limit);
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
    } else {
        answer_ok(answer, "%zu", value);
    }
}

static void stream_command(const struct command *command, struct answer *answer) {
    const char *what = word(command, 1, ""), *name = word(command, 2, "");
    if (strcmp(what, "create") == 0) {
        CUstream made = NULL;
        CUresult result = CALL(cuStreamCreate, &made, CU_STREAM_NON_BLOCKING);
        if (result == CUDA_SUCCESS) {
            thing_add(THING_STREAM, name, made, 0, 0);
        }
        answer_result(answer, result);
        return;
    }
    CUstream stream;
    if (!stream_named(name, &stream)) {
        answer_bad(answer, "no stream %s", name);
    } else if (strcmp(what, "sync") == 0) {
        answer_result(answer, CALL(cuStreamSynchronize, stream));
    } else if (strcmp(what, "destroy") == 0 && stream != NULL) {
        answer_result(answer, CALL(cuStreamDestroy_v2, stream));
        thing_forget(thing_find(THING_STREAM, name));
    } else {
        answer_bad(answer, "stream %s", what);
    }
}

static void event_command(const struct command *command, struct answer *answer) {
    const char *what = word(command, 1, ""), *name = word(command, 2, "");
    if (strcmp(what, "create") == 0) {
        CUevent made = NULL;
        CUresult result = CALL(cuEventCreate, &made, 0);
        if (result == CUDA_SUCCESS) {
            thing_add(THING_EVENT, name, made, 0, 0);
        }
        answer_result(answer, result);
        return;
    }
    struct thing *event = thing_find(THING_EVENT, name);
    CUstream stream;
    if (event == NULL || !stream_named(word(command, 3, NULL), &stream)) {
        answer_bad(answer, "no such event or stream");
    } else if (strcmp(what, "record") == 0) {
        answer_result(answer, CALL(cuEventRecord, event->object, stream));
    } else if (strcmp(what, "sync") == 0) {
        answer_result(answer, CALL(cuEventSynchronize, event->object));
    } else if (strcmp(what, "destroy") == 0) {
        answer_result(answer, CALL(cuEventDestroy_v2, event->object));
        thing_forget(event);
    } else {
        answer_bad(answer, "event %s", what);
    }
}

bool context_commands(const struct command *command, struct answer *answer) {
    const char *name = command->words[0];
    if (strcmp(name, "init") == 0) {
        answer_result(answer, CALL(cuInit, 0));
    } else if (strcmp(name, "count") == 0) {
        int count = 0;
        CUresult result = CALL(cuDeviceGetCount, &count);
        if (result != CUDA_SUCCESS) {
            answer_result(answer, result);
        } else {
            answer_ok(answer, "%d", count);
        }
    } else if (strcmp(name, "device") == 0) {
        device_command(command, answer);
    } else if (strcmp(name, "release") == 0) {
        answer_result(answer, CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice)size_word(command, 1, 0)));
    } else if (strcmp(name, "reset") == 0) {
        answer_result(answer, CALL(cuDevicePrimaryCtxReset_v2, (CUdevice)size_word(command, 1, 0)));
    } else if (strcmp(name, "ctx") == 0) {
        context_command(command, answer);
    } else if (strcmp(name, "limit") == 0) {
        limit_command(command, answer);
    } else if (strcmp(name, "stream") == 0) {
        stream_command(command, answer);
    } else if (strcmp(name, "event") == 0) {
        event_command(command, answer);
    } else {
        return false;
    }
    return true;
}
