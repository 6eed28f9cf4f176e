/* Where the agent's files are. See limits.h.
 *
 * The agent mounts them at VGPU_SHARE. No environment variable says so, and it does not matter where the library itself lies: a copy of
 * it finds the same files. Whoever is root in the container cannot remove the mounts, but can rename a folder above them and put another
 * in its place. So the kernel's list of mounts is read first: the agent's folder, which has an allocation id for a name on the node, is
 * found wherever it went. Two such folders are one too many: one of them is not the agent's, and there is no GPU. A policy file
 * counts only if it lies in that very mount: not in one that a pod's volume put over it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "limits.h"

#ifdef VGPU_BESIDE
#include <dlfcn.h>
#endif

#define HAMI_DEFAULT_REGION "/tmp/cudevshr.cache"
#define ALLOCATION_ID_LENGTH 32

/* "" if it does not fit: no such file can be opened. */
static void join(char *path, size_t size, const char *first, const char *second) {
    if (snprintf(path, size, "%s%s", first, second) >= (int)size) {
        path[0] = '\0';
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

#ifdef VGPU_BESIDE
/* Only in the builds for tests and for the embedded cluster without namespaces, where nothing can be mounted: the files lie beside the
 * library. The kernel's name of the file is always absolute, unlike the loader's, which is as it stood in LD_PRELOAD. */
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

static void find_folder(struct places *places) {
    Dl_info found;
    /* A function pointer is no object pointer in C; by way of an integer it may be looked at as one. */
    uintptr_t own = (uintptr_t)&places_find;
    if (dladdr((void *)own, &found) != 0 && found.dli_fname != NULL && found.dli_fname[0] == '/') {
        join(places->folder, sizeof places->folder, found.dli_fname, "");
    } else if (!mapped_file(own, places->folder, sizeof places->folder)) {
        places->folder[0] = '\0';
    }
    char *last = strrchr(places->folder, '/');
    if (last != NULL) {
        *last = '\0';
    }
    join(places->policy, sizeof places->policy, places->folder, "/policy");
    places->late_bound = may_exist(places->policy, true);
}
#else
/* The word after `*rest`, which then begins behind it. NULL at the end of the line. */
static char *next_word(char **rest) {
    char *word = *rest;
    size_t length = strcspn(word, " \n");
    if (length == 0 || word[length] != ' ') {
        return NULL;
    }
    word[length] = '\0';
    *rest = word + length + 1;
    return word;
}

static bool ends_with_allocation_id(char *path) {
    static const char gone[] = "//deleted"; /* the agent removed the folder; the container still has it */
    size_t length = strlen(path);
    if (length >= sizeof gone - 1 && strcmp(path + length - (sizeof gone - 1), gone) == 0) {
        length -= sizeof gone - 1;
        path[length] = '\0';
    }
    const char *last = strrchr(path, '/');
    return last != NULL && strlen(last + 1) == ALLOCATION_ID_LENGTH && strspn(last + 1, "0123456789abcdef") == ALLOCATION_ID_LENGTH;
}

/* A line of mountinfo, as far as it is needed. */
struct mounted {
    uint64_t id;
    char *device;
    char *root;  /* the folder in its file system */
    char *place; /* where it is mounted */
};

/* Between id and device stands the id of the mount that it is in. */
static bool is_policy_folder(char *line, struct mounted *mounted) {
    char *rest = line;
    mounted->id = strtoull(line, NULL, 10);
    if (next_word(&rest) == NULL || next_word(&rest) == NULL) {
        return false;
    }
    mounted->device = next_word(&rest);
    mounted->root = mounted->device != NULL ? next_word(&rest) : NULL;
    mounted->place = mounted->root != NULL ? next_word(&rest) : NULL;
    const char *last = mounted->place != NULL ? strrchr(mounted->place, '/') : NULL;
    return last != NULL && strcmp(last, "/policy") == 0 && ends_with_allocation_id(mounted->root);
}

#define UNREADABLE (-1)

/* How many policy folders of the agent are mounted here; the folder above the last is in places->folder. The same one may be mounted
 * twice. A path with a space stands there in another form, and so leads to no file. A list that is there, but cannot be read (no
 * descriptor left) or is empty, which none is, may have the agent's folder: UNREADABLE. */
static int count_shares(struct places *places) {
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    if (mounts == NULL) {
        return errno == ENOENT || errno == ENOTDIR ? 0 : UNREADABLE;
    }
    int count = 0;
    bool empty = true;
    char first[2 * 4096]; /* device and root */
    char line[3 * 4096];  /* two paths; what follows them may be longer, and is left out */
    while (fgets(line, sizeof line, mounts) != NULL) {
        bool cut = strchr(line, '\n') == NULL;
        empty = false;
        struct mounted mounted;
        if (is_policy_folder(line, &mounted)) {
            char own[sizeof first];
            snprintf(own, sizeof own, "%s %s", mounted.device, mounted.root);
            if (count == 0) {
                memcpy(first, own, sizeof own);
            }
            count += count == 0 || strcmp(first, own) != 0;
            *strrchr(mounted.place, '/') = '\0';
            join(places->folder, sizeof places->folder, mounted.place, "");
            places->mount_id = mounted.id;
        }
        for (int next = 0; cut && next != EOF && next != '\n';) {
            next = fgetc(mounts);
        }
    }
    bool whole = !empty && ferror(mounts) == 0;
    fclose(mounts);
    return whole ? count : UNREADABLE;
}

static void find_folder(struct places *places) {
    int mounted = count_shares(places);
    if (mounted == 0) {
        join(places->folder, sizeof places->folder, VGPU_SHARE, "");
    } else if (mounted != 1) {
        places->folder[0] = '\0';
    }
    places->late_bound = mounted != 0 || may_exist(VGPU_SHARE "/policy", true);
}
#endif

static const char *region_from_environment(void) {
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    return path != NULL && path[0] != '\0' ? path : NULL;
}

void places_find(struct places *places) {
    int saved = errno;
    memset(places, 0, sizeof *places);
    find_folder(places);
    bool somewhere = places->folder[0] != '\0';
    const char *region = region_from_environment();
    places->policy[0] = '\0';
    if (places->late_bound && somewhere) {
        join(places->policy, sizeof places->policy, places->folder, "/policy/policy");
    }
    if (somewhere) {
        join(places->state, sizeof places->state, places->folder, "/state");
    }
    places->state_made_by_agent = places->late_bound || may_exist(places->state, false);
    if (!places->state_made_by_agent) {
        join(places->state, sizeof places->state, region != NULL ? region : HAMI_DEFAULT_REGION, ".state");
    }
    if (region != NULL) {
        join(places->mirror, sizeof places->mirror, region, "");
    } else if (!places->late_bound) {
        join(places->mirror, sizeof places->mirror, HAMI_DEFAULT_REGION, "");
    }
    errno = saved;
}
