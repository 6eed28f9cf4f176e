/* cuMemAlloc and its kin, counted as the driver does: by the 2 MiB pages under live allocations. */
#ifndef HAMI_VGPU_LINEAR_H
#define HAMI_VGPU_LINEAR_H

#include <stdint.h>

#include "cuda_abi.h"

/* A context went: so did everything that was allocated in it. */
void linear_drop_context(CUcontext context);

void linear_forget_after_fork(void);

#endif
