/* Where the library lies, and what this container may have. See limits.h.
 *
 * Two worlds that never mix: with a folder `policy/` beside the library the agent's file is all that counts, without it HAMi's
 * environment names are. A tenant who sets these names in a late-bound container changes nothing.
 */
#include "limits.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "policy_file.h"

#define HAMI_DEFAULT_REGION "/tmp/cudevshr.cache"

/* The kernel's name of the file that holds `address`: always absolute, unlike the loader's, which is as it stood in LD_PRELOAD. */
static bool mapped_file(uintptr_t address, char *path, size_t size) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) {
        return false;
    }
    char line[4096 + 128];
    bool found = false;
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        unsigned long start = 0;
        unsigned long end = 0;
        int name = -1;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &start, &end, &name) == 2 && name > 0 && start <= address && address < end &&
            line[name] == '/') {
            line[strcspn(line, "\n")] = '\0';
            found = snprintf(path, size, "%s", line + name) < (int)size;
        }
    }
    fclose(maps);
    return found;
}

static void find_folder(char *folder, size_t size) {
    folder[0] = '\0';
    Dl_info found;
    /* A function pointer is no object pointer in C; by way of an integer it may be looked at as one. */
    uintptr_t own = (uintptr_t)&places_find;
    if (dladdr((void *)own, &found) != 0 && found.dli_fname != NULL && found.dli_fname[0] == '/') {
        if (snprintf(folder, size, "%s", found.dli_fname) >= (int)size) {
            folder[0] = '\0';
        }
    } else if (!mapped_file(own, folder, size)) {
        folder[0] = '\0';
    }
    char *last = strrchr(folder, '/');
    if (last != NULL) {
        *last = '\0'; /* "" is the root folder: "" + "/policy" is right there too */
    }
}

/* What cannot be looked at (no right to) counts as there: the container is late-bound until the opposite is known. */
static bool may_exist(const char *path, bool folder) {
    struct stat found;
    if (stat(path, &found) == 0) {
        return !folder || S_ISDIR(found.st_mode);
    }
    return errno != ENOENT && errno != ENOTDIR;
}

static const char *region_from_environment(void) {
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    return path != NULL && path[0] != '\0' ? path : NULL;
}

/* "" if it does not fit: no such file can be opened. */
static void join(char *path, size_t size, const char *first, const char *second) {
    if (snprintf(path, size, "%s%s", first, second) >= (int)size) {
        path[0] = '\0';
    }
}

void places_find(struct places *places) {
    int saved = errno;
    memset(places, 0, sizeof *places);
    find_folder(places->folder, sizeof places->folder);
    const char *region = region_from_environment();
    join(places->policy, sizeof places->policy, places->folder, "/policy");
    bool late_bound = may_exist(places->policy, true);
    if (late_bound) {
        join(places->policy, sizeof places->policy, places->folder, "/policy/policy");
    } else {
        places->policy[0] = '\0';
    }
    join(places->state, sizeof places->state, places->folder, "/state");
    places->state_made_by_agent = late_bound || may_exist(places->state, false);
    if (!places->state_made_by_agent) {
        join(places->state, sizeof places->state, region != NULL ? region : HAMI_DEFAULT_REGION, ".state");
    }
    if (region != NULL) {
        join(places->mirror, sizeof places->mirror, region, "");
    } else if (!late_bound) {
        join(places->mirror, sizeof places->mirror, HAMI_DEFAULT_REGION, "");
    }
    errno = saved;
}

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
    if (places->policy[0] == '\0') {
        read_environment(limits);
    } else if (!policy_file_read(places->policy, limits)) {
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
        changed = policy_file_read(places->policy, &newer) &&
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
