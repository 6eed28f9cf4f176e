/* Named things: the test that drives the probe chooses the names. A short list per process, searched from the newest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

static struct thing *things;

struct thing *thing_find(enum thing_kind kind, const char *name) {
    for (struct thing *thing = things; thing != NULL; thing = thing->next) {
        if (thing->kind == kind && strcmp(thing->name, name) == 0) {
            return thing;
        }
    }
    return NULL;
}

struct thing *thing_add(enum thing_kind kind, const char *name, void *object, uint64_t value, size_t size) {
    struct thing *thing = thing_find(kind, name);
    if (thing == NULL) {
        thing = need(calloc(1, sizeof *thing));
        thing->next = things;
        things = thing;
    }
    thing->kind = kind;
    snprintf(thing->name, sizeof thing->name, "%s", name);
    thing->object = object;
    thing->value = value;
    thing->size = size;
    return thing;
}

void thing_forget(struct thing *thing) {
    for (struct thing **link = &things; *link != NULL; link = &(*link)->next) {
        if (*link == thing) {
            *link = thing->next;
            free(thing);
            return;
        }
    }
}

bool stream_named(const char *name, CUstream *stream) {
    *stream = NULL;
    if (name == NULL || strcmp(name, "default") == 0) {
        return true;
    }
    const struct thing *thing = thing_find(THING_STREAM, name);
    if (thing == NULL) {
        return false;
    }
    *stream = thing->object;
    return true;
}
