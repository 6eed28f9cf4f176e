/* Capturing: a stream that captures adds nodes to a graph instead of work to the card. Events carry a capture over to other streams
 * and back. What cannot be captured spoils the capture: it then ends with an error, as with the real driver. */
#include <stdlib.h>

#include "cuda_graph.h"

static struct capture *captures;
static uint64_t ids;
static _Thread_local int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static void join(struct capture *capture, CUstream stream) {
    stream->capture = capture;
    stream->next_member = capture->members;
    capture->members = stream;
}

struct capture *capture_begin(CUstream stream, CUgraph graph, int mode) {
    struct capture *capture = calloc(1, sizeof *capture);
    CUgraph target = graph != NULL || capture == NULL ? graph : graph_make();
    if (target == NULL) {
        free(capture);
        return NULL;
    }
    *capture = (struct capture){
        .next = captures,
        .id = ++ids,
        .graph = target,
        .own_graph = graph == NULL,
        .status = CU_STREAM_CAPTURE_STATUS_ACTIVE,
        .mode = mode,
        .thread = thread_number(),
        .origin = stream,
    };
    captures = capture;
    stream->frontier.count = 0;
    join(capture, stream);
    return capture;
}

static void leave(CUstream stream) {
    for (CUstream *link = &stream->capture->members; *link != NULL; link = &(*link)->next_member) {
        if (*link == stream) {
            *link = stream->next_member;
            break;
        }
    }
    stream->capture = NULL;
    stream->next_member = NULL;
    stream->frontier.count = 0;
}

void capture_end(struct capture *capture) {
    while (capture->members != NULL) {
        leave(capture->members);
    }
    for (struct capture **link = &captures; *link != NULL; link = &(*link)->next) {
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    }
    free(capture);
}

static CUresult spoil(struct capture *capture, CUresult why) {
    capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return why;
}

void capture_stream_gone(CUstream stream) {
    struct capture *capture = stream->capture;
    if (capture != NULL && capture->origin == stream) {
        if (capture->own_graph) {
            graph_drop(capture->graph);
        }
        capture_end(capture);
    } else if (capture != NULL) {
        leave(stream);
        spoil(capture, CUDA_SUCCESS);
    }
    free(stream->frontier.nodes);
    stream->frontier = (struct node_set){0};
}

void capture_context_gone(CUcontext context) {
    struct stream_set *set = context->streams;
    for (CUstream stream = set == NULL ? NULL : set->streams; stream != NULL; stream = stream->next) {
        capture_stream_gone(stream);
    }
}

struct capture *capture_awaited(CUstream stream) {
    struct stream_set *set = stream->legacy ? stream_set_of(stream->context) : NULL;
    for (CUstream other = set == NULL ? NULL : set->streams; other != NULL; other = other->next) {
        if (other->capture != NULL && (other->flags & CU_STREAM_NON_BLOCKING) == 0) {
            return other->capture;
        }
    }
    return NULL;
}

