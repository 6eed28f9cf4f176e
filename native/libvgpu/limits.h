/* What this container may have: from the agent's policy file, or from HAMi's environment names.
 *
 * The policy file wins, whatever the environment says. It is looked for where the agent mounts it (places.c), never where an
 * environment variable says and never beside the library: a copy of the library is under the same limits. A folder without a valid
 * file means that nothing was granted yet: LIMITS_REFUSED.
 */
#ifndef HAMI_VGPU_LIMITS_H
#define HAMI_VGPU_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

enum limits_source {
    LIMITS_NONE,    /* no policy folder, no limit in the environment: the library stays out of the way */
    LIMITS_POLICY,  /* the agent's file */
    LIMITS_ENV,     /* HAMi's names; devices[i] is NVML's index i, uuid is empty */
    LIMITS_REFUSED, /* a policy folder without a valid file: no GPU */
};

struct device_limit {
    char uuid[VGPU_UUID_SIZE];
    uint64_t memory; /* bytes; 0 = no limit */
    uint64_t context_bytes;
    uint32_t cores; /* percent; 100 = no limit */
};

/* Which file was looked at last, valid or not: a policy is only read again when this has changed. */
struct limits_stamp {
    uint64_t device, inode, size;
    int64_t seconds, nanoseconds; /* of the last change */
};

struct limits {
    enum limits_source source;
    uint64_t generation;
    uint32_t flags; /* VGPU_POLICY_* */
    int32_t priority;
    uint32_t device_count; /* LIMITS_ENV: VGPU_MAX_DEVICES */
    struct device_limit devices[VGPU_MAX_DEVICES];
    struct limits_stamp seen;
};

/* Where the agent's files are. Paths are "" where there is none. */
struct places {
    char folder[4096]; /* VGPU_SHARE of abi.h, or wherever that was moved to */
    bool late_bound;   /* folder/policy is there */
    uint64_t mount_id; /* the kernel's, of folder/policy; 0 = not known */
    char policy[4096]; /* folder/policy/policy, whether or not it exists; "" if that is too long, or not late-bound */
    char state[4096];  /* our state file: folder/state if that or folder/policy is there (the environment has no say then), else
                          <CUDA_DEVICE_MEMORY_SHARED_CACHE>.state, else /tmp/cudevshr.cache.state */
    char mirror[4096]; /* HAMi's region for existing monitors: CUDA_DEVICE_MEMORY_SHARED_CACHE if set; without policy folder
                          HAMi's default path; else "" */
    bool state_made_by_agent; /* folder/state: never created, removed or replaced by us. Without it there is no state */
};

void places_find(struct places *places);

/* Reads both sources. Never fails: what cannot be used is LIMITS_REFUSED or LIMITS_NONE. */
void limits_read(const struct places *places, struct limits *limits);

/* True and new values in *limits if the policy file was replaced by a valid one of a higher generation since it was read, or if
 * there was none before. Costs one stat. A file that went away or is invalid changes nothing but `seen`. The caller sees to it that
 * nobody else uses *limits meanwhile. */
bool limits_reread(const struct places *places, struct limits *limits);

/* "8g", "512m", "1024k", "4096" -> bytes; 0 where HAMi would see no limit. As there, 0x and 0 lead in hexadecimal and octal numbers and
 * what follows the number is not looked at unless the last character is a unit: "8Gi" are 8 bytes, which holds everything back. */
uint64_t limits_parse_memory(const char *text);

#endif
