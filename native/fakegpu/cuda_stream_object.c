/* See cuda_stream_object.h. */
#include "cuda_stream_object.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static struct object *made;
static struct object *reusable[OBJECT_KINDS];

void *object_make(enum object_kind kind, size_t size) {
    struct object *object = reusable[kind];
    if (object != NULL) {
        reusable[kind] = object->next_free;
        struct object *next_made = object->next_made;
        memset(object, 0, size);
        object->next_made = next_made;
    } else {
        object = calloc(1, size);
        if (object == NULL) {
            return NULL;
        }
        object->next_made = made;
        made = object;
    }
    object->kind = kind;
    object->made_as = kind;
    return object;
}

void object_end(void *object) {
    ((struct object *)object)->kind = OBJECT_NONE;
}

void object_recycle(void *object) {
    struct object *old = object;
    old->kind = OBJECT_NONE;
    old->next_free = reusable[old->made_as];
    reusable[old->made_as] = old;
}

bool object_is(const void *handle, enum object_kind kind) {
    /* The smallest numbers are the driver's names for default streams, and a wild guess of a caller. */
    if ((uintptr_t)handle < 4096 || (uintptr_t)handle % _Alignof(struct object) != 0) {
        return false;
    }
    return ((const struct object *)handle)->kind == kind;
}