CUresult capture_implicit(CUstream stream) {
    struct capture *capture = capture_awaited(stream);
    return capture == NULL ? CUDA_SUCCESS : spoil(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

CUresult capture_unsupported(CUstream stream) {
    return stream->capture == NULL ? capture_implicit(stream) : spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

int capture_exchange_mode(int mode) {
    int old = thread_mode;
    thread_mode = mode;
    return old;
}

CUresult capture_unsafe(void) {
    CUresult result = CUDA_SUCCESS;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return result;
    }
    driver_lock();
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        bool own = capture->thread == thread_number() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool anyone = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (own || anyone) {
            result = spoil(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    driver_unlock();
    return result;
}

/* The stream goes on after the node; without memory to note that, the capture is lost. */
static CUresult advance(CUstream stream, CUgraphNode node) {
    stream->frontier.count = 0;
    return nodes_add(&stream->frontier, node) ? CUDA_SUCCESS : spoil(stream->capture, CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult check_status(CUstream stream) {
    bool active = stream->capture->status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return active ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult capture_add(CUstream stream, int type, CUgraphNode *added) {
    CUresult result = check_status(stream);
    if (result == CUDA_SUCCESS) {
        result = graph_add(stream->capture->graph, type, stream->frontier.nodes, stream->frontier.count, added);
    }
    return result == CUDA_SUCCESS ? advance(stream, *added) : result;
}

CUresult capture_kernel(CUstream stream, const struct launch *launch, CUfunction function) {
    CUgraphNode node;
    CUresult result = capture_add(stream, CU_GRAPH_NODE_TYPE_KERNEL, &node);
    if (result == CUDA_SUCCESS) {
        node->kernel.launch = (CUDA_KERNEL_NODE_PARAMS_v1){
            .func = function,
            .gridDimX = launch->grid[0],
            .gridDimY = launch->grid[1],
            .gridDimZ = launch->grid[2],
            .blockDimX = launch->block[0],
            .blockDimY = launch->block[1],
            .blockDimZ = launch->block[2],
            .sharedMemBytes = launch->shared,
            .kernelParams = launch->parameters,
        };
        node->kernel.ctx = stream->context;
    }
    return result;
}

CUresult capture_host(CUstream stream, CUhostFn host, void *data) {
    CUgraphNode node;
    CUresult result = capture_add(stream, CU_GRAPH_NODE_TYPE_HOST, &node);
    if (result == CUDA_SUCCESS) {
        node->host = (CUDA_HOST_NODE_PARAMS){.fn = host, .userData = data};
    }
    return result;
}

CUresult capture_graph(CUstream stream, CUgraph graph) {
    CUgraphNode node;
    CUresult result = check_status(stream);
    if (result == CUDA_SUCCESS) {
        result = graph_add_child(stream->capture->graph, stream->frontier.nodes, stream->frontier.count, graph, false, &node);
    }
    return result == CUDA_SUCCESS ? advance(stream, node) : result;
}

CUresult capture_record_event(CUstream stream, CUevent event) {
    CUresult result = check_status(stream);
    if (result == CUDA_SUCCESS) {
        event->capture_id = stream->capture->id;
        event->recorded = false;
        result = nodes_set(&event->frontier, stream->frontier.nodes, stream->frontier.count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

static struct capture *capture_by_id(uint64_t id) {
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (capture->id == id) {
            return capture;
        }
    }
    return NULL;
}

CUresult capture_wait_event(CUstream stream, CUevent event) {
    if (event->capture_id == 0) {
        /* An event from outside would make the graph wait for something that is not in it. */
        return event->recorded ? spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_SUCCESS;
    }
    struct capture *capture = capture_by_id(event->capture_id);
    if (capture == NULL) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (stream->legacy) {
        return spoil(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    if (stream->capture == NULL) {
        stream->frontier.count = 0;
        join(capture, stream);
    } else if (stream->capture != capture) {
        spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
        return spoil(capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    CUresult result = check_status(stream);
    for (size_t i = 0; result == CUDA_SUCCESS && i < event->frontier.count; i++) {
        result = nodes_add(&stream->frontier, event->frontier.nodes[i]) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

/* ---- what the memory half captures ---- */

bool capture_active(CUstream handle, bool per_thread) {
    CUstream stream;
    bool active = false;
    if (stream_lock(handle, per_thread, &stream) == CUDA_SUCCESS) {
        active = stream->capture != NULL;
        driver_unlock();
    }
    return active;
}

/* Finds a capturing stream. On success driver_lock() is held. */
static CUresult lock_capturing(CUstream handle, bool per_thread, CUstream *stream) {
    CUresult result = stream_lock(handle, per_thread, stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = (*stream)->capture == NULL ? CUDA_ERROR_ILLEGAL_STATE : check_status(*stream);
    if (result != CUDA_SUCCESS) {
        driver_unlock();
    }
    return result;
}

CUresult capture_alloc(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream handle, bool per_thread) {
    (void)pool; /* graphs have their own memory: of a pool only the card would count, and that is the stream's */
    CUstream stream;
    CUresult result = lock_capturing(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = stream->context->device}},
        .bytesize = size,
    };
    CUgraphNode node;
    result = graph_add_alloc(stream->capture->graph, stream->frontier.nodes, stream->frontier.count, &params, &node);
    if (result == CUDA_SUCCESS) {
        *pointer = params.dptr;
        result = advance(stream, node);
    }
    driver_unlock();
    return result;
}

CUresult capture_free(CUdeviceptr pointer, CUstream handle, bool per_thread) {
    CUstream stream;
    CUresult result = lock_capturing(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUgraphNode node;
    result = graph_add_free(stream->capture->graph, stream->frontier.nodes, stream->frontier.count, pointer, &node);
    if (result == CUDA_SUCCESS) {
        result = advance(stream, node);
    }
    driver_unlock();
    return result;
}

CUresult capture_work(int node_type, CUstream handle, bool per_thread) {
    CUstream stream;
    CUresult result = lock_capturing(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS) {
        CUgraphNode node;
        result = capture_add(stream, node_type, &node);
        driver_unlock();
    }
    return result;
}
