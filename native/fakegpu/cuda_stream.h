/* Streams and events of the stand-in: what cuda_stream*.c, cuda_event.c, cuda_kernel*.c, cuda_graph*.c and cuda_capture.c share.
 *
 * The card is one timeline (store_run). Work on a stream is nothing but the time at which it ends: a stream remembers that of its last
 * piece (`tail`), an event the tail at the time it was recorded, and to wait is to sleep until then.
 */
#ifndef FAKEGPU_CUDA_STREAM_H
#define FAKEGPU_CUDA_STREAM_H

#include "cuda_internal.h"
#include "cuda_stream_object.h"

/* An entry point and its twin that takes a NULL stream for the thread's own: `call` sees which by `per_thread`. */
#define STREAM_ENTRY(name, params, call)  \
    ENTRY(name, params) {                 \
        ENTER();                          \
        const bool per_thread = false;    \
        return call;                      \
    }                                     \
    ENTRY(name##_ptsz, params) {          \
        ENTER();                          \
        const bool per_thread = true;     \
        return call;                      \
    }

struct node_set {
    CUgraphNode *nodes;
    size_t count;
};

struct capture;
struct callback;

struct CUstream_st {
    struct object object;
    CUstream next; /* of the context */
    CUcontext context;
    CUgreenCtx green;
    unsigned int flags;
    int priority;
    uint64_t id;
    uint64_t thread; /* whose default stream it is; 0: no thread's */
    bool legacy;
    uint64_t tail; /* when all work so far is done */
    struct capture *capture;
    CUstream next_member;     /* of the capture */
    struct node_set frontier; /* what the next captured node depends on */
    /* host functions, under the lock of cuda_stream_callback.c */
    struct callback *first_callback, *last_callback;
    uint64_t callbacks_asked, callbacks_done;
    bool callbacks_running, doomed;
};

struct CUevent_st {
    struct object object;
    CUevent next, *link; /* of the context */
    CUcontext context;
    unsigned int flags;
    bool recorded;
    uint64_t when;
    CUstream stream;
    uint64_t stream_id;
    uint64_t capture_id; /* recorded while capturing: not an event in time, but a mark in the graph */
    struct node_set frontier;
};

/* context->streams */
struct stream_set {
    CUstream streams;
    CUstream leaving; /* destroyed, but not all of their host functions have run */
    CUstream legacy;
    CUevent events;
    uint64_t gone_tail; /* of streams that were destroyed with work to do */
    uint64_t made_living, made_most; /* streams that the program made: now, and at most so far, which is what is paid for */
};

/* (locked) NULL if memory is short. */
struct stream_set *stream_set_of(CUcontext context);
/* (locked) A stream that costs nothing yet. */
CUstream stream_make(CUcontext context, unsigned int flags, int priority);
/* cuStreamCreate with its price, for the current and for green contexts. */
CUresult stream_create(CUstream *created, CUcontext context, CUgreenCtx green, unsigned int flags, int priority);

/* Finds a stream as the caller wrote it. On success driver_lock() is held, else not. */
CUresult stream_lock(CUstream handle, bool per_thread, CUstream *found);
/* (locked) Earliest start of new work; adds work and returns its end; until when a synchronise waits. */
uint64_t stream_ready(CUstream stream);
uint64_t stream_run(CUstream stream, uint64_t cost);
uint64_t stream_end(CUstream stream);

/* (locked) Runs `host` (or `callback` with the handle) on another thread once the work so far is done. */
CUresult stream_callback_add(CUstream stream, CUhostFn host, CUstreamCallback callback, CUstream handle, void *data);
/* (not locked) Waits until that many host functions of the stream have run. */
void stream_callbacks_wait(CUstream stream, uint64_t count);
/* (locked) Recycles a stream that is in no list any more, or puts it among the leaving until its host functions have run. */
void stream_callbacks_end(CUstream stream);
uint64_t stream_callbacks_asked(CUstream stream, bool *all_done);
/* How many host functions have run in the process; (not locked) waits until there are more than that. */
uint64_t stream_callbacks_total(void);
void stream_callbacks_wait_beyond(uint64_t total);

/* (locked) */
void event_drop(CUevent event);
/* The number of the calling thread, from 1. */
uint64_t thread_number(void);

#endif
