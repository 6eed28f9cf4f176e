/* The entry points of stream capture. */
#include "cuda_graph.h"

#define SET_DEPENDENCIES 1u /* cuStreamUpdateCaptureDependencies: instead of adding to them */

static bool known_mode(int mode) {
    return mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
}

static CUresult begin(CUstream handle, bool per_thread, CUgraph graph, const CUgraphNode *before, size_t count, int mode) {
    CUstream stream;
    if (!known_mode(mode) || (graph == NULL && count > 0) || (count > 0 && before == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->legacy) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream->capture != NULL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (graph != NULL && !object_is(graph, OBJECT_GRAPH)) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (capture_begin(stream, graph, mode) == NULL || !nodes_set(&stream->frontier, before, count)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuStreamBeginCapture, (CUstream stream), begin(stream, per_thread, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL))
STREAM_ENTRY(cuStreamBeginCapture_v2, (CUstream stream, int mode), begin(stream, per_thread, NULL, NULL, 0, mode))
STREAM_ENTRY(cuStreamBeginCaptureToGraph,
             (CUstream stream, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *edges, size_t count, int mode),
             ((void)edges, graph == NULL ? CUDA_ERROR_INVALID_VALUE : begin(stream, per_thread, graph, before, count, mode)))

static void reach(CUgraphNode node) {
    if (!node->reached) {
        node->reached = true;
        for (size_t i = 0; i < node->before.count; i++) {
            reach(node->before.nodes[i]);
        }
    }
}

/* (locked) Whether all that was captured on other streams leads back to the stream that began. */
static bool joined(const struct capture *capture) {
    for (size_t i = 0; i < capture->graph->count; i++) {
        capture->graph->nodes[i]->reached = false;
    }
    for (size_t i = 0; i < capture->origin->frontier.count; i++) {
        reach(capture->origin->frontier.nodes[i]);
    }
    for (CUstream stream = capture->members; stream != NULL; stream = stream->next_member) {
        for (size_t i = 0; i < stream->frontier.count; i++) {
            if (!stream->frontier.nodes[i]->reached) {
                return false;
            }
        }
    }
    return true;
}

static CUresult end(CUstream handle, bool per_thread, CUgraph *graph) {
    CUstream stream;
    if (graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct capture *capture = stream->capture;
    *graph = NULL;
    if (capture == NULL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (capture->origin != stream) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    } else if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_number()) {
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    } else {
        if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
            result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        } else if (!joined(capture)) {
            result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        }
        if (result == CUDA_SUCCESS) {
            *graph = capture->graph;
        } else if (capture->own_graph) {
            graph_drop(capture->graph);
        }
        capture_end(capture);
    }
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuStreamEndCapture, (CUstream stream, CUgraph *graph), end(stream, per_thread, graph))

/* What the versions of cuStreamGetCaptureInfo tell: each a part of it. */
struct capture_info {
    int *status;
    uint64_t *id;
    CUgraph *graph;
    const CUgraphNode **before;
    const CUgraphEdgeData **edges;
    size_t *count;
};

static CUresult info(CUstream handle, bool per_thread, struct capture_info out) {
    CUstream stream;
    if (out.status == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct capture *capture = stream->capture;
    if (capture == NULL && capture_awaited(stream) != NULL) {
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* asking spoils nothing */
    }
    if (result == CUDA_SUCCESS) {
        *out.status = capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : capture->status;
    }
    if (result == CUDA_SUCCESS && capture != NULL && capture->status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        if (out.id != NULL) {
            *out.id = capture->id;
        }
        if (out.graph != NULL) {
            *out.graph = capture->graph;
        }
        if (out.before != NULL) {
            *out.before = stream->frontier.nodes;
        }
        if (out.edges != NULL) {
            *out.edges = NULL; /* plain dependencies */
        }
        if (out.count != NULL) {
            *out.count = stream->frontier.count;
        }
    }
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuStreamIsCapturing, (CUstream stream, int *status), info(stream, per_thread, (struct capture_info){.status = status}))
STREAM_ENTRY(cuStreamGetCaptureInfo, (CUstream stream, int *status, uint64_t *id),
             info(stream, per_thread, (struct capture_info){.status = status, .id = id}))
STREAM_ENTRY(cuStreamGetCaptureInfo_v2,
             (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **before, size_t *count),
             info(stream, per_thread, (struct capture_info){status, id, graph, before, NULL, count}))
STREAM_ENTRY(cuStreamGetCaptureInfo_v3,
             (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **before, const CUgraphEdgeData **edges,
              size_t *count),
             info(stream, per_thread, (struct capture_info){status, id, graph, before, edges, count}))

static CUresult update_dependencies(CUstream handle, bool per_thread, CUgraphNode *nodes, size_t count, unsigned int flags) {
    CUstream stream;
    if (flags > SET_DEPENDENCIES || (count > 0 && nodes == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->capture == NULL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    }
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        if (!object_is(nodes[i], OBJECT_NODE) || nodes[i]->graph != stream->capture->graph) {
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (result == CUDA_SUCCESS && flags == SET_DEPENDENCIES) {
        stream->frontier.count = 0;
    }
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        result = nodes_add(&stream->frontier, nodes[i]) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuStreamUpdateCaptureDependencies, (CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags),
             update_dependencies(stream, per_thread, nodes, count, flags))
STREAM_ENTRY(cuStreamUpdateCaptureDependencies_v2,
             (CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, unsigned int flags),
             ((void)edges, update_dependencies(stream, per_thread, nodes, count, flags)))

ENTRY(cuThreadExchangeStreamCaptureMode, (int *mode)) {
    ENTER();
    if (mode == NULL || !known_mode(*mode)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *mode = capture_exchange_mode(*mode);
    return CUDA_SUCCESS;
}
