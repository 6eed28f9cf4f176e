/* Contexts, and what the driver takes for them: their own cost, streams, code, local memory. */
#ifndef HAMI_VGPU_CONTEXTS_H
#define HAMI_VGPU_CONTEXTS_H

#include <stdint.h>

#include "cuda_abi.h"

/* How many contexts this process has on a card. */
int contexts_alive(int index);

/* The card on which all contexts of this process are; -1 if there are several or none. */
int contexts_only_index(void);

/* What a call that grows the driver's own memory is expected to take at most. */
#define GROWTH_OF_A_STREAM (2ull << 20)

/* A kernel that needs this much local memory per thread may be launched from now on in the current context. False: refuse. */
_Bool contexts_allow_local_memory(int index, uint64_t bytes_per_thread);

void contexts_forget_after_fork(void);

#endif
