/* The record for the auditor, peaks.jsonl: the format, and when a line is written, are told in tests/e2e/auditor/peaks.py. Memory on the
 * card that is in no process's account (managed) counts here too: the process allocated it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store_internal.h"

enum { LONGEST_LINE = 4096 };

struct peaks {
    uint64_t process, owner, card;
};

static bool rises(uint64_t bytes, uint64_t peak)
{
    return (bytes + FAKE_MIB - 1) / FAKE_MIB > (peak + FAKE_MIB - 1) / FAKE_MIB;
}

static struct peaks present(int device)
{
    struct store_state *map = store_map();
    const struct store_slot *own = store_own_slot();
    struct peaks now = {.process = own->use[device].process + own->use[device].managed,
                        .card = store_orphans(map->cards[device].uuid, NULL)};
    for (uint32_t n = 0; n < map->slots_used; n++) {
        const struct store_slot *slot = &map->slots[n];
        uint64_t bytes = slot->pid ? slot->use[device].process + slot->use[device].managed : 0;
        if (bytes == 0) {
            continue;
        }
        now.card += bytes;
        now.owner += strncmp(slot->owner, own->owner, sizeof own->owner) == 0 ? bytes : 0;
    }
    return now;
}

static struct store_owner *noted_owner(const char *name, bool add)
{
    struct store_state *map = store_map();
    for (uint32_t n = 0; n < map->owners_used && n < STORE_OWNERS; n++) {
        if (strncmp(map->owners[n].owner, name, sizeof map->owners[n].owner) == 0) {
            return &map->owners[n];
        }
    }
    if (!add) {
        return NULL;
    }
    struct store_owner *entry = &map->owners[map->owners_next % STORE_OWNERS];
    memset(entry, 0, sizeof *entry);
    memcpy(entry->owner, name, strnlen(name, sizeof entry->owner - 1));
    map->owners_next = (map->owners_next + 1) % STORE_OWNERS;
    if (map->owners_used < STORE_OWNERS) {
        map->owners_used++;
    }
    return entry;
}

bool store_peaks_rise(int device)
{
    const struct store_slot *own = store_own_slot();
    struct peaks now = present(device);
    if (rises(now.process, own->use[device].peak) || rises(now.card, store_map()->cards[device].peak)) {
        return true;
    }
    if (!own->owner[0]) {
        return false;
    }
    const struct store_owner *noted = noted_owner(own->owner, false);
    return rises(now.owner, noted ? noted->peak[device] : 0);
}

static void forget_peaks(void)
{
    struct store_state *map = store_map();
    memset(map->owners, 0, sizeof map->owners);
    map->owners_used = map->owners_next = 0;
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        map->cards[i].peak = 0;
        for (uint32_t n = 0; n < map->slots_used; n++) {
            map->slots[n].use[i].peak = 0;
        }
    }
}

/* A process killed inside write(2) leaves the first part of its line, where the line crosses a page. The next writer takes that part away, or its
 * own line would be appended to it and both be lost. All of this happens under the store's lock. */
static off_t without_torn_line(int fd, off_t size)
{
    char last[LONGEST_LINE];
    ssize_t length = size < LONGEST_LINE ? (ssize_t)size : LONGEST_LINE;
    if (length == 0 || pread(fd, last, (size_t)length, size - length) != length || last[length - 1] == '\n') {
        return size;
    }
    ssize_t torn = 1;
    while (torn < length && last[length - 1 - torn] != '\n') {
        torn++;
    }
    return ftruncate(fd, size - torn) == 0 ? size - torn : size;
}

static int open_peaks(void)
{
    char path[4096];
    int fd = store_path(path, sizeof path, "peaks.jsonl") ? open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) < 0) {
        return fd;
    }
    if ((facts.st_mode & 0666) != 0666) {
        (void)fchmod(fd, 0666);
    }
    off_t size = without_torn_line(fd, facts.st_size);
    struct store_state *map = store_map();
    if (map->peaks_file != facts.st_ino || map->peaks_length > (uint64_t)size) {
        forget_peaks();
        map->peaks_file = facts.st_ino;
        map->peaks_length = (uint64_t)size;
    }
    return fd;
}

void store_check_peaks_file(void)
{
    int fd = open_peaks();
    if (fd >= 0) {
        close(fd);
    }
}

