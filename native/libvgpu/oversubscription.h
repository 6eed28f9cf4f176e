/* Opt-in (VGPU_POLICY_OVERSUBSCRIBE): limits on a card add up to more than it has, so large allocations are managed memory, which the
 * driver moves between card and host as it is used. */
#ifndef HAMI_VGPU_OVERSUBSCRIPTION_H
#define HAMI_VGPU_OVERSUBSCRIPTION_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_abi.h"

bool oversubscription_is_on(void);
CUresult oversubscription_allocate(CUdeviceptr *pointer, size_t size, int index);

#endif
