/* Graphs: nodes, edges, copies. */
#include "cuda_graph.h"

#include <stdlib.h>
#include <string.h>

static uint64_t ids;

bool nodes_add(struct node_set *set, CUgraphNode node) {
    for (size_t i = 0; i < set->count; i++) {
        if (set->nodes[i] == node) {
            return true;
        }
    }
    CUgraphNode *grown = realloc(set->nodes, (set->count + 1) * sizeof(CUgraphNode));
    if (grown == NULL) {
        return false;
    }
    set->nodes = grown;
    set->nodes[set->count++] = node;
    return true;
}

bool nodes_set(struct node_set *set, const CUgraphNode *nodes, size_t count) {
    set->count = 0;
    for (size_t i = 0; i < count; i++) {
        if (!nodes_add(set, nodes[i])) {
            return false;
        }
    }
    return true;
}

CUgraph graph_make(void) {
    CUgraph graph = object_make(OBJECT_GRAPH, sizeof *graph);
    if (graph != NULL) {
        graph->id = ++ids;
    }
    return graph;
}

static void node_drop(CUgraphNode node) {
    if (node->memory != NULL) {
        graph_memory_release(node->memory);
    }
    if (node->child != NULL) {
        graph_drop(node->child);
    }
    free(node->before.nodes);
    object_recycle(node);
}

void graph_drop(CUgraph graph) {
    for (size_t i = 0; i < graph->count; i++) {
        node_drop(graph->nodes[i]);
    }
    free(graph->nodes);
    object_recycle(graph);
}

bool graph_has_memory(CUgraph graph) {
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphNode node = graph->nodes[i];
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
            (node->child != NULL && graph_has_memory(node->child))) {
            return true;
        }
    }
    return false;
}

CUresult graph_add(CUgraph graph, int type, const CUgraphNode *before, size_t count, CUgraphNode *added) {
    if (count > 0 && before == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        if (!object_is(before[i], OBJECT_NODE) || before[i]->graph != graph) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (graph->count == graph->room) {
        size_t room = graph->room == 0 ? 8 : graph->room * 2;
        CUgraphNode *grown = realloc(graph->nodes, room * sizeof(CUgraphNode));
        if (grown == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        graph->nodes = grown;
        graph->room = room;
    }
    CUgraphNode node = object_make(OBJECT_NODE, sizeof *node);
    if (node == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    node->graph = graph;
    node->type = type;
    if (!nodes_set(&node->before, before, count)) {
        node_drop(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    graph->nodes[graph->count++] = node;
    *added = node;
    return CUDA_SUCCESS;
}

/* The edges of a copied node lead to the copies of the nodes, which have the same places. */
static bool copy_edges(CUgraph from, CUgraph copy, size_t place) {
    const struct node_set *edges = &from->nodes[place]->before;
    for (size_t edge = 0; edge < edges->count; edge++) {
        for (size_t i = 0; i < from->count; i++) {
            if (from->nodes[i] == edges->nodes[edge] && !nodes_add(&copy->nodes[place]->before, copy->nodes[i])) {
                return false;
            }
        }
    }
    return true;
}

static CUresult copy_node(CUgraph copy, CUgraphNode node, bool memory) {
    CUgraphNode twin;
    CUresult result = graph_add(copy, node->type, NULL, 0, &twin);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    twin->copied_from = node;
    twin->kernel = node->kernel;
    twin->alloc = node->alloc;
    twin->freed = node->freed;
    twin->host = node->host;
    twin->memset = node->memset;
    if (node->memory != NULL) {
        twin->memory = node->memory;
        twin->memory->references++;
    }
    if (node->child != NULL) {
        result = graph_copy(node->child, memory, &twin->child);
        if (result == CUDA_SUCCESS) {
            twin->child->parent = twin;
        }
    }
    return result;
}

CUresult graph_copy(CUgraph from, bool memory, CUgraph *copy) {
    if (!memory && graph_has_memory(from)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUgraph made = graph_make();
    CUresult result = made == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    for (size_t i = 0; result == CUDA_SUCCESS && i < from->count; i++) {
        result = copy_node(made, from->nodes[i], memory);
    }
    for (size_t i = 0; result == CUDA_SUCCESS && i < from->count; i++) {
        result = copy_edges(from, made, i) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        *copy = made;
    } else if (made != NULL) {
        graph_drop(made);
    }
    return result;
}

CUresult graph_add_alloc(CUgraph graph, const CUgraphNode *before, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params,
                         CUgraphNode *added) {
    const CUmemLocation *location = &params->poolProps.location;
    CUdevice device;
    if (params->bytesize == 0 || params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || !location_device(location, &device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct graph_memory *memory = graph_memory_make(device, params->bytesize);
    if (memory == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, before, count, added);
    if (result != CUDA_SUCCESS) {
        graph_memory_release(memory);
        return result;
    }
    params->dptr = memory->region->start;
    (*added)->memory = memory;
    (*added)->alloc = *params;
    (*added)->alloc.accessDescs = NULL; /* the caller's memory, not ours to keep */
    (*added)->alloc.accessDescCount = 0;
    return CUDA_SUCCESS;
}

CUresult graph_add_free(CUgraph graph, const CUgraphNode *before, size_t count, CUdeviceptr pointer, CUgraphNode *added) {
    if (graph_memory_at(pointer) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, before, count, added);
    if (result == CUDA_SUCCESS) {
        (*added)->freed = pointer;
    }
    return result;
}

CUresult graph_add_child(CUgraph graph, const CUgraphNode *before, size_t count, CUgraph child, bool move, CUgraphNode *added) {
    if (!object_is(child, OBJECT_GRAPH) || child == graph || (move && (child->parent != NULL || child->execs > 0))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraph owned = child;
    CUresult result = move ? CUDA_SUCCESS : graph_copy(child, false, &owned);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = graph_add(graph, CU_GRAPH_NODE_TYPE_GRAPH, before, count, added);
    if (result == CUDA_SUCCESS) {
        (*added)->child = owned;
        owned->parent = *added;
    } else if (!move) {
        graph_drop(owned);
    }
    return result;
}
