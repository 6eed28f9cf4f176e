/* Stream-ordered pools. A pool has spans of addresses, made of 32 MiB chunks that are on the card or not (yet, or any more); a span is
 * divided into blocks, which may lie across chunks. All functions (locked).
 */
#ifndef FAKEGPU_CUDA_POOL_H
#define FAKEGPU_CUDA_POOL_H

#include "cuda_linear.h"

enum block_state {
    BLOCK_FREE,
    BLOCK_USED,
    BLOCK_PENDING, /* freed in a stream's order: only that stream may reuse it before a thread has waited */
    BLOCK_ABSENT,  /* its chunks are not on the card */
};

struct block {
    struct block *next; /* by address, without gaps */
    CUdeviceptr start;
    size_t length;
    size_t size; /* as asked for */
    enum block_state state;
    const void *key; /* pending: stream */
    CUcontext context;
};

/* region->detail of a REGION_POOL. */
struct span {
    struct span *next;
    struct region *region;
    CUmemoryPool pool;
    struct block *blocks;
};

struct CUmemPoolHandle_st {
    CUmemoryPool next; /* all that ever were */
    bool alive, is_default, imported;
    CUdevice device; /* 0 for pools of host memory */
    bool counted;    /* false: host memory */
    bool placed;     /* false: managed memory without a place; its first use decides */
    enum fake_kind kind;
    int allocation_type, handle_types;
    struct share *share; /* once exported */
    uint64_t threshold, most; /* most: 0 = no limit */
    uint64_t reserved, reserved_high, used, used_high;
    int reuse[3];
    int access[FAKE_MAX_DEVICES];
    struct span *spans;
};

extern CUmemoryPool pools;

bool pool_known(CUmemoryPool pool);
CUmemoryPool pool_make(CUdevice device, bool counted, int allocation_type);
/* The pool that cuMemAllocAsync takes from; NULL if memory of the host is short. */
CUmemoryPool pool_of_device(CUdevice device);

CUresult pool_allocate(CUmemoryPool pool, size_t size, CUcontext context, const void *key, CUdeviceptr *pointer);
/* Gives free chunks back while more than `keep` bytes are reserved. */
void pool_trim(CUmemoryPool pool, uint64_t keep);
/* Managed memory goes to another card; with -1 to the host. */
void pool_move(CUmemoryPool pool, CUdevice device);
/* Ends every block, used or not. */
void pool_empty(CUmemoryPool pool);

#endif
