/* Streams: where they lie on the card's timeline, how they wait for one another, and the functions that the memory half calls. */
#include "cuda_stream.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "cuda_context.h"
#include "cuda_graph.h"
#include "cuda_module.h"

#define STREAM_BYTES (560ull << 10)

static uint64_t ids = 1;

uint64_t thread_number(void) {
    static atomic_uint_fast64_t threads = 1;
    static _Thread_local uint64_t own;
    if (own == 0) {
        own = atomic_fetch_add(&threads, 1);
    }
    return own;
}

struct stream_set *stream_set_of(CUcontext context) {
    if (context->streams == NULL) {
        context->streams = calloc(1, sizeof(struct stream_set));
    }
    return context->streams;
}

CUstream stream_make(CUcontext context, unsigned int flags, int priority) {
    struct stream_set *set = stream_set_of(context);
    CUstream stream = set == NULL ? NULL : object_make(OBJECT_STREAM, sizeof *stream);
    if (stream == NULL) {
        return NULL;
    }
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = ids++;
    stream->next = set->streams;
    set->streams = stream;
    return stream;
}

/* Measured: 0, 2, 4, 16, 70 and 280 MiB for 1, 2, 8, 32, 128 and 512 living streams. */
static uint64_t cost_of_streams(uint64_t count) {
    uint64_t bytes = count * STREAM_BYTES / FAKE_PAGE * FAKE_PAGE;
    return count >= 2 && bytes < FAKE_PAGE ? FAKE_PAGE : bytes;
}

