/* Graphs made ready and launched: one stretch of work on the stream, with the memory that its nodes allocate and free. */
#include "cuda_graph.h"

#define COPY_NANOSECONDS 2000ull /* a copy or a fill in a graph */

struct CUgraphExec_st {
    struct object object;
    CUgraph graph; /* a copy of its own */
    CUgraph source;
    uint64_t source_id;
    uint64_t flags;
};

static uint64_t launches;

static CUresult instantiate(CUgraphExec *made, CUgraph graph, uint64_t flags) {
    const uint64_t known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                           CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (made != NULL && object_is(graph, OBJECT_GRAPH) && (flags & ~known) == 0) {
        /* Memory has one owner at a time. */
        result = graph->execs > 0 && graph_has_memory(graph) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    }
    CUgraphExec exec = result == CUDA_SUCCESS ? object_make(OBJECT_EXEC, sizeof *exec) : NULL;
    if (exec != NULL) {
        result = graph_copy(graph, true, &exec->graph);
        if (result == CUDA_SUCCESS) {
            exec->source = graph;
            exec->source_id = graph->id;
            exec->flags = flags;
            graph->execs++;
            *made = exec;
        } else {
            object_recycle(exec);
        }
    } else if (result == CUDA_SUCCESS) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    driver_unlock();
    return result;
}

/* The first two versions could say in a buffer what was wrong with a graph. */
static CUresult instantiate_old(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size) {
    if (error_node != NULL) {
        *error_node = NULL;
    }
    if (log != NULL && log_size > 0) {
        log[0] = '\0';
    }
    return instantiate(exec, graph, 0);
}

ENTRY(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size)) {
    ENTER();
    return instantiate_old(exec, graph, error_node, log, log_size);
}

ENTRY(cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size)) {
    ENTER();
    return instantiate_old(exec, graph, error_node, log, log_size);
}

