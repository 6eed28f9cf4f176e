/* Host functions on streams: like the real driver, they run on a thread that is not the caller's, in the order of their stream. A
 * stream that has some gets a thread for as long as there are any left. */
#include <pthread.h>
#include <stdlib.h>

#include "cuda_stream.h"

struct callback {
    struct callback *next;
    uint64_t due;
    CUhostFn host;
    CUstreamCallback callback;
    CUstream handle; /* as the caller wrote it */
    void *data;
};

/* Taken after driver_lock() where both are held. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t some_done = PTHREAD_COND_INITIALIZER;
static uint64_t total_done;

/* The last host function of a destroyed stream has run. */
static void leave(CUstream stream) {
    driver_lock();
    struct stream_set *set = stream->context == NULL ? NULL : stream->context->streams;
    for (CUstream *link = set == NULL ? NULL : &set->leaving; link != NULL && *link != NULL; link = &(*link)->next) {
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    }
    object_recycle(stream);
    driver_unlock();
}

static void *run_callbacks(void *argument) {
    CUstream stream = argument;
    pthread_mutex_lock(&lock);
    while (stream->first_callback != NULL) {
        struct callback *next = stream->first_callback;
        stream->first_callback = next->next;
        pthread_mutex_unlock(&lock);
        store_sleep_until(next->due);
        if (next->host != NULL) {
            next->host(next->data);
        } else {
            next->callback(next->handle, CUDA_SUCCESS, next->data);
        }
        free(next);
        pthread_mutex_lock(&lock);
        stream->callbacks_done++;
        total_done++;
        pthread_cond_broadcast(&some_done);
    }
    stream->last_callback = NULL;
    stream->callbacks_running = false;
    bool doomed = stream->doomed;
    pthread_mutex_unlock(&lock);
    if (doomed) {
        leave(stream);
    }
    return NULL;
}

static bool start(CUstream stream) {
    pthread_t thread;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) {
        return false;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, run_callbacks, stream);
    pthread_attr_destroy(&attributes);
    return failed == 0;
}

CUresult stream_callback_add(CUstream stream, CUhostFn host, CUstreamCallback callback, CUstream handle, void *data) {
    struct callback *added = calloc(1, sizeof *added);
    if (added == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *added = (struct callback){.due = stream_ready(stream), .host = host, .callback = callback, .handle = handle, .data = data};
    stream->tail = added->due;
    pthread_mutex_lock(&lock);
    struct callback *before = stream->last_callback;
    if (stream->first_callback == NULL) {
        stream->first_callback = added;
    } else {
        before->next = added;
    }
    stream->last_callback = added;
    stream->callbacks_asked++;
    CUresult result = CUDA_SUCCESS;
    if (!stream->callbacks_running) {
        stream->callbacks_running = start(stream);
        if (!stream->callbacks_running) {
            /* Without a thread nothing else is waiting: the list was empty. */
            stream->first_callback = stream->last_callback = NULL;
            stream->callbacks_asked--;
            free(added);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void stream_callbacks_wait(CUstream stream, uint64_t count) {
    pthread_mutex_lock(&lock);
    while (stream->callbacks_done < count) {
        pthread_cond_wait(&some_done, &lock);
    }
    pthread_mutex_unlock(&lock);
}

uint64_t stream_callbacks_asked(CUstream stream, bool *all_done) {
    pthread_mutex_lock(&lock);
    uint64_t asked = stream->callbacks_asked;
    if (all_done != NULL) {
        *all_done = stream->callbacks_done == asked;
    }
    pthread_mutex_unlock(&lock);
    return asked;
}

void stream_callbacks_end(CUstream stream) {
    object_end(stream);
    pthread_mutex_lock(&lock);
    stream->doomed = true;
    bool running = stream->callbacks_running;
    pthread_mutex_unlock(&lock);
    if (running) {
        struct stream_set *set = stream->context->streams;
        stream->next = set->leaving;
        set->leaving = stream;
    } else {
        object_recycle(stream);
    }
}

uint64_t stream_callbacks_total(void) {
    pthread_mutex_lock(&lock);
    uint64_t total = total_done;
    pthread_mutex_unlock(&lock);
    return total;
}

void stream_callbacks_wait_beyond(uint64_t total) {
    pthread_mutex_lock(&lock);
    while (total_done == total) {
        pthread_cond_wait(&some_done, &lock);
    }
    pthread_mutex_unlock(&lock);
}
