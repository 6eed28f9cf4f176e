/* Physical memory of cuMemCreate as the files that map it see it. All (locked). */
#ifndef FAKEGPU_CUDA_VMM_H
#define FAKEGPU_CUDA_VMM_H

#include "cuda_linear.h"

struct physical;

/* NULL: no such handle, or released. */
struct physical *physical_find(CUmemGenericAllocationHandle handle);
size_t physical_size(const struct physical *physical);
CUdevice physical_device(const struct physical *physical);

/* A mapping keeps the memory, whatever becomes of the handle. `place` is the caller's and stays until unmapped. */
struct place {
    struct place *next;
    CUdeviceptr start; /* 0: in an array */
    size_t length, offset;
};
void physical_map(struct physical *physical, struct place *place);
void physical_unmap(struct physical *physical, struct place *place);
/* One more handle reference, as cuMemRetainAllocationHandle gives. */
CUmemGenericAllocationHandle physical_retain(struct physical *physical);

#endif
