/* What the driver takes by itself: contexts, loaded code, streams, local memory. No call says how much; NVML says what the driver counts
 * for this process, and what we did not count ourselves is overhead. It is measured after whatever makes it grow, and before each
 * allocation that comes near the limit. Without NVML (a container may lack it) the reserved estimates stay as charges.
 *
 * The same list shows the container's other processes. One for which the driver counts more than it has charged itself (memory that it
 * imported from a process that is gone, code that it just loaded) cannot be made to notice; whoever sees it charges it with the
 * difference, which counts until it measures itself.
 */
#ifndef HAMI_VGPU_OVERHEAD_H
#define HAMI_VGPU_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "cards.h"

/* Around every driver call that changes what is allocated: a measurement in between would see half of it. */
void overhead_operation_begins(void);
void overhead_operation_ends(void);

/* Measures and charges. `reserved` pending bytes, taken for what was just done, are given back. False if NVML does not tell: they are kept
 * as overhead then. */
bool overhead_measure(int index, uint64_t reserved);
void overhead_measure_each(card_set cards);

/* What this process found to be its overhead, without what others charged it with since. */
uint64_t overhead_own(int index);

/* A measurement in the midst of other threads' calls errs on the safe side; this repeats it if that is over. Costs nothing otherwise. */
void overhead_settle(void);

/* Something may have grown that only a measurement shows: the next reservation measures first. */
void overhead_suspect(void);

/* Whether a reservation that leaves `room` bytes should measure first. */
bool overhead_is_due(int index, uint64_t room);

/* The overhead is charged at least at this; for local memory that the next launch will take. 0 takes it away. */
void overhead_raise_floor(int index, uint64_t by);
void overhead_drop_floor(int index);

/* Memory that others may still hold was let go, or a process died: every process of the container measures before it takes more. */
void overhead_suspect_all(void);

/* For state_sweep(): what the driver still counts for a dead process. Asked of NVML before, because the sweep holds the shared lock. */
struct counted_processes {
    uint64_t asked_at; /* CLOCK_MONOTONIC, ns */
    uint32_t count[VGPU_MAX_DEVICES];
    struct {
        uint32_t pid;
        uint64_t bytes;
    } of[VGPU_MAX_DEVICES][128];
};
void overhead_count_processes(struct counted_processes *counted);
uint64_t overhead_still_counted(int32_t pid, uint32_t device, uint64_t dead_since, void *counted_processes);

/* NVML's index of a card; GUARD_REFUSE if NVML does not know. */
int overhead_nvml_index(const char *uuid);

void overhead_forget_after_fork(void);

#endif
