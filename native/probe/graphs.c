/* Graphs that allocate: the memory is the driver's until cuDeviceGraphMemTrim.
 *
 *   graph build <name> <size> [<count> [keep]]   alloc nodes one after the other, each freed in the graph unless `keep`
 *   graph instantiate <name> [params]            (again) makes it ready; `params`: by cuGraphInstantiateWithParams
 *   graph launch <name> [<stream>] | graph freed <name> (cuMemFree of what a launch kept)
 *   graph drop <name> (the executable one) | graph destroy <name> (all of it)
 *   graph trim | graph attribute <number>
 * Kind: graph (built, launched and kept; given back by cuMemFree, destruction and trim).
 */
#include <stdlib.h>
#include <string.h>

#include "probe.h"

#define MAX_NODES 64

struct graph {
    CUgraph graph;
    CUgraphExec exec;
    size_t count;
    bool kept;
    CUdeviceptr pointers[MAX_NODES];
};

static CUresult build(struct graph *graph, size_t size, size_t count, bool keep) {
    CUdevice device = 0;
    CUresult result = current_device(&device);
    if (result == CUDA_SUCCESS) {
        result = CALL(cuGraphCreate, &graph->graph, 0);
    }
    graph->count = count < MAX_NODES ? count : MAX_NODES;
    graph->kept = keep;
    CUgraphNode last = NULL;
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++) {
        CUDA_MEM_ALLOC_NODE_PARAMS params;
        memset(&params, 0, sizeof params);
        params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        params.poolProps.location.id = device;
        params.bytesize = size;
        CUgraphNode node = NULL;
        result = CALL(cuGraphAddMemAllocNode, &node, graph->graph, last != NULL ? &last : NULL, last != NULL ? 1 : 0, &params);
        graph->pointers[i] = params.dptr;
        last = node;
    }
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS && !keep; i++) {
        CUgraphNode node = NULL;
        result = CALL(cuGraphAddMemFreeNode, &node, graph->graph, &last, 1, graph->pointers[i]);
        last = node;
    }
    return result;
}

static CUresult instantiate(struct graph *graph, bool with_params) {
    if (!with_params) {
        return CALL(cuGraphInstantiateWithFlags, &graph->exec, graph->graph, 0);
    }
    CUDA_GRAPH_INSTANTIATE_PARAMS params;
    memset(&params, 0, sizeof params);
    return CALL(cuGraphInstantiateWithParams, &graph->exec, graph->graph, &params);
}

static CUresult drop(struct graph *graph) {
    if (graph->exec == NULL) {
        return CUDA_SUCCESS;
    }
    CUresult result = CALL(cuGraphExecDestroy, graph->exec);
    graph->exec = NULL;
    return result;
}

static CUresult destroy(struct graph *graph) {
    CUresult result = drop(graph);
    if (result == CUDA_SUCCESS && graph->graph != NULL) {
        result = CALL(cuGraphDestroy, graph->graph);
    }
    return result;
}

static CUresult give_back_kept(struct graph *graph) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++) {
        result = CALL(cuMemFree_v2, graph->pointers[i]);
    }
    return result;
}

static CUresult trim(void) {
    CUdevice device = 0;
    CUresult result = current_device(&device);
    return result != CUDA_SUCCESS ? result : CALL(cuDeviceGraphMemTrim, device);
}

static CUresult take_graph(struct piece *piece, size_t size) {
    struct graph *graph = need(calloc(1, sizeof *graph));
    CUresult result = build(graph, size, 1, true);
    if (result == CUDA_SUCCESS) {
        result = instantiate(graph, false);
    }
    if (result == CUDA_SUCCESS) {
        result = CALL(cuGraphLaunch, graph->exec, piece->stream);
    }
    if (result == CUDA_SUCCESS) {
        result = CALL(cuStreamSynchronize, piece->stream);
    }
    if (result != CUDA_SUCCESS) {
        destroy(graph);
        free(graph);
        return result;
    }
    piece->pointer = graph->pointers[0];
    piece->object = graph;
    return result;
}

static CUresult give_graph(struct piece *piece) {
    struct graph *graph = piece->object;
    CUresult result = give_back_kept(graph);
    if (result == CUDA_SUCCESS) {
        result = destroy(graph);
    }
    free(graph);
    return result != CUDA_SUCCESS ? result : trim();
}

const struct kind graph_kinds[] = {{"graph", take_graph, give_graph}, {NULL, NULL, NULL}};

static void named_command(const struct command *command, struct answer *answer, struct thing *thing) {
    const char *what = word(command, 1, "");
    struct graph *graph = thing->object;
    CUstream stream;
    if (strcmp(what, "instantiate") == 0) {
        answer_result(answer, instantiate(graph, strcmp(word(command, 3, ""), "params") == 0));
    } else if (strcmp(what, "launch") == 0) {
        if (stream_named(word(command, 3, NULL), &stream)) {
            answer_result(answer, CALL(cuGraphLaunch, graph->exec, stream));
        } else {
            answer_bad(answer, "no stream %s", word(command, 3, ""));
        }
    } else if (strcmp(what, "freed") == 0) {
        answer_result(answer, give_back_kept(graph));
    } else if (strcmp(what, "drop") == 0) {
        answer_result(answer, drop(graph));
    } else if (strcmp(what, "destroy") == 0) {
        answer_result(answer, destroy(graph));
        free(graph);
        thing_forget(thing);
    } else {
        answer_bad(answer, "graph %s", what);
    }
}

bool graph_commands(const struct command *command, struct answer *answer) {
    if (strcmp(command->words[0], "graph") != 0) {
        return false;
    }
    const char *what = word(command, 1, ""), *name = word(command, 2, "");
    if (strcmp(what, "trim") == 0) {
        answer_result(answer, trim());
    } else if (strcmp(what, "attribute") == 0) {
        CUdevice device = 0;
        uint64_t value = 0;
        CUresult result = current_device(&device);
        if (result == CUDA_SUCCESS) {
            result = CALL(cuDeviceGetGraphMemAttribute, device, (int)size_word(command, 2, 0), &value);
        }
        if (result == CUDA_SUCCESS) {
            answer_ok(answer, "%llu", (unsigned long long)value);
        } else {
            answer_result(answer, result);
        }
    } else if (strcmp(what, "build") == 0) {
        struct graph *graph = need(calloc(1, sizeof *graph));
        bool keep = strcmp(word(command, 5, ""), "keep") == 0;
        CUresult result = build(graph, size_word(command, 3, 0), size_word(command, 4, 1), keep);
        if (result == CUDA_SUCCESS) {
            thing_add(THING_GRAPH, name, graph, 0, 0);
        } else {
            free(graph);
        }
        answer_result(answer, result);
    } else {
        struct thing *thing = thing_find(THING_GRAPH, name);
        if (thing == NULL) {
            answer_bad(answer, "no graph %s", name);
        } else {
            named_command(command, answer, thing);
        }
    }
    return true;
}
