/* The file `devices`, and which of its cards a process sees. See store.h. */
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "store_internal.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct fake_device cards[FAKE_MAX_DEVICES];
static int card_count;
static char problem[4096];

bool store_field(const struct fake_device *device, const char *key, char *value, int size)
{
    size_t length = strlen(key);
    for (const char *field = device->line; *field;) {
        size_t width = strcspn(field, "\t");
        if (strncmp(field, key, length) == 0 && field[length] == '=') {
            snprintf(value, (size_t)size, "%.*s", (int)(width - length - 1), field + length + 1);
            return true;
        }
        field += width + (field[width] == '\t');
    }
    return false;
}

static bool read_text(const struct fake_device *card, const char *key, char *value, int size)
{
    if (store_field(card, key, value, size) && *value) {
        return true;
    }
    snprintf(problem, sizeof problem, "devices, card %d: no %s", card_count, key);
    return false;
}

static bool read_number(const struct fake_device *card, const char *key, uint64_t lowest, uint64_t highest, uint64_t *number)
{
    char text[64];
    char *end;
    if (!read_text(card, key, text, sizeof text)) {
        return false;
    }
    errno = 0;
    *number = strtoull(text, &end, 10);
    if (errno || *end || !isdigit((unsigned char)text[0]) || *number < lowest || *number > highest) {
        snprintf(problem, sizeof problem, "devices, card %d: %s=%s is no whole number from %llu to %llu", card_count, key, text,
                 (unsigned long long)lowest, (unsigned long long)highest);
        return false;
    }
    return true;
}

static bool read_small(const struct fake_device *card, const char *key, int *number)
{
    uint64_t value = 0;
    bool good = read_number(card, key, 0, 1u << 20, &value);
    *number = (int)value;
    return good;
}

static bool read_card(struct fake_device *card, const char *line)
{
    memset(card, 0, sizeof *card);
    if (strlen(line) >= sizeof card->line) {
        snprintf(problem, sizeof problem, "devices, card %d: the line is longer than %zu bytes", card_count, sizeof card->line - 1);
        return false;
    }
    memcpy(card->line, line, strlen(line));
    return read_text(card, "uuid", card->uuid, sizeof card->uuid) && read_text(card, "name", card->name, sizeof card->name) &&
           read_text(card, "bus", card->bus, sizeof card->bus) && read_number(card, "memory", FAKE_PAGE, 1ull << 50, &card->memory) &&
           read_number(card, "context", 0, card->memory, &card->context) && read_small(card, "sms", &card->sms) &&
           read_small(card, "threads", &card->threads) && read_small(card, "major", &card->major) &&
           read_small(card, "minor", &card->minor) && read_small(card, "numa", &card->numa);
}

static void read_devices(void)
{
    char path[4096];
    FILE *file = store_path(path, sizeof path, "devices") ? fopen(path, "re") : NULL;
    if (!file) {
        snprintf(problem, sizeof problem, "%.2000s/devices: %s", store_folder(), strerror(errno));
        return;
    }
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while ((length = getline(&line, &room, file)) > 0) {
        line[length - (line[length - 1] == '\n')] = 0;
        if (!*line) {
            continue;
        }
        if (card_count == FAKE_MAX_DEVICES) {
            snprintf(problem, sizeof problem, "devices: more than %d cards", FAKE_MAX_DEVICES);
        }
        if (card_count == FAKE_MAX_DEVICES || !read_card(&cards[card_count], line)) {
            card_count = 0;
            break;
        }
        card_count++;
    }
    free(line);
    fclose(file);
}

int store_devices(const struct fake_device **devices)
{
    pthread_once(&once, read_devices);
    *devices = cards;
    return card_count;
}

const char *store_problem(void)
{
    pthread_once(&once, read_devices);
    return problem;
}

/* Copies the next entry of a comma-separated list, without blanks around it. False at the end. */
static bool next_entry(const char **list, char *entry, size_t size)
{
    if (!*list) {
        return false;
    }
    const char *start = *list + strspn(*list, " ");
    size_t width = strcspn(start, ",");
    *list = start[width] ? start + width + 1 : NULL;
    while (width > 0 && start[width - 1] == ' ') {
        width--;
    }
    snprintf(entry, size, "%.*s", (int)width, start);
    return true;
}

/* A MIG device's UUID stands for the card that has it. `mig` is a list of `<profile>:<UUID>`. */
static bool has_mig_device(const struct fake_device *card, const char *uuid, size_t length)
{
    char list[sizeof card->line];
    if (strncmp(uuid, "MIG-", 4) != 0 || !store_field(card, "mig", list, sizeof list)) {
        return false;
    }
    for (const char *at = list; (at = strchr(at, ':')) != NULL;) {
        at++;
        if (strncasecmp(at, uuid, length) == 0) {
            return true;
        }
    }
    return false;
}

static bool parse_index(const char *entry, int *index)
{
    char *end;
    long number = strtol(entry, &end, 10);
    if (!isdigit((unsigned char)entry[0]) || *end || number > 1000) {
        return false;
    }
    *index = (int)number;
    return true;
}

/* Position in `among` of the one card that the entry names; -1 for none or several. `whole`: a prefix of a UUID is not enough. */
static int find_card(const char *entry, const int *among, int count, bool whole)
{
    int index;
    if (parse_index(entry, &index)) {
        return index < count ? index : -1;
    }
    size_t length = strlen(entry);
    int found = -1;
    if (length <= 4 || (strncmp(entry, "GPU-", 4) != 0 && strncmp(entry, "MIG-", 4) != 0)) {
        return -1;
    }
    for (int i = 0; i < count; i++) {
        const struct fake_device *card = &cards[among[i]];
        bool named = whole ? strcasecmp(card->uuid, entry) == 0 : strncasecmp(card->uuid, entry, length) == 0;
        if (!named && !has_mig_device(card, entry, length)) {
            continue;
        }
        if (found >= 0) {
            return -1;
        }
        found = i;
    }
    return found;
}

int store_visible_nvml(int indexes[FAKE_MAX_DEVICES])
{
    const struct fake_device *devices;
    int all[FAKE_MAX_DEVICES];
    int count = store_devices(&devices);
    const char *wanted = getenv("NVIDIA_VISIBLE_DEVICES");
    bool seen[FAKE_MAX_DEVICES] = {false};
    char entry[128];
    for (int i = 0; i < count; i++) {
        all[i] = i;
        seen[i] = !wanted || strcmp(wanted, "all") == 0;
    }
    if (wanted && strcmp(wanted, "void") != 0 && strcmp(wanted, "none") != 0) {
        while (next_entry(&wanted, entry, sizeof entry)) {
            int position = find_card(entry, all, count, true);
            if (position >= 0) {
                seen[position] = true;
            }
        }
    }
    int visible = 0;
    for (int i = 0; i < count; i++) {
        if (seen[i]) {
            indexes[visible++] = i; /* in the order of the bus, whatever the order of the list */
        }
    }
    return visible;
}

int store_visible_cuda(int indexes[FAKE_MAX_DEVICES])
{
    int granted[FAKE_MAX_DEVICES];
    int count = store_visible_nvml(granted);
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted) {
        memcpy(indexes, granted, sizeof granted);
        return count;
    }
    bool taken[FAKE_MAX_DEVICES] = {false};
    char entry[128];
    int visible = 0;
    while (next_entry(&wanted, entry, sizeof entry)) {
        int position = find_card(entry, granted, count, false);
        if (position < 0 || taken[position]) {
            break;
        }
        taken[position] = true;
        indexes[visible++] = granted[position];
    }
    return visible;
}
