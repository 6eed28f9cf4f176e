/* The stand-in driver's one folder (FAKEGPU_DIR, default /run/fakegpu), shared by all containers and the agent of a node.
 *
 *   devices      text, one card per line, fields `key=value` separated by tabs; written by the program that makes the node
 *                (sandbox/src/hami_sandbox/gpus.py): uuid, name, memory (bytes), sms, threads (per SM), major, minor, context (bytes that a
 *                context costs), bus (0000:1a:00.0), numa, and what NVML wants more (see nvml_internal.h). Unknown keys are ignored.
 *   state        mapped by every process: what each has on each card, the cards' timelines, the virtual clock. Made by the first.
 *   slots        a file whose byte n is POSIX-locked by the process that owns slot n of `state`. F_GETLK tells a reader the pid as the
 *                reader sees it; no lock, no process: its memory is free.
 *   peaks.jsonl  the record that the auditor reads; its format is described in tests/e2e/auditor/peaks.py.
 *   faults       text, read when it changes: see faults.h.
 *   dev/         nvidiactl and nvidia<n>, in the place of the driver's device files: NVML opens them, so /proc/<pid>/fd shows who has a card.
 *   xids         appended lines `<card uuid>\t<xid>`: NVML's event sets deliver those that came after they were made.
 *
 * Which cards a process sees is decided as NVIDIA's runtime would by NVIDIA_VISIBLE_DEVICES: `void`, `none` or empty: no card (unset: all,
 * as on a bare machine); `all`; else a list of UUIDs or indexes. Then CUDA_VISIBLE_DEVICES permutes and narrows for CUDA only (indexes or
 * UUID prefixes; the first bad entry ends the list).
 */
#ifndef FAKEGPU_STORE_H
#define FAKEGPU_STORE_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_MAX_DEVICES 16
#define FAKE_MAX_SLOTS 4096
#define FAKE_MIB (1ull << 20)
#define FAKE_PAGE (2 * FAKE_MIB)       /* device pages */
#define FAKE_POOL_CHUNK (32 * FAKE_MIB) /* what pools and graph memory grow by */

struct fake_device {
    char uuid[96];
    char name[96];
    char bus[32];
    uint64_t memory;
    uint64_t context; /* bytes a context costs */
    int sms, threads, major, minor, numa;
    char line[2048]; /* the whole line, for keys that only NVML knows: store_field() */
};

/* All cards of the folder, in file order. Read once per process. A missing or bad folder is 0 cards; store_problem() says why. */
int store_devices(const struct fake_device **devices);
const char *store_problem(void);
bool store_field(const struct fake_device *device, const char *key, char *value, int size);

/* Visible cards as indexes into store_devices(): for NVML (NVIDIA_VISIBLE_DEVICES), and for CUDA (also CUDA_VISIBLE_DEVICES). */
int store_visible_nvml(int indexes[FAKE_MAX_DEVICES]);
int store_visible_cuda(int indexes[FAKE_MAX_DEVICES]);

/* What a process has of a card. MANAGED is on the card but in no process's account, as with the real driver. */
enum fake_kind { FAKE_PROCESS, FAKE_MANAGED };

/* Take bytes of physical memory. False if the card has not that much left (dead processes are swept first). Raises peaks and writes
 * their lines before it returns. Multi-process and multi-thread safe; SIGKILL at any point loses nothing but the dead process's own. */
bool store_take(int device, enum fake_kind kind, uint64_t bytes);
void store_give(int device, enum fake_kind kind, uint64_t bytes);

/* On the card by all / by this process now. */
uint64_t store_used(int device);
uint64_t store_own(int device);

/* The slot of this process, taken if it has none yet; -1: there is none. */
int store_slot(void);

struct fake_process {
    int pid;        /* as the caller sees it (F_GETLK); 0 if it is outside the caller's pid namespace */
    int inner_pid;  /* as the process saw itself */
    int slot;
    uint64_t bytes;
    uint64_t busy; /* nanoseconds of the card that it has reserved so far */
};
/* Living processes with memory or a context on the card. Returns how many there are, writes at most `room`. */
int store_processes(int device, struct fake_process *found, int room);

/* The card's timeline, shared by all processes: reserve `cost` ns of the card starting not before `after`; returns when it ends. */
uint64_t store_run(int device, uint64_t after, uint64_t cost);

/* Busy nanoseconds of the card since it was made (for utilisation), all processes and this one. */
uint64_t store_busy(int device, uint64_t *own);
/* Whether the card works at this moment. */
bool store_working(int device);

/* Nanoseconds. CLOCK_MONOTONIC, or with FAKEGPU_CLOCK=virtual a counter in `state` that only fakegpu_advance() moves; sleeping until a
 * time then means waiting until someone advances the clock to it. */
uint64_t store_now(void);
void store_sleep_until(uint64_t when);

/* In the child after fork: a new process without memory. */
void store_after_fork(void);

#endif
