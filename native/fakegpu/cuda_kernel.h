/* Launches, as streams and graphs share them. */
#ifndef FAKEGPU_CUDA_KERNEL_H
#define FAKEGPU_CUDA_KERNEL_H

#include "cuda_module.h"
#include "cuda_stream.h"

struct launch {
    unsigned int grid[3], block[3];
    unsigned int shared;
    void **parameters;
};

/* Whether the sizes are possible. */
CUresult kernel_check(const struct launch *launch);
/* (locked) Takes what the function needs on the card before it can run in the context: its module's code, its threads' local memory. */
CUresult kernel_prepare(CUfunction function, CUcontext context);

#endif
