/* Faults on order, for tests: from the environment (FAKEGPU_FAULTS, this process) and the folder's file `faults` (all processes, read
 * again when it changes). One fault per line or `;`:
 *
 *   <function> <n>[+] <code>      the n-th call (with +: and all after it) of cu.../nvml... in a process returns <code>; calls are counted
 *                                 from when the process first sees the line, a line that stays in a rewritten file keeps its count
 *   <function> delay <ms>         each call takes that much longer
 *   missing <function>            the driver does not have it (dlsym and cuGetProcAddress do not find it): an old driver
 *   card <uuid> lost              NVML and CUDA calls on the card fail as for a card that fell off the bus
 *   card <uuid> hide <bytes>      the card has that much less free memory
 *   pids outer                    NVML lists processes with pids that no process in the caller's namespace has
 *   pids shifted <k>              NVML lists processes with pids <k> higher than the caller sees
 *
 * The functions are named as they are exported (cuMemAlloc_v2). A delay passes on the store's clock. Lines that start with # are comments.
 */
#ifndef FAKEGPU_FAULTS_H
#define FAKEGPU_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

/* First in every entry point: non-zero is the code to return at once. `name` is the exported name. */
int fault(const char *name);
bool fault_missing(const char *name);
bool fault_lost(const char *uuid);
uint64_t fault_hidden(const char *uuid);
int fault_pid(int pid);
void fault_after_fork(void);

#endif
