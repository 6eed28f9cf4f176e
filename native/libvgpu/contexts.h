/* Contexts, and what the driver takes for them: their own cost, streams, code, local memory. */
#ifndef HAMI_VGPU_CONTEXTS_H
#define HAMI_VGPU_CONTEXTS_H

#include <stdbool.h>
#include <stdint.h>

#include "cards.h"
#include "cuda_abi.h"

/* How many contexts this process has on a card. */
int contexts_alive(int index);

/* Cards on which this process has contexts. */
card_set contexts_cards(void);

/* The card on which all contexts of this process are; -1 if there are several or none. */
int contexts_only_index(void);

/* With the books locked: the context that memory made now ends with. That is the current one, but of a green context the primary. */
CUcontext contexts_owner(void);
CUcontext contexts_primary_of(int index);

/* Kinds of records in books.contexts besides 0, one that only has a size: made by cuCtxCreate (its owner counts
 * what cuCtxAttach added), or a green context. */
enum { CONTEXT_CREATED = 1, CONTEXT_GREEN = 2 };

/* Held around a call that may make a card's primary context: two threads that do so at once need room for one. */
void contexts_primary_lock(int index);
void contexts_primary_unlock(int index);

/* A call that makes the primary context of a card unless it is there, and takes `more` besides: before it and after it. The first takes
 * bytes from the limit, or says no; after the second said no, the caller undoes the call. */
struct coming_context {
    bool primary; /* it was not there before */
    uint64_t reserved;
};
bool contexts_primary_comes(CUdevice device, int index, uint64_t more, struct coming_context *coming);
bool contexts_primary_came(CUdevice device, int index, const struct coming_context *coming);
/* After a call that may have ended it. */
void contexts_primary_left(CUdevice device);
void contexts_count_green(int index, int by);
/* The card of a green context; GUARD_FORWARD if it is none of ours. */
int contexts_index_of_green(CUgreenCtx green);

/* What a call that grows the driver's own memory is expected to take at most. */
#define GROWTH_OF_A_STREAM (2ull << 20)

/* A kernel that needs this much local memory per thread may be launched from now on in a context. False: refuse. */
bool contexts_allow_local_memory(CUcontext context, int index, uint64_t bytes_per_thread);

/* Kernels of libraries belong to no context: once handed out, they may be launched in every context there is or will be. */
bool contexts_allow_local_memory_everywhere(uint64_t bytes_per_thread);
uint64_t contexts_local_memory_everywhere(void);

/* Visits this process's contexts; stops at the first `false`. */
bool contexts_each(bool (*visit)(CUcontext context, int index, uint64_t argument), uint64_t argument);

/* Ends a context by that function of the driver, and counts what it took along as gone. */
CUresult contexts_end(CUcontext context, CUresult (*end)(CUcontext context));

void contexts_forget_after_fork(void);
void attach_forget_after_fork(void);
void growth_forget_after_fork(void);

#endif