/* Quotes and everything outside printable ASCII are escaped: the line stays JSON whatever an owner is called. */
static void quote(char *quoted, size_t size, const char *text)
{
    size_t at = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c && at + 7 < size; c++) {
        if (*c < 0x20 || *c > 0x7e || *c == '"' || *c == '\\') {
            at += (size_t)snprintf(quoted + at, size - at, "\\u%04x", *c);
        } else {
            quoted[at++] = (char)*c;
        }
    }
    quoted[at] = 0;
}

static bool write_line(int fd, const struct fake_device *card, const char *owner, int pid, uint64_t bytes)
{
    char line[LONGEST_LINE];
    char quoted_card[sizeof card->uuid * 6 + 8];
    char quoted_owner[STORE_OWNER_SIZE * 6 + 8];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    quote(quoted_card, sizeof quoted_card, card->uuid);
    quote(quoted_owner, sizeof quoted_owner, owner);
    int length = snprintf(line, sizeof line,
                          "{\"time\": %lld.%06ld, \"card\": \"%s\", \"owner\": \"%s\", \"pid\": %d, \"bytes\": %llu, \"total\": %llu}\n",
                          (long long)now.tv_sec, now.tv_nsec / 1000, quoted_card, quoted_owner, pid, (unsigned long long)bytes,
                          (unsigned long long)card->memory);
    if (length <= 0 || (size_t)length >= sizeof line || write(fd, line, (size_t)length) != length) {
        return false;
    }
    store_map()->peaks_length += (uint64_t)length;
    return true;
}

/* The line first, the note of it after: killed between the two, the next rise writes one line too many, never one too few. */
static void note(int fd, const struct fake_device *card, const char *owner, int pid, uint64_t bytes, uint64_t *peak)
{
    if (rises(bytes, *peak) && write_line(fd, card, owner, pid, bytes)) {
        *peak = bytes;
    }
}

void store_note_peaks(int device)
{
    const struct fake_device *devices;
    if (device >= store_devices(&devices)) {
        return;
    }
    int fd = open_peaks();
    if (fd < 0) {
        return;
    }
    const struct fake_device *card = &devices[device];
    struct store_slot *own = store_own_slot();
    struct peaks now = present(device);
    note(fd, card, own->owner, own->pid, now.process, &own->use[device].peak);
    if (own->owner[0]) {
        note(fd, card, own->owner, 0, now.owner, &noted_owner(own->owner, true)->peak[device]);
    }
    note(fd, card, "", 0, now.card, &store_map()->cards[device].peak);
    close(fd);
}

/* `.../pods/<pod UID>/containers/<container name>/<something>` -> `<pod UID>/<container name>`. */
static bool owner_in_path(const char *source, char *owner, size_t size)
{
    const char *parts[6] = {NULL}; /* the last five slashes, last first, and the path's end */
    parts[0] = source + strlen(source);
    int found = 1;
    for (const char *c = parts[0]; found < 6 && c > source;) {
        if (*--c == '/') {
            parts[found++] = c;
        }
    }
    if (found < 6 || strncmp(parts[5], "/pods/", 6) != 0 || strncmp(parts[3], "/containers/", 12) != 0) {
        return false;
    }
    int uid = (int)(parts[3] - parts[4]) - 1;
    int name = (int)(parts[1] - parts[2]) - 1;
    if (uid <= 0 || name <= 0 || parts[0] - parts[1] <= 1) {
        return false;
    }
    snprintf(owner, size, "%.*s/%.*s", uid, parts[4] + 1, name, parts[2] + 1);
    return true;
}

void store_owner_name(char *owner, unsigned long size)
{
    const char *given = getenv("FAKEGPU_OWNER");
    owner[0] = 0;
    if (given) {
        snprintf(owner, size, "%s", given);
        return;
    }
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    if (!mounts) {
        return;
    }
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, mounts) > 0) {
        char *rest = line;
        const char *field[5] = {NULL}; /* id, parent, device, source in its file system, mount point */
        for (int i = 0; i < 5; i++) {
            field[i] = strsep(&rest, " ");
        }
        if (field[4] && strcmp(field[4], "/dev/termination-log") == 0) {
            (void)owner_in_path(field[3], owner, size);
        }
    }
    free(line);
    fclose(mounts);
}