/* (locked) Destroying streams returns nothing, but those made later have what it left. */
static CUresult pay_for_another(CUcontext context) {
    struct stream_set *set = stream_set_of(context);
    if (set == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (set->made_living < set->made_most) {
        return CUDA_SUCCESS;
    }
    uint64_t more = cost_of_streams(set->made_most + 1) - cost_of_streams(set->made_most);
    CUresult result = more == 0 ? CUDA_SUCCESS : context_overhead(context, more);
    set->made_most += result == CUDA_SUCCESS;
    return result;
}

CUresult stream_create(CUstream *created, CUcontext context, CUgreenCtx green, unsigned int flags, int priority) {
    if (created == NULL || (flags & ~(unsigned int)CU_STREAM_NON_BLOCKING) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    CUresult result = pay_for_another(context);
    if (result == CUDA_SUCCESS) {
        CUstream stream = stream_make(context, flags, priority);
        if (stream == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            stream->green = green;
            stream_set_of(context)->made_living++;
            *created = stream;
        }
    }
    driver_unlock();
    return result;
}

static CUstream legacy_stream(CUcontext context) {
    struct stream_set *set = stream_set_of(context);
    if (set != NULL && set->legacy == NULL) {
        set->legacy = stream_make(context, 0, 0);
        if (set->legacy != NULL) {
            set->legacy->legacy = true;
        }
    }
    return set == NULL ? NULL : set->legacy;
}

static CUstream thread_stream(CUcontext context) {
    struct stream_set *set = stream_set_of(context);
    uint64_t thread = thread_number();
    for (CUstream stream = set == NULL ? NULL : set->streams; stream != NULL; stream = stream->next) {
        if (stream->thread == thread) {
            return stream;
        }
    }
    CUstream stream = stream_make(context, 0, 0);
    if (stream != NULL) {
        stream->thread = thread;
    }
    return stream;
}

/* (locked) The context of a default stream; context_current() would lock again. */
static CUresult current_of_thread(CUcontext *current) {
    *current = context_top();
    if (*current == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if ((*current)->alive && (*current)->inside != NULL) {
        *current = (*current)->inside;
    }
    if (!(*current)->alive) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return fault_lost(device_info((*current)->device)->uuid) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

/* (locked) */
static CUresult find(CUstream handle, bool per_thread, CUstream *found) {
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        CUcontext current;
        CUresult result = current_of_thread(&current);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        bool own = handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread);
        *found = own ? thread_stream(current) : legacy_stream(current);
        return *found == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (!object_is(handle, OBJECT_STREAM)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *found = handle;
    return fault_lost(device_info(handle->context->device)->uuid) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult stream_lock(CUstream handle, bool per_thread, CUstream *found) {
    driver_lock();
    CUresult result = find(handle, per_thread, found);
    if (result != CUDA_SUCCESS) {
        driver_unlock();
    }
    return result;
}

/* The legacy default stream waits for all blocking streams of its context, and they for it. */
static uint64_t blocking_end(CUcontext context) {
    struct stream_set *set = stream_set_of(context);
    uint64_t end = 0;
    for (CUstream stream = set == NULL ? NULL : set->streams; stream != NULL; stream = stream->next) {
        if ((stream->flags & CU_STREAM_NON_BLOCKING) == 0 && stream->tail > end) {
            end = stream->tail;
        }
    }
    return end;
}

uint64_t stream_end(CUstream stream) {
    return stream->legacy ? blocking_end(stream->context) : stream->tail;
}

uint64_t stream_ready(CUstream stream) {
    uint64_t ready = stream_end(stream), now = store_now();
    CUstream legacy = stream_set_of(stream->context)->legacy;
    if (legacy != NULL && (stream->flags & CU_STREAM_NON_BLOCKING) == 0 && legacy->tail > ready) {
        ready = legacy->tail;
    }
    return ready > now ? ready : now;
}

uint64_t stream_run(CUstream stream, uint64_t cost) {
    stream->tail = store_run(stream->context->card, stream_ready(stream), cost);
    return stream->tail;
}

CUresult stream_resolve(CUstream handle, bool per_thread, CUcontext *context, const void **key) {
    CUstream stream;
    CUresult result = find(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS) {
        *context = stream->context;
        *key = stream;
    }
    return result;
}

CUresult stream_add_work(CUstream handle, bool per_thread, uint64_t cost) {
    CUstream stream;
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS) {
        result = capture_unsupported(stream);
        if (result == CUDA_SUCCESS) {
            stream_run(stream, cost);
        }
        driver_unlock();
    }
    return result;
}

CUresult stream_wait(CUstream handle, bool per_thread) {
    CUstream stream;
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = capture_unsupported(stream);
    uint64_t end = stream_end(stream), asked = stream_callbacks_asked(stream, NULL);
    driver_unlock();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    store_sleep_until(end);
    stream_callbacks_wait(stream, asked);
    driver_lock();
    if (object_is(stream, OBJECT_STREAM)) {
        pools_synchronized(stream->context, stream);
    }
    driver_unlock();
    return CUDA_SUCCESS;
}

/* (locked) Whether all host functions of these streams have run. */
static bool all_called(CUstream streams) {
    bool all_done = true;
    for (CUstream stream = streams; all_done && stream != NULL; stream = stream->next) {
        stream_callbacks_asked(stream, &all_done);
    }
    return all_done;
}

CUresult streams_synchronize_context(CUcontext context) {
    driver_lock();
    struct stream_set *set = stream_set_of(context);
    CUresult result = set == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    uint64_t end = set == NULL ? 0 : set->gone_tail;
    for (CUstream stream = set == NULL ? NULL : set->streams; stream != NULL; stream = stream->next) {
        CUresult refused = capture_unsupported(stream);
        result = refused != CUDA_SUCCESS ? refused : result;
        end = stream->tail > end ? stream->tail : end;
    }
    driver_unlock();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    store_sleep_until(end);
    driver_lock();
    for (uint64_t total = stream_callbacks_total(); context->alive && context->streams == set;) {
        if (all_called(set->streams) && all_called(set->leaving)) {
            break;
        }
        driver_unlock();
        stream_callbacks_wait_beyond(total);
        driver_lock();
        total = stream_callbacks_total();
    }
    if (context->alive) {
        pools_synchronized(context, NULL);
    }
    driver_unlock();
    return CUDA_SUCCESS;
}

void streams_context_gone(CUcontext context) {
    struct stream_set *set = context->streams;
    capture_context_gone(context);
    graphs_context_gone(context);
    modules_context_gone(context);
    if (set == NULL) {
        return;
    }
    while (set->events != NULL) {
        event_drop(set->events);
    }
    while (set->streams != NULL) {
        CUstream stream = set->streams;
        set->streams = stream->next;
        stream_callbacks_end(stream);
    }
    for (CUstream stream = set->leaving; stream != NULL; stream = stream->next) {
        stream->context = NULL; /* it leaves alone */
    }
    free(set);
    context->streams = NULL;
}
