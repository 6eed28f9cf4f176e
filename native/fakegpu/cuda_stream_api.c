/* The entry points of streams: made, asked, waited for, given host functions. */
#include "cuda_graph.h"
#include "cuda_stream.h"

#define GREATEST_PRIORITY (-5)

static CUresult create(CUstream *stream, unsigned int flags, int priority) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    priority = priority > 0 ? 0 : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
    return stream_create(stream, context, NULL, flags, priority);
}

ENTRY(cuStreamCreate, (CUstream * stream, unsigned int flags)) {
    ENTER();
    return create(stream, flags, 0);
}

ENTRY(cuStreamCreateWithPriority, (CUstream * stream, unsigned int flags, int priority)) {
    ENTER();
    return create(stream, flags, priority);
}

ENTRY(cuCtxGetStreamPriorityRange, (int *least, int *greatest)) {
    ENTER();
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (least != NULL) {
        *least = 0;
    }
    if (greatest != NULL) {
        *greatest = GREATEST_PRIORITY;
    }
    return CUDA_SUCCESS;
}

static CUresult destroy(CUstream stream) {
    driver_lock();
    if (!object_is(stream, OBJECT_STREAM) || stream->legacy || stream->thread != 0) {
        driver_unlock();
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct stream_set *set = stream_set_of(stream->context);
    for (CUstream *link = &set->streams; *link != NULL; link = &(*link)->next) {
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    }
    set->made_living--;
    if (stream->tail > set->gone_tail) {
        set->gone_tail = stream->tail; /* its work goes on: the context still waits for it */
    }
    capture_stream_gone(stream);
    stream_callbacks_end(stream);
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuStreamDestroy, (CUstream stream)) {
    ENTER();
    return destroy(stream);
}

ENTRY(cuStreamDestroy_v2, (CUstream stream)) {
    ENTER();
    return destroy(stream);
}

static CUresult query(CUstream handle, bool per_thread) {
    CUstream stream;
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = capture_unsupported(stream);
    bool all_called;
    stream_callbacks_asked(stream, &all_called);
    if (result == CUDA_SUCCESS && (!all_called || stream_end(stream) > store_now())) {
        result = CUDA_ERROR_NOT_READY;
    }
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuStreamQuery, (CUstream stream), query(stream, per_thread))
STREAM_ENTRY(cuStreamSynchronize, (CUstream stream), stream_wait(stream, per_thread))

static CUresult wait_event(CUstream handle, bool per_thread, CUevent event) {
    CUstream stream;
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(event, OBJECT_EVENT)) {
        result = CUDA_ERROR_INVALID_HANDLE;
    } else if (stream->capture != NULL || event->capture_id != 0) {
        result = capture_wait_event(stream, event);
    } else if (event->recorded && event->when > stream->tail) {
        stream->tail = event->when;
    }
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
             flags > 1 ? CUDA_ERROR_INVALID_VALUE : wait_event(stream, per_thread, event))

/* What a stream says of itself: `which` of its values goes to where the caller wants it. */
enum stream_value { STREAM_PRIORITY, STREAM_FLAGS, STREAM_ID, STREAM_CONTEXT, STREAM_DEVICE };

static CUresult get(CUstream handle, bool per_thread, enum stream_value which, void *value) {
    CUstream stream;
    if (value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    switch (which) {
    case STREAM_PRIORITY:
        *(int *)value = stream->priority;
        break;
    case STREAM_FLAGS:
        *(unsigned int *)value = stream->flags;
        break;
    case STREAM_ID:
        *(unsigned long long *)value = stream->id;
        break;
    case STREAM_CONTEXT:
        *(CUcontext *)value = stream->context;
        break;
    case STREAM_DEVICE:
        *(CUdevice *)value = stream->context->device;
        break;
    }
    driver_unlock();
    return CUDA_SUCCESS;
}

STREAM_ENTRY(cuStreamGetPriority, (CUstream stream, int *priority), get(stream, per_thread, STREAM_PRIORITY, priority))
STREAM_ENTRY(cuStreamGetFlags, (CUstream stream, unsigned int *flags), get(stream, per_thread, STREAM_FLAGS, flags))
STREAM_ENTRY(cuStreamGetId, (CUstream stream, unsigned long long *id), get(stream, per_thread, STREAM_ID, id))
STREAM_ENTRY(cuStreamGetCtx, (CUstream stream, CUcontext *context), get(stream, per_thread, STREAM_CONTEXT, context))
STREAM_ENTRY(cuStreamGetDevice, (CUstream stream, CUdevice *device), get(stream, per_thread, STREAM_DEVICE, device))

static CUresult get_contexts(CUstream handle, bool per_thread, CUcontext *context, CUgreenCtx *green) {
    CUstream stream;
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS) {
        if (context != NULL) {
            *context = stream->context;
        }
        if (green != NULL) {
            *green = stream->green;
        }
        driver_unlock();
    }
    return result;
}

STREAM_ENTRY(cuStreamGetCtx_v2, (CUstream stream, CUcontext *context, CUgreenCtx *green),
             get_contexts(stream, per_thread, context, green))

static CUresult call_host(CUstream handle, bool per_thread, CUhostFn host, CUstreamCallback callback, void *data) {
    CUstream stream;
    if (host == NULL && callback == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->capture == NULL) {
        result = capture_implicit(stream);
        if (result == CUDA_SUCCESS) {
            result = stream_callback_add(stream, host, callback, handle, data);
        }
    } else if (host != NULL) {
        result = capture_host(stream, host, data);
    } else {
        result = capture_unsupported(stream); /* only cuLaunchHostFunc can be captured */
    }
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data), call_host(stream, per_thread, function, NULL, data))
STREAM_ENTRY(cuStreamAddCallback, (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags),
             flags != 0 ? CUDA_ERROR_INVALID_VALUE : call_host(stream, per_thread, NULL, callback, data))
