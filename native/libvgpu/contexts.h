/* Contexts, and what the driver takes for them: their own cost, streams, code, local memory. */
#ifndef HAMI_VGPU_CONTEXTS_H
#define HAMI_VGPU_CONTEXTS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* How many contexts this process has on a card. */
int contexts_alive(int index);

/* The card on which all contexts of this process are; -1 if there are several or none. */
int contexts_only_index(void);

/* What a call that grows the driver's own memory is expected to take at most. */
#define GROWTH_OF_A_STREAM (2ull << 20)

/* A kernel that needs this much local memory per thread may be launched from now on in a context. False: refuse. */
bool contexts_allow_local_memory(CUcontext context, int index, uint64_t bytes_per_thread);

/* Kernels of libraries belong to no context: once handed out, they may be launched in every context there is or will be. */
bool contexts_allow_local_memory_everywhere(uint64_t bytes_per_thread);
uint64_t contexts_local_memory_everywhere(void);

/* Visits this process's contexts; stops at the first `false`. */
bool contexts_each(bool (*visit)(CUcontext context, int index, uint64_t argument), uint64_t argument);

void contexts_forget_after_fork(void);
void growth_forget_after_fork(void);

#endif
