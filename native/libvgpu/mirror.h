/* A copy of our numbers in HAMi's region format 1.2, for monitors that read it. Written with pwrite, never read back, never mapped:
 * whatever others do to the file, this process does not notice. Every function is silent when there is no mirror. */
#ifndef HAMI_VGPU_MIRROR_H
#define HAMI_VGPU_MIRROR_H

#include <stdbool.h>
#include <stdint.h>

#include "limits.h"

/* Makes the file if it is not there or empty, takes it over if it is a region 1.x of HAMi's; writes header, devices and limits. Any other
 * file is left alone: then there is no mirror. Called again it writes what is known of the devices by now. Callers take turns. */
void mirror_open(const char *path, const struct limits *limits, uint32_t device_count, const char (*uuids)[VGPU_UUID_SIZE]);
bool mirror_is_open(void);

/* Our slot `slot` as a process of the region. The first call for a pid empties what stood there; pid 0 empties it as well. Status: 0 not
 * active, 1 running, 2 suspended. */
void mirror_process(int slot, int32_t pid, int32_t status);
void mirror_usage(int slot, uint32_t device, const struct vgpu_usage *usage);

/* A kernel was launched at this unix time. */
void mirror_kernel_time(uint64_t seconds);

/* Limits changed (a new policy generation). */
void mirror_limits(const struct limits *limits);

/* In the child after fork. Async-signal-safe. */
void mirror_forget_after_fork(void);

#endif
