/* What the kinds of device memory tell each other: finding an allocation by any address in it, freeing it, and the end of a context.
 * All (locked).
 */
#ifndef FAKEGPU_CUDA_LINEAR_H
#define FAKEGPU_CUDA_LINEAR_H

#include "cuda_internal.h"

/* One allocation, as a program knows it. */
struct extent {
    struct region *region;
    CUdeviceptr start;
    size_t size;
    CUdevice device;
    CUmemoryPool pool; /* NULL: from no pool */
};

/* The allocation that contains the address. */
bool extent_find(CUdeviceptr address, struct extent *extent);
bool small_find(struct region *page, CUdeviceptr address, struct extent *extent);
bool pool_find(struct region *span, CUdeviceptr address, struct extent *extent);
bool vmm_find(struct region *reserved, CUdeviceptr address, struct extent *extent);

/* Gives back what a region has on its card (or leaves that to its share) and unmakes it. */
void region_release(struct region *region);

/* cuMemFreeAsync of memory from pools on the context's stream with that key; with key NULL cuMemFree: free for all at once.
 * INVALID_VALUE if nothing was allocated there. */
CUresult pool_free(struct region *span, CUdeviceptr pointer, CUcontext context, const void *key);

/* A context ends: its own memory goes; after the last one on a card in this process also what pools hold there. */
void linear_context_gone(CUcontext context);
void arrays_context_gone(CUcontext context);
void pools_device_idle(CUdevice device);

#endif
