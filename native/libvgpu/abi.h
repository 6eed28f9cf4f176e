/* The two files between the node agent and the containers: `policy` and `state`. src/hami/wire/policy_file.py and state_file.py has the same
 * layout; a test holds the two equal. Little endian, natural alignment, fixed size: a field is added at the end of a
 * reserved area and says so by a feature bit; anything else is a new VERSION.
 *
 * policy   written by the agent only (written elsewhere, renamed into place), mounted read-only. It lies in the folder
 *          VGPU_SHARE/policy of the container. The folder without a valid file: no GPU. No folder: HAMi's environment names count.
 *          Raising `generation` in a new file changes the limits of running processes.
 * state    made by the agent, mounted as one file VGPU_SHARE/state, written by every process of the container. Processes map
 *          it; whoever reads it from outside uses pread after fstat and believes nothing in it.
 *
 * A slot of `state` belongs to one process for as long as that holds an OFD write lock on byte VGPU_LOCK_BASE + slot of the
 * file. The kernel drops the lock however the process ends, so a slot without a lock is free, whatever stands in it. Slots never move.
 */
#ifndef HAMI_VGPU_ABI_H
#define HAMI_VGPU_ABI_H

#include <pthread.h>
#include <stdint.h>

#define VGPU_SHARE "/run/hami/share" /* in the container; src/hami/node/layout.py has the same */
#define VGPU_MAX_DEVICES 16
#define VGPU_MAX_SLOTS 1024
#define VGPU_UUID_SIZE 96 /* NUL-padded, as NVML gives it: GPU-... or MIG-... */

#define VGPU_POLICY_MAGIC 0x31594C4F50494D41ull /* "AMIPOLY1" */
#define VGPU_POLICY_VERSION 1u
#define VGPU_STATE_MAGIC 0x3145544154534D41ull /* "AMSTATE1" */
#define VGPU_STATE_VERSION 1u

#define VGPU_LOCK_BASE (1ll << 40) /* far behind the end of the file: no read or write touches these bytes */

/* policy.flags */
#define VGPU_POLICY_OVERSUBSCRIBE (1u << 0) /* device memory may be backed by managed memory (opt-in) */
#define VGPU_POLICY_FORCE_CORES (1u << 1)   /* the compute limit holds even when the container is alone on the card */
#define VGPU_POLICY_IGNORE_CORES (1u << 2)  /* the compute limit is not enforced */

struct vgpu_policy_device {
    char uuid[VGPU_UUID_SIZE];
    uint64_t memory_limit;  /* bytes; 0 = no limit */
    uint64_t context_bytes; /* what a context costs on this card with this driver, measured by the agent; 0 = not known */
    uint32_t core_limit;    /* percent of the card's time; 0 or 100 = no limit */
    uint32_t reserved0;
    uint64_t reserved[5];
};

struct vgpu_policy {
    uint64_t magic;
    uint32_t version;
    uint32_t size;       /* of this struct */
    uint64_t generation; /* rises with every change */
    uint32_t flags;
    uint32_t device_count;
    int32_t priority; /* as CUDA_TASK_PRIORITY: 0 is high, 1 is low */
    uint32_t reserved0;
    char pod_uid[64]; /* for whom it is: shown, never trusted by the library */
    char pod_namespace[64];
    char pod_name[256];
    char container[64];
    struct vgpu_policy_device devices[VGPU_MAX_DEVICES]; /* in the order in which the container sees them */
    uint64_t reserved[15];
    uint32_t reserved1;
    uint32_t crc32; /* IEEE, over all bytes before this field */
};

/* What one process has on one card, in bytes. The sum of all fields but `peak` is what counts against the limit. */
struct vgpu_usage {
    uint64_t overhead; /* contexts, modules, streams, local memory: what the driver takes by itself */
    uint64_t linear;   /* cuMemAlloc, pitch */
    uint64_t managed;
    uint64_t pool;
    uint64_t vmm;
    uint64_t array;
    uint64_t graph;
    uint64_t pending; /* reserved for calls that have not returned, and kept ready for small allocations */
    uint64_t peak;    /* the highest sum this process had */
    uint64_t reserved[3];
};

struct vgpu_slot {
    uint64_t epoch; /* +1 whenever the slot gets a new owner */
    int32_t pid;    /* as the container sees it; 0 = free */
    int32_t host_pid; /* written by the agent for display; 0 = not known */
    uint64_t start_time; /* clock ticks since boot, from /proc/self/stat */
    uint64_t last_kernel_time; /* unix seconds of the last seen launch; 0 = none */
    uint32_t status;     /* 0 free, 1 running, 2 blocked by a higher priority, 3 dead, its memory still counted by the driver */
    uint32_t reserved0;
    uint64_t dead_since; /* with status 3: CLOCK_MONOTONIC nanoseconds of when the owner was first seen dead */
    uint64_t changes;    /* +1 with every change of usage: who reads it twice knows whether what is between belongs together */
    uint64_t reserved[3];
    struct vgpu_usage usage[VGPU_MAX_DEVICES];
};

struct vgpu_state_device {
    char uuid[VGPU_UUID_SIZE];
    uint64_t used;          /* sum over all slots; recomputed when a lock holder died */
    uint64_t limit;         /* what the processes enforce now; 0 = no limit */
    uint64_t context_bytes; /* measured by the first process that made a context; 0 = not yet */
    uint64_t peak;          /* highest `used` */
    uint64_t refused;       /* how many calls were refused with out of memory */
    uint64_t reserved[5];
};

struct vgpu_state {
    uint64_t magic; /* written last when the file is made */
    uint32_t version;
    uint32_t size; /* of this struct; a file may be longer */
    uint64_t features;
    uint64_t nonce; /* of this making of the file */
    char boot_id[40];
    uint64_t policy_generation; /* newest that any process has taken over */
    uint32_t device_count;
    uint32_t slots_used; /* one above the highest slot that ever had an owner */
    union {
        pthread_mutex_t lock; /* process-shared, robust; held for nanoseconds, never across a driver call */
        uint64_t lock_space[8];
    };
    uint32_t writing;      /* 1 while totals are being changed: whoever finds it set recomputes them */
    uint32_t unknown_entry_points; /* asked of cuGetProcAddress under a known name, but of a newer kind: passed through */
    uint64_t recoveries;   /* how often totals were recomputed */
    uint64_t futex;        /* for waking processes that wait for compute time */
    uint64_t suspicions;   /* +1 when memory may have changed hands: who has not looked since measures before it takes more */
    uint64_t reserved[15];
    struct vgpu_state_device devices[VGPU_MAX_DEVICES];
    struct vgpu_slot slots[VGPU_MAX_SLOTS];
};

_Static_assert(sizeof(struct vgpu_policy_device) == 160, "policy device");
_Static_assert(sizeof(struct vgpu_policy) == 488 + 16 * 160 + 128, "policy");
_Static_assert(sizeof(struct vgpu_usage) == 96, "usage");
_Static_assert(sizeof(struct vgpu_slot) == 80 + 16 * 96, "slot");
_Static_assert(sizeof(struct vgpu_state_device) == 176, "state device");
_Static_assert(sizeof(pthread_mutex_t) <= 64, "mutex");

#endif
