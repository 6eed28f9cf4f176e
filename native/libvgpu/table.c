/* See table.h. Linear probing, at most 70 % full, deletion by moving the cluster's rest back: no tombstones, so it never slows down. */
#include "table.h"

#include <sys/mman.h>

#define FIRST_ROOM 256

static size_t place_of(const struct table *table, uint64_t key) {
    uint64_t mixed = key * 0x9E3779B97F4A7C15ull;
    return (size_t)(mixed ^ (mixed >> 32)) & (table->room - 1);
}

struct record *table_find(const struct table *table, uint64_t key) {
    if (table->room == 0) {
        return NULL;
    }
    for (size_t at = place_of(table, key); table->records[at].key != 0; at = (at + 1) & (table->room - 1)) {
        if (table->records[at].key == key) {
            return &table->records[at];
        }
    }
    return NULL;
}

static void insert(struct table *table, const struct record *record) {
    size_t at = place_of(table, record->key);
    while (table->records[at].key != 0) {
        at = (at + 1) & (table->room - 1);
    }
    table->records[at] = *record;
}

static struct record *map_records(size_t count) {
    void *memory = mmap(NULL, count * sizeof(struct record), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool grow(struct table *table) {
    struct table larger = {.room = table->room == 0 ? FIRST_ROOM : table->room * 2, .live = table->live};
    larger.records = map_records(larger.room);
    if (larger.records == NULL) {
        return false;
    }
    for (size_t at = 0; at < table->room; at++) {
        if (table->records[at].key != 0) {
            insert(&larger, &table->records[at]);
        }
    }
    table_forget(table);
    *table = larger;
    return true;
}

bool table_put(struct table *table, const struct record *record) {
    struct record *known = table_find(table, record->key);
    if (known != NULL) {
        *known = *record;
        return true;
    }
    if ((table->live + 1) * 10 > table->room * 7 && !grow(table)) {
        return false;
    }
    insert(table, record);
    table->live++;
    return true;
}

bool table_take(struct table *table, uint64_t key, struct record *taken) {
    struct record *found = table_find(table, key);
    if (found == NULL) {
        return false;
    }
    if (taken != NULL) {
        *taken = *found;
    }
    size_t hole = (size_t)(found - table->records);
    size_t mask = table->room - 1;
    for (size_t at = (hole + 1) & mask; table->records[at].key != 0; at = (at + 1) & mask) {
        size_t wanted = place_of(table, table->records[at].key);
        if (((at - wanted) & mask) >= ((at - hole) & mask)) { /* it may move back as far as the hole */
            table->records[hole] = table->records[at];
            hole = at;
        }
    }
    table->records[hole].key = 0;
    table->live--;
    return true;
}

void table_each(const struct table *table, void (*visit)(const struct record *record, void *context), void *context) {
    for (size_t at = 0; at < table->room; at++) {
        if (table->records[at].key != 0) {
            visit(&table->records[at], context);
        }
    }
}

struct record *table_take_of(struct table *table, uint64_t owner, size_t *count) {
    *count = 0;
    for (size_t at = 0; at < table->room; at++) {
        *count += table->records[at].key != 0 && table->records[at].owner == owner;
    }
    struct record *taken = *count == 0 ? NULL : map_records(*count);
    if (taken == NULL) {
        *count = 0;
        return NULL;
    }
    size_t found = 0;
    for (size_t at = 0; at < table->room; at++) {
        if (table->records[at].key != 0 && table->records[at].owner == owner) {
            taken[found++] = table->records[at];
        }
    }
    for (size_t at = 0; at < found; at++) {
        table_take(table, taken[at].key, NULL);
    }
    return taken;
}

void table_free_taken(struct record *taken, size_t count) {
    if (taken != NULL) {
        munmap(taken, count * sizeof(struct record));
    }
}

void table_forget(struct table *table) {
    if (table->room != 0) {
        munmap(table->records, table->room * sizeof(struct record));
    }
    *table = (struct table){0};
}
