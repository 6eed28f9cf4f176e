/* The entry points that tell what is in a graph. */
#include "cuda_graph.h"

/* Writes `found` as CUDA lists nodes: only the number if there is no room to write to, else as many as there is room for, the rest
 * of the room NULL. */
static void list(const CUgraphNode *found, size_t count, CUgraphNode *nodes, size_t *room) {
    if (nodes == NULL) {
        *room = count;
        return;
    }
    for (size_t i = 0; i < *room; i++) {
        nodes[i] = i < count ? found[i] : NULL;
    }
    *room = count < *room ? count : *room;
}

ENTRY(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count)) {
    ENTER();
    driver_lock();
    bool known = count != NULL && object_is(graph, OBJECT_GRAPH);
    if (known) {
        list(graph->nodes, graph->count, nodes, count);
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuGraphGetRootNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count)) {
    ENTER();
    driver_lock();
    bool known = count != NULL && object_is(graph, OBJECT_GRAPH);
    size_t roots = 0, room = known && nodes != NULL ? *count : 0;
    for (size_t i = 0; known && i < graph->count; i++) {
        if (graph->nodes[i]->before.count == 0) {
            if (roots < room) {
                nodes[roots] = graph->nodes[i];
            }
            roots++;
        }
    }
    for (size_t i = roots; i < room; i++) {
        nodes[i] = NULL;
    }
    if (known) {
        *count = nodes == NULL || roots < room ? roots : room;
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult dependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    driver_lock();
    bool known = count != NULL && object_is(node, OBJECT_NODE);
    if (known) {
        list(node->before.nodes, node->before.count, nodes, count);
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode *nodes, size_t *count)) {
    ENTER();
    return dependencies(node, nodes, count);
}

ENTRY(cuGraphNodeGetDependencies_v2, (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count)) {
    ENTER();
    CUresult result = dependencies(node, nodes, count);
    for (size_t i = 0; result == CUDA_SUCCESS && nodes != NULL && edges != NULL && i < *count; i++) {
        edges[i] = (CUgraphEdgeData){0}; /* plain dependencies */
    }
    return result;
}

ENTRY(cuGraphNodeGetType, (CUgraphNode node, int *type)) {
    ENTER();
    driver_lock();
    bool known = type != NULL && object_is(node, OBJECT_NODE);
    if (known) {
        *type = node->type;
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* On success driver_lock() is held. */
static bool lock_node(CUgraphNode node, int type) {
    driver_lock();
    if (object_is(node, OBJECT_NODE) && node->type == type) {
        return true;
    }
    driver_unlock();
    return false;
}

ENTRY(cuGraphMemAllocNodeGetParams, (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)) {
    ENTER();
    if (params == NULL || !lock_node(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *params = node->alloc;
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuGraphMemFreeNodeGetParams, (CUgraphNode node, CUdeviceptr *pointer)) {
    ENTER();
    if (pointer == NULL || !lock_node(node, CU_GRAPH_NODE_TYPE_MEM_FREE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pointer = node->freed;
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph *graph)) {
    ENTER();
    if (graph == NULL || !lock_node(node, CU_GRAPH_NODE_TYPE_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *graph = node->child;
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuGraphKernelNodeGetParams, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *params)) {
    ENTER();
    if (params == NULL || !lock_node(node, CU_GRAPH_NODE_TYPE_KERNEL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *params = node->kernel.launch;
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *params)) {
    ENTER();
    if (params == NULL || !lock_node(node, CU_GRAPH_NODE_TYPE_KERNEL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *params = node->kernel;
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuGraphNodeFindInClone, (CUgraphNode * found, CUgraphNode original, CUgraph clone)) {
    ENTER();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    for (size_t i = 0; found != NULL && object_is(clone, OBJECT_GRAPH) && i < clone->count; i++) {
        if (clone->nodes[i]->copied_from == original) {
            *found = clone->nodes[i];
            result = CUDA_SUCCESS;
            break;
        }
    }
    driver_unlock();
    return result;
}
