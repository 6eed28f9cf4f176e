/* Reading the agent's policy file. See policy_file.h.
 *
 * The agent writes the file elsewhere and renames it into place, so an open file never changes: one read is one policy. A link, a pipe
 * or a folder in its place is not the agent's work and counts as no file, and neither does a file that a pod's volume put over it.
 */
#include "policy_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint32_t crc32_ieee(const unsigned char *bytes, size_t count) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

static struct limits_stamp stamp_of(const struct stat *found) {
    return (struct limits_stamp){
        .device = (uint64_t)found->st_dev,
        .inode = (uint64_t)found->st_ino,
        .size = (uint64_t)found->st_size,
        .seconds = (int64_t)found->st_mtim.tv_sec,
        .nanoseconds = (int64_t)found->st_mtim.tv_nsec,
    };
}

bool policy_file_stamp(const char *path, struct limits_stamp *stamp) {
    struct stat found;
    if (lstat(path, &found) != 0) {
        return false;
    }
    *stamp = stamp_of(&found);
    return true;
}

static bool read_all(int fd, void *into, size_t size) {
    size_t done = 0;
    while (done < size) {
        ssize_t got = pread(fd, (char *)into + done, size - done, (off_t)done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

/* As strict as the agent's own reader: what it would not write is not its work. */
static bool is_valid(const struct vgpu_policy *policy) {
    if (policy->magic != VGPU_POLICY_MAGIC || policy->version != VGPU_POLICY_VERSION || policy->size != sizeof *policy ||
        policy->device_count == 0 || policy->device_count > VGPU_MAX_DEVICES) {
        return false;
    }
    for (uint32_t i = 0; i < policy->device_count; i++) {
        const struct vgpu_policy_device *device = &policy->devices[i];
        if (device->uuid[0] == '\0' || device->uuid[VGPU_UUID_SIZE - 1] != '\0' || device->core_limit > 100) {
            return false;
        }
    }
    return policy->crc32 == crc32_ieee((const unsigned char *)policy, offsetof(struct vgpu_policy, crc32));
}

static bool read_valid(int fd, struct vgpu_policy *policy, struct limits_stamp *stamp) {
    struct stat found;
    if (fstat(fd, &found) != 0) {
        return false;
    }
    *stamp = stamp_of(&found);
    return S_ISREG(found.st_mode) && found.st_size == (off_t)sizeof *policy && read_all(fd, policy, sizeof *policy) && is_valid(policy);
}

/* The kernel says which mount an open file is in. */
static bool lies_in(int fd, uint64_t mount_id) {
    char path[64];
    char text[512];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    int info = open(path, O_RDONLY | O_CLOEXEC);
    if (info < 0) {
        return false;
    }
    ssize_t length = read(info, text, sizeof text - 1);
    close(info);
    text[length > 0 ? length : 0] = '\0';
    static const char name[] = "mnt_id:";
    const char *found = strstr(text, name);
    return found != NULL && strtoull(found + sizeof name - 1, NULL, 10) == mount_id;
}

bool policy_file_read(const struct places *places, struct limits *limits) {
    int fd;
    do {
        fd = open(places->policy, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return false;
    }
    struct vgpu_policy policy;
    bool valid = read_valid(fd, &policy, &limits->seen) && (places->mount_id == 0 || lies_in(fd, places->mount_id));
    close(fd);
    if (!valid) {
        return false;
    }
    struct limits_stamp seen = limits->seen;
    memset(limits, 0, sizeof *limits);
    limits->source = LIMITS_POLICY;
    limits->generation = policy.generation;
    limits->flags = policy.flags;
    limits->priority = policy.priority;
    limits->device_count = policy.device_count;
    limits->seen = seen;
    for (uint32_t i = 0; i < policy.device_count; i++) {
        const struct vgpu_policy_device *from = &policy.devices[i];
        struct device_limit *to = &limits->devices[i];
        memcpy(to->uuid, from->uuid, sizeof to->uuid);
        to->memory = from->memory_limit;
        to->context_bytes = from->context_bytes;
        to->cores = from->core_limit == 0 ? 100 : from->core_limit;
    }
    return true;
}
