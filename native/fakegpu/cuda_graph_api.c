/* The entry points that build graphs. */
#include "cuda_graph.h"

ENTRY(cuGraphCreate, (CUgraph * created, unsigned int flags)) {
    ENTER();
    if (created == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    CUgraph graph = graph_make();
    driver_unlock();
    *created = graph;
    return graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

ENTRY(cuGraphDestroy, (CUgraph graph)) {
    ENTER();
    driver_lock();
    bool known = object_is(graph, OBJECT_GRAPH) && graph->parent == NULL;
    if (known) {
        graph_drop(graph);
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuGraphClone, (CUgraph * clone, CUgraph original)) {
    ENTER();
    driver_lock();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (clone != NULL && object_is(original, OBJECT_GRAPH)) {
        result = graph_copy(original, false, clone);
    }
    driver_unlock();
    return result;
}

/* (locked) Adds a node of the type that `params` says, with its part of the union. */
static CUresult add_any(CUgraphNode *added, CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeParams *params) {
    CUresult result;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return graph_add_alloc(graph, before, count, &params->alloc, added);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return graph_add_free(graph, before, count, params->free, added);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return graph_add_child(graph, before, count, params->graph.graph,
                               params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE, added);
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        const CUDA_KERNEL_NODE_PARAMS_v1 *launch = &params->kernel.launch;
        const struct launch sizes = {.grid = {launch->gridDimX, launch->gridDimY, launch->gridDimZ},
                                     .block = {launch->blockDimX, launch->blockDimY, launch->blockDimZ}};
        result = kernel_check(&sizes);
        if (result == CUDA_SUCCESS && !object_is(launch->func, OBJECT_FUNCTION) && !object_is(launch->func, OBJECT_KERNEL) &&
            !object_is(params->kernel.kern, OBJECT_KERNEL)) {
            result = CUDA_ERROR_INVALID_VALUE;
        }
        break;
    }
    case CU_GRAPH_NODE_TYPE_HOST:
        result = params->host.fn == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        break;
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
        result = CUDA_SUCCESS;
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result == CUDA_SUCCESS) {
        result = graph_add(graph, params->type, before, count, added);
    }
    if (result == CUDA_SUCCESS) {
        if (params->type == CU_GRAPH_NODE_TYPE_KERNEL) {
            (*added)->kernel = params->kernel;
        } else if (params->type == CU_GRAPH_NODE_TYPE_HOST) {
            (*added)->host = params->host;
        } else if (params->type == CU_GRAPH_NODE_TYPE_MEMSET) {
            (*added)->memset = params->memset;
        }
    }
    return result;
}

static CUresult add(CUgraphNode *added, CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeParams *params) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (added != NULL && params != NULL && object_is(graph, OBJECT_GRAPH)) {
        result = add_any(added, graph, before, count, params);
    }
    driver_unlock();
    return result;
}

ENTRY(cuGraphAddNode, (CUgraphNode * added, CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeParams *params)) {
    ENTER();
    return add(added, graph, before, count, params);
}

ENTRY(cuGraphAddNode_v2, (CUgraphNode * added, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *edges, size_t count,
                          CUgraphNodeParams *params)) {
    ENTER();
    (void)edges;
    return add(added, graph, before, count, params);
}

#define WHERE CUgraphNode *added, CUgraph graph, const CUgraphNode *before, size_t count

ENTRY(cuGraphAddEmptyNode, (WHERE)) {
    ENTER();
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return add(added, graph, before, count, &any);
}

ENTRY(cuGraphAddKernelNode, (WHERE, const CUDA_KERNEL_NODE_PARAMS_v1 *params)) {
    ENTER();
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = {.launch = *params}};
    return add(added, graph, before, count, &any);
}

ENTRY(cuGraphAddKernelNode_v2, (WHERE, const CUDA_KERNEL_NODE_PARAMS_v2 *params)) {
    ENTER();
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = *params};
    return add(added, graph, before, count, &any);
}

ENTRY(cuGraphAddMemsetNode, (WHERE, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)) {
    ENTER();
    (void)context;
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = *params};
    return add(added, graph, before, count, &any);
}

/* A copy takes its time when the graph runs; it moves no bytes. */
ENTRY(cuGraphAddMemcpyNode, (WHERE, const void *params, CUcontext context)) {
    ENTER();
    (void)context;
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    return add(added, graph, before, count, &any);
}

ENTRY(cuGraphAddHostNode, (WHERE, const CUDA_HOST_NODE_PARAMS *params)) {
    ENTER();
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = *params};
    return add(added, graph, before, count, &any);
}

ENTRY(cuGraphAddChildGraphNode, (WHERE, CUgraph child)) {
    ENTER();
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child}};
    return add(added, graph, before, count, &any);
}

ENTRY(cuGraphAddMemAllocNode, (WHERE, CUDA_MEM_ALLOC_NODE_PARAMS *params)) {
    ENTER();
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = *params};
    CUresult result = add(added, graph, before, count, &any);
    if (result == CUDA_SUCCESS) {
        params->dptr = any.alloc.dptr;
    }
    return result;
}

ENTRY(cuGraphAddMemFreeNode, (WHERE, CUdeviceptr pointer)) {
    ENTER();
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = pointer};
    return add(added, graph, before, count, &any);
}

/* (locked) */
static CUresult add_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!object_is(from[i], OBJECT_NODE) || !object_is(to[i], OBJECT_NODE) || from[i]->graph != graph || to[i]->graph != graph ||
            from[i] == to[i]) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (!nodes_add(&to[i]->before, from[i])) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult add_dependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (object_is(graph, OBJECT_GRAPH) && (count == 0 || (from != NULL && to != NULL))) {
        result = add_edges(graph, from, to, count);
    }
    driver_unlock();
    return result;
}

ENTRY(cuGraphAddDependencies, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)) {
    ENTER();
    return add_dependencies(graph, from, to, count);
}

ENTRY(cuGraphAddDependencies_v2,
      (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t count)) {
    ENTER();
    (void)edges;
    return add_dependencies(graph, from, to, count);
}
