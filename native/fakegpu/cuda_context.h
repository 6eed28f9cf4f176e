/* Contexts as their own files see them. */
#ifndef FAKEGPU_CUDA_CONTEXT_H
#define FAKEGPU_CUDA_CONTEXT_H

#include "cuda_internal.h"

/* (locked) Makes a context and takes its memory; ends one and gives all back. */
CUresult context_make(CUcontext *context, CUdevice device, unsigned int flags, unsigned int api_version);
CUresult context_begin(CUcontext context);
void context_end(CUcontext context);

/* The calling thread's stack. */
bool context_push(CUcontext context);
CUcontext context_pop(void);
CUcontext context_top(void);

#endif
