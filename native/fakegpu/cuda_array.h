/* Arrays and mipmaps as the files that make and map them see them. (locked), but for the last two. */
#ifndef FAKEGPU_CUDA_ARRAY_H
#define FAKEGPU_CUDA_ARRAY_H

#include "cuda_linear.h"

/* A 2 MiB page that arrays of one size share. */
struct array_page {
    struct array_page *next;
    uint64_t each;
    unsigned int capacity, used;
};

/* Memory of a handle that is mapped into a sparse or deferred array, and where. */
struct array_mapping;

/* What an array or a mipmap has on the card. */
struct array_memory {
    CUcontext context;
    uint64_t needed;         /* what cuArrayGetMemoryRequirements tells */
    uint64_t charged;        /* whole pages of its own */
    struct array_page *page; /* or its place in a shared one */
    bool deferred;           /* nothing on the card until something is mapped */
    struct array_mapping *mappings;
};

struct CUarray_st {
    CUarray next;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    struct array_memory memory;
    bool of_mipmap; /* a level: goes with its mipmap */
};

struct CUmipmappedArray_st {
    CUmipmappedArray next;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    unsigned int level_count;
    struct array_memory memory;
    CUarray levels[]; /* made when first asked for */
};

/* Bytes of one level, of which an array has one; 0 if the descriptor is not valid. And what the card needs for all levels together. */
uint64_t array_level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
uint64_t array_bytes(uint64_t levels);
CUresult array_memory_take(struct array_memory *memory, CUcontext context, uint64_t bytes, unsigned int flags);
void array_memory_give(struct array_memory *memory);
void array_mappings_drop(struct array_memory *memory);

/* Not locked: these take the lock. In the current context; NULL if it is no such handle. */
CUarray array_find(CUarray array);
CUmipmappedArray mipmap_find(CUmipmappedArray mipmap);

#endif