ENTRY(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) {
    ENTER();
    return instantiate(exec, graph, flags);
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = instantiate(exec, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out = result == CUDA_SUCCESS ? 0 : 1;
    return result;
}

STREAM_ENTRY(cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
             ((void)per_thread, instantiate_with(exec, graph, params)))

ENTRY(cuGraphExecDestroy, (CUgraphExec exec)) {
    ENTER();
    driver_lock();
    bool known = object_is(exec, OBJECT_EXEC);
    if (known) {
        if (object_is(exec->source, OBJECT_GRAPH) && exec->source->id == exec->source_id) {
            exec->source->execs--;
        }
        graph_drop(exec->graph);
        object_recycle(exec);
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuGraphExecGetFlags, (CUgraphExec exec, uint64_t *flags)) {
    ENTER();
    driver_lock();
    bool known = flags != NULL && object_is(exec, OBJECT_EXEC);
    if (known) {
        *flags = exec->flags;
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- update: the same shape with other parameters ---- */

static int difference(CUgraph old, CUgraph new) {
    if (old->count != new->count) {
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    for (size_t i = 0; i < old->count; i++) {
        if (old->nodes[i]->type != new->nodes[i]->type) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        }
        if (old->nodes[i]->before.count != new->nodes[i]->before.count) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        }
    }
    return graph_has_memory(new) ? CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED : CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static CUresult update(CUgraphExec exec, CUgraph graph, int *why) {
    *why = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (object_is(exec, OBJECT_EXEC) && object_is(graph, OBJECT_GRAPH)) {
        *why = difference(exec->graph, graph);
        CUgraph copy;
        result = *why != CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : graph_copy(graph, false, &copy);
        if (result == CUDA_SUCCESS) {
            graph_drop(exec->graph);
            exec->graph = copy;
        }
    }
    driver_unlock();
    return result;
}

ENTRY(cuGraphExecUpdate, (CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *why)) {
    ENTER();
    int unwanted;
    if (error_node != NULL) {
        *error_node = NULL;
    }
    return update(exec, graph, why == NULL ? &unwanted : why);
}

ENTRY(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)) {
    ENTER();
    if (info == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *info = (CUgraphExecUpdateResultInfo){0};
    return update(exec, graph, &info->result);
}

/* ---- launch ---- */

/* What a launch does with each node, in this order: nothing is changed for good before the memory is there. */
enum step { CHECK, TAKE, UNTAKE, RUN, FREE };

struct launching {
    CUgraphExec exec;
    CUstream stream;
    uint64_t number;
    uint64_t work; /* nanoseconds not yet put on the stream */
};

static void run_work(struct launching *launching) {
    if (launching->work > 0) {
        stream_run(launching->stream, launching->work);
        launching->work = 0;
    }
}

static CUresult check_node(struct launching *launching, CUgraphNode node) {
    if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        const void *handle = node->kernel.launch.func != NULL ? (const void *)node->kernel.launch.func : (const void *)node->kernel.kern;
        CUfunction function;
        CUresult result = function_find(handle, launching->stream->context, &function);
        return result != CUDA_SUCCESS ? result : kernel_prepare(function, launching->stream->context);
    }
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->memory->live) {
        if ((launching->exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        graph_memory_let_go(node->memory, launching->stream, stream_ready(launching->stream));
    }
    return CUDA_SUCCESS;
}

static CUresult run_node(struct launching *launching, CUgraphNode node) {
    CUfunction function;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        function_find(node->kernel.launch.func != NULL ? (const void *)node->kernel.launch.func : (const void *)node->kernel.kern,
                      launching->stream->context, &function);
        launching->work += function->kernel->cost;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
        launching->work += COPY_NANOSECONDS;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_HOST:
        run_work(launching);
        return stream_callback_add(launching->stream, node->host.fn, NULL, NULL, node->host.userData);
    default:
        return CUDA_SUCCESS;
    }
}

/* After all work is on the stream: what the graph frees is free from the stream's tail on. */
static CUresult free_node(struct launching *launching, CUgraphNode node) {
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->memory->live) {
        graph_memory_busy(node->memory, launching->stream, launching->stream->tail);
    } else if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
        struct graph_memory *memory = graph_memory_at(node->freed);
        if (memory == NULL || !memory->live) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        graph_memory_let_go(memory, launching->stream, launching->stream->tail);
    }
    return CUDA_SUCCESS;
}

static CUresult walk(struct launching *launching, CUgraph graph, enum step step) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; result == CUDA_SUCCESS && i < graph->count; i++) {
        CUgraphNode node = graph->nodes[i];
        bool allocates = node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        if (node->child != NULL) {
            result = walk(launching, node->child, step);
        } else if (step == CHECK) {
            result = check_node(launching, node);
        } else if (step == TAKE && allocates) {
            const struct graph_launch launch = {launching->stream, launching->number, launching->exec};
            result = graph_memory_take(node->memory, &launch);
        } else if (step == UNTAKE && allocates && node->memory->live) {
            graph_memory_let_go(node->memory, launching->stream, 0);
        } else if (step == RUN) {
            result = run_node(launching, node);
        } else if (step == FREE) {
            result = free_node(launching, node);
        }
    }
    return result;
}

/* (locked) */
static CUresult launch_on(CUgraphExec exec, CUstream stream) {
    struct launching launching = {.exec = exec, .stream = stream, .number = ++launches};
    CUresult result = walk(&launching, exec->graph, CHECK);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = walk(&launching, exec->graph, TAKE);
    if (result != CUDA_SUCCESS) {
        walk(&launching, exec->graph, UNTAKE);
        graph_memory_undo(launching.number);
        return result;
    }
    result = walk(&launching, exec->graph, RUN);
    run_work(&launching);
    CUresult freed = walk(&launching, exec->graph, FREE);
    return result != CUDA_SUCCESS ? result : freed;
}

static CUresult launch(CUgraphExec exec, CUstream handle, bool per_thread) {
    CUstream stream;
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(exec, OBJECT_EXEC)) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (stream->capture != NULL) {
        result = capture_graph(stream, exec->graph);
    } else {
        result = capture_implicit(stream);
        if (result == CUDA_SUCCESS) {
            result = launch_on(exec, stream);
        }
    }
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuGraphLaunch, (CUgraphExec exec, CUstream stream), launch(exec, stream, per_thread))

/* There is nothing to bring to the card before a launch. */
static CUresult upload(CUgraphExec exec, CUstream handle, bool per_thread) {
    CUstream stream;
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS) {
        result = object_is(exec, OBJECT_EXEC) ? capture_unsupported(stream) : CUDA_ERROR_INVALID_VALUE;
        driver_unlock();
    }
    return result;
}

STREAM_ENTRY(cuGraphUpload, (CUgraphExec exec, CUstream stream), upload(exec, stream, per_thread))
