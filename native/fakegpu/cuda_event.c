/* Events: the time at which a stream's work so far is done. */
#include <stdlib.h>

#include "cuda_graph.h"
#include "cuda_stream.h"

#define NANOSECONDS_PER_MILLISECOND 1e6

ENTRY(cuEventCreate, (CUevent * created, unsigned int flags)) {
    ENTER();
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const unsigned int known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (created == NULL || (flags & ~known) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    struct stream_set *set = stream_set_of(context);
    CUevent event = set == NULL ? NULL : object_make(OBJECT_EVENT, sizeof *event);
    if (event != NULL) {
        event->context = context;
        event->flags = flags;
        event->next = set->events;
        event->link = &set->events;
        if (event->next != NULL) {
            event->next->link = &event->next;
        }
        set->events = event;
        *created = event;
    }
    driver_unlock();
    return event == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void event_drop(CUevent event) {
    *event->link = event->next;
    if (event->next != NULL) {
        event->next->link = event->link;
    }
    free(event->frontier.nodes);
    object_recycle(event);
}

static CUresult destroy(CUevent event) {
    driver_lock();
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (object_is(event, OBJECT_EVENT)) {
        event_drop(event);
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

ENTRY(cuEventDestroy, (CUevent event)) {
    ENTER();
    return destroy(event);
}

ENTRY(cuEventDestroy_v2, (CUevent event)) {
    ENTER();
    return destroy(event);
}

static CUresult record(CUevent event, CUstream handle, bool per_thread) {
    CUstream stream;
    CUresult result = stream_lock(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(event, OBJECT_EVENT) || event->context != stream->context) {
        result = CUDA_ERROR_INVALID_HANDLE;
    } else if (stream->capture != NULL) {
        result = capture_record_event(stream, event);
    } else {
        result = capture_implicit(stream);
        if (result == CUDA_SUCCESS) {
            event->when = stream_ready(stream);
            event->recorded = true;
            event->stream = stream;
            event->stream_id = stream->id;
            event->capture_id = 0;
        }
    }
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuEventRecord, (CUevent event, CUstream stream), record(event, stream, per_thread))
STREAM_ENTRY(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags),
             flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(event, stream, per_thread))

/* (locked) Whether the event can be asked for its time. */
static CUresult check(CUevent event) {
    if (!object_is(event, OBJECT_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (fault_lost(device_info(event->context->device)->uuid)) {
        return CUDA_ERROR_UNKNOWN;
    }
    return event->capture_id == 0 ? CUDA_SUCCESS : CUDA_ERROR_CAPTURED_EVENT;
}

/* To ask for an event can end a capture of any thread, unless that or the asker said "relaxed". */
ENTRY(cuEventQuery, (CUevent event)) {
    ENTER();
    CUresult unsafe = capture_unsafe();
    if (unsafe != CUDA_SUCCESS) {
        return unsafe;
    }
    driver_lock();
    CUresult result = check(event);
    if (result == CUDA_SUCCESS && event->recorded && event->when > store_now()) {
        result = CUDA_ERROR_NOT_READY;
    }
    driver_unlock();
    return result;
}

ENTRY(cuEventSynchronize, (CUevent event)) {
    ENTER();
    driver_lock();
    CUresult result = check(event);
    if (result != CUDA_SUCCESS || !event->recorded) {
        driver_unlock();
        return result;
    }
    uint64_t when = event->when, stream_id = event->stream_id;
    CUstream stream = event->stream;
    driver_unlock();
    store_sleep_until(when);
    driver_lock();
    /* Pools may reuse what the stream freed, if the event was the last on it. */
    if (object_is(stream, OBJECT_STREAM) && stream->id == stream_id && stream_end(stream) <= when) {
        pools_synchronized(stream->context, stream);
    }
    driver_unlock();
    return CUDA_SUCCESS;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end) {
    if (milliseconds == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver_lock();
    CUresult result = check(start);
    if (result == CUDA_SUCCESS) {
        result = check(end);
    }
    if (result == CUDA_SUCCESS) {
        uint64_t now = store_now();
        if (!start->recorded || !end->recorded || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
            result = CUDA_ERROR_INVALID_HANDLE;
        } else if (start->when > now || end->when > now) {
            result = CUDA_ERROR_NOT_READY;
        } else {
            *milliseconds = (float)(((double)end->when - (double)start->when) / NANOSECONDS_PER_MILLISECOND);
        }
    }
    driver_unlock();
    return result;
}

ENTRY(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end)) {
    ENTER();
    return elapsed(milliseconds, start, end);
}

ENTRY(cuEventElapsedTime_v2, (float *milliseconds, CUevent start, CUevent end)) {
    ENTER();
    return elapsed(milliseconds, start, end);
}
