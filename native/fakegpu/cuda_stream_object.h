/* What stands behind the handles of streams, events, modules, graphs and their parts.
 *
 * Objects are recycled, never freed: a handle that was destroyed is then told from a living one without touching freed memory, as
 * the real driver mostly does. All of it under driver_lock().
 */
#ifndef FAKEGPU_CUDA_STREAM_OBJECT_H
#define FAKEGPU_CUDA_STREAM_OBJECT_H

#include <stdbool.h>
#include <stddef.h>

enum object_kind {
    OBJECT_NONE,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_FUNCTION,
    OBJECT_LIBRARY,
    OBJECT_KERNEL,
    OBJECT_GRAPH,
    OBJECT_NODE,
    OBJECT_EXEC,
    OBJECT_GREEN,
    OBJECT_RESOURCES,
    OBJECT_KINDS,
};

/* First member of each. */
struct object {
    enum object_kind kind;      /* OBJECT_NONE: the handle is no longer valid */
    enum object_kind made_as;
    struct object *next_made; /* all of the process */
    struct object *next_free; /* of the same kind */
};

/* Zeroed but for its head; NULL if memory is short. Objects of one kind have one size. */
void *object_make(enum object_kind kind, size_t size);
/* The handle is not valid any more / and the memory may serve another one. */
void object_end(void *object);
void object_recycle(void *object);
bool object_is(const void *handle, enum object_kind kind);

#endif
