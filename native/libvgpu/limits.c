/* What this container may have. See limits.h.
 *
 * Two worlds that never mix: with the agent's folder `policy/` its file is all that counts, without it HAMi's environment names are. A
 * tenant who sets these names in a late-bound container changes nothing.
 */
#include "limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy_file.h"

uint64_t limits_parse_memory(const char *text) {
    if (text == NULL || text[0] == '\0') {
        return 0;
    }
    uint64_t unit = 1;
    switch (text[strlen(text) - 1]) {
    case 'g':
    case 'G':
        unit = 1ull << 30;
        break;
    case 'm':
    case 'M':
        unit = 1ull << 20;
        break;
    case 'k':
    case 'K':
        unit = 1ull << 10;
        break;
    default:
        break;
    }
    int saved = errno;
    errno = 0;
    unsigned long long count = strtoull(text, NULL, 0);
    bool usable = errno == 0 && strchr(text, '-') == NULL && count <= UINT64_MAX / unit;
    errno = saved;
    return usable ? count * unit : 0;
}

/* `<name>_<i>` if it says anything, else `<name>`. */
static uint64_t number_for(const char *name, uint32_t device) {
    char own_name[64];
    snprintf(own_name, sizeof own_name, "%s_%u", name, device);
    uint64_t own = limits_parse_memory(getenv(own_name));
    return own != 0 ? own : limits_parse_memory(getenv(name));
}

static bool is_either(const char *text, const char *lower, const char *upper) {
    return text != NULL && (strcmp(text, lower) == 0 || strcmp(text, upper) == 0);
}

static void read_environment(struct limits *limits) {
    limits->source = LIMITS_NONE;
    limits->device_count = VGPU_MAX_DEVICES;
    for (uint32_t i = 0; i < VGPU_MAX_DEVICES; i++) {
        uint64_t cores = number_for("CUDA_DEVICE_SM_LIMIT", i);
        limits->devices[i].cores = cores == 0 || cores > 100 ? 100 : (uint32_t)cores;
        limits->devices[i].memory = number_for("CUDA_DEVICE_MEMORY_LIMIT", i);
        if (limits->devices[i].memory != 0 || limits->devices[i].cores < 100) {
            limits->source = LIMITS_ENV;
        }
    }
    const char *priority = getenv("CUDA_TASK_PRIORITY");
    limits->priority = priority != NULL ? (int32_t)strtol(priority, NULL, 10) : 1;
    const char *cores_policy = getenv("GPU_CORE_UTILIZATION_POLICY");
    if (is_either(cores_policy, "force", "FORCE")) {
        limits->flags |= VGPU_POLICY_FORCE_CORES;
    } else if (is_either(cores_policy, "disable", "DISABLE")) {
        limits->flags |= VGPU_POLICY_IGNORE_CORES;
    }
    if (is_either(getenv("CUDA_OVERSUBSCRIBE"), "true", "true")) {
        limits->flags |= VGPU_POLICY_OVERSUBSCRIBE;
    }
}

void limits_read(const struct places *places, struct limits *limits) {
    int saved = errno;
    memset(limits, 0, sizeof *limits);
    if (!places->late_bound) {
        read_environment(limits);
    } else if (!policy_file_read(places, limits)) {
        limits->source = LIMITS_REFUSED;
    }
    errno = saved;
}

bool limits_reread(const struct places *places, struct limits *limits) {
    if (limits->source != LIMITS_POLICY && limits->source != LIMITS_REFUSED) {
        return false;
    }
    int saved = errno;
    struct limits_stamp now;
    bool changed = policy_file_stamp(places->policy, &now) && memcmp(&now, &limits->seen, sizeof now) != 0;
    if (changed) {
        struct limits newer = {.seen = now};
        changed = policy_file_read(places, &newer) &&
                  (limits->source == LIMITS_REFUSED || newer.generation > limits->generation);
        if (changed) {
            *limits = newer;
        } else {
            limits->seen = newer.seen;
        }
    }
    errno = saved;
    return changed;
}
