/* Host memory that the driver knows. All (locked). */
#ifndef FAKEGPU_CUDA_HOST_H
#define FAKEGPU_CUDA_HOST_H

#include "cuda_internal.h"

struct host_memory {
    struct host_memory *next;
    char *start;
    size_t size;
    unsigned int flags;
    bool registered; /* the program's own memory */
    CUcontext context;
};

/* The piece that contains the address, or NULL. */
const struct host_memory *host_find(const void *address);
/* A context ends: what was allocated in it is freed. */
void host_context_gone(CUcontext context);

#endif
