/* Whether and what this process is held to: the limits, the shared state, the cards. Made at the first use of the driver, made anew in
 * a forked child. Everything that a hook needs to begin.
 */
#ifndef HAMI_VGPU_GUARD_H
#define HAMI_VGPU_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "intercept.h"
#include "limits.h"

enum guard_mode {
    GUARD_OFF,     /* nothing to enforce: hooks forward, pointers are the driver's own */
    GUARD_ON,
    GUARD_REFUSES, /* a late-bound container without valid policy, or a state that cannot be had: no GPU */
};

/* Decides once; cheap after that. Reads files, never the driver: may be called from dlsym. */
enum guard_mode guard_mode(void);

/* First in every hook: false means forward, nothing is to be counted. The real driver's entry points are there after it. */
bool guard_on(void);

/* This process has a slot, or gets one now. The second also notices a child of a raw clone(), for the price of a
 * getpid(): asked where a context is made, because without a context of its own such a child can do nothing. */
bool guard_attached(void);
bool guard_attached_now(void);

/* The mapped state; NULL before guard_on() or, for readers without CUDA, guard_view(). */
struct vgpu_state *guard_state(void);

/* Maps the state without taking a slot, for NVML's views. NULL if there are no limits. */
struct vgpu_state *guard_view(void);

const struct limits *guard_limits(void);
const struct places *guard_places(void);

/* The index in policy and state of a CUDA device or of the current context's. Negative: forward the call, the driver has an error to
 * tell; or refuse it, the card was not granted. */
#define GUARD_FORWARD (-1)
#define GUARD_REFUSE (-2)
int guard_index_of(CUdevice device);
int guard_current_index(void);

/* The index of an NVML device by its UUID; -1 if it is none of ours. */
int guard_index_of_uuid(const char *uuid);

/* CUDA's number of the card with this index in this process; -1 if it was never asked for. */
CUdevice guard_device_of(int index);

/* Takes over a newer policy, if there is one. At most one stat a second unless `now`. */
void guard_follow_policy(bool now);

#endif
