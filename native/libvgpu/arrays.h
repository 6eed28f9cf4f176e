/* Arrays and mipmapped arrays. */
#ifndef HAMI_VGPU_ARRAYS_H
#define HAMI_VGPU_ARRAYS_H

#include "cuda_abi.h"

/* A context went, and its arrays with it. */
void arrays_drop_context(CUcontext context);

#endif
