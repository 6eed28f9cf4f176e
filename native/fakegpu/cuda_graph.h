/* Graphs, their memory, and capturing streams: what cuda_graph*.c and cuda_capture*.c share, and what streams ask of them.
 *
 * Memory of a graph is as a real driver has it: an allocation node has its addresses from the start; physical memory (whole 32 MiB
 * chunks, in which the allocations of a graph are packed) comes at the first launch, is kept for further launches and for other graphs,
 * and goes back only by cuDeviceGraphMemTrim.
 *
 * All functions: (locked), unless they say otherwise.
 */
#ifndef FAKEGPU_CUDA_GRAPH_H
#define FAKEGPU_CUDA_GRAPH_H

#include "cuda_kernel.h"
#include "cuda_stream.h"

struct graph_chunk;

/* What one allocation node stands for. Its nodes (in the graph and in the instantiated copy) and the allocation itself hold it. */
struct graph_memory {
    struct region *region;
    size_t size;
    CUdevice device;
    unsigned int references;
    bool live; /* allocated by a launch, not freed yet */
    struct graph_memory *next_living;
    size_t chunk_count; /* 0 if it is not live */
    struct graph_chunk *chunks[];
};

struct CUgraph_st {
    struct object object;
    uint64_t id;
    CUgraphNode *nodes; /* in the order in which they were added, which is the order in which they run */
    size_t count, room;
    CUgraphNode parent; /* the child graph node that owns it */
    unsigned int execs; /* living instantiations */
};

struct CUgraphNode_st {
    struct object object;
    CUgraph graph;
    int type;
    bool reached; /* mark while walking */
    struct node_set before;
    CUgraphNode copied_from;
    /* by type */
    CUDA_KERNEL_NODE_PARAMS_v2 kernel;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    struct graph_memory *memory;
    CUdeviceptr freed;
    CUgraph child;
    CUDA_HOST_NODE_PARAMS host;
    CUDA_MEMSET_NODE_PARAMS memset;
};

/* cuda_graph.c */
bool nodes_add(struct node_set *set, CUgraphNode node);
bool nodes_set(struct node_set *set, const CUgraphNode *nodes, size_t count);
CUgraph graph_make(void);
void graph_drop(CUgraph graph);
bool graph_has_memory(CUgraph graph);
/* `memory`: whether allocations may be shared by the copy, which only an instantiation may. */
CUresult graph_copy(CUgraph from, bool memory, CUgraph *copy);
CUresult graph_add(CUgraph graph, int type, const CUgraphNode *before, size_t count, CUgraphNode *added);
CUresult graph_add_alloc(CUgraph graph, const CUgraphNode *before, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params, CUgraphNode *added);
CUresult graph_add_free(CUgraph graph, const CUgraphNode *before, size_t count, CUdeviceptr pointer, CUgraphNode *added);
CUresult graph_add_child(CUgraph graph, const CUgraphNode *before, size_t count, CUgraph child, bool move, CUgraphNode *added);

/* cuda_graph_memory.c */
struct graph_memory *graph_memory_make(CUdevice device, size_t size);
void graph_memory_release(struct graph_memory *memory);
struct graph_memory *graph_memory_at(CUdeviceptr pointer);
/* Which launch of which executable graph, and where. */
struct graph_launch {
    CUstream stream;
    uint64_t number;
    const void *exec;
};

/* Takes physical memory for a launch; frees it for work after `when`. */
CUresult graph_memory_take(struct graph_memory *memory, const struct graph_launch *launch);
void graph_memory_let_go(struct graph_memory *memory, CUstream stream, uint64_t when);
/* Until then the launch that allocated it runs: no other allocation may have it before, even if it is freed. */
void graph_memory_busy(struct graph_memory *memory, CUstream stream, uint64_t until);
/* Gives back what that launch, which failed, was the first to take. */
void graph_memory_undo(uint64_t launch);
void graphs_context_gone(CUcontext context);

/* cuda_capture.c: what happens on a stream that captures. */
struct capture {
    struct capture *next;
    uint64_t id;
    CUgraph graph;
    bool own_graph; /* false: the caller's, by cuStreamBeginCaptureToGraph */
    int status;
    int mode;
    uint64_t thread;
    CUstream origin;
    CUstream members; /* streams that take part, the origin too */
};

/* A call that no capturing stream can take: refused, and the capture is spoilt. CUDA_SUCCESS if the stream does not capture. */
CUresult capture_unsupported(CUstream stream);
/* The capture of a stream that this one, the legacy stream, would have to wait for; NULL if there is none. Work there spoils it. */
struct capture *capture_awaited(CUstream stream);
CUresult capture_implicit(CUstream stream);
CUresult capture_add(CUstream stream, int type, CUgraphNode *added);
CUresult capture_kernel(CUstream stream, const struct launch *launch, CUfunction function);
CUresult capture_host(CUstream stream, CUhostFn host, void *data);
CUresult capture_graph(CUstream stream, CUgraph graph);
CUresult capture_record_event(CUstream stream, CUevent event);
CUresult capture_wait_event(CUstream stream, CUevent event);
struct capture *capture_begin(CUstream stream, CUgraph graph, int mode);
/* Takes the capture apart; its graph stays. */
void capture_end(struct capture *capture);
void capture_stream_gone(CUstream stream);
void capture_context_gone(CUcontext context);
/* How this thread's unsafe calls are treated: returns the old mode. */
int capture_exchange_mode(int mode);

#endif
