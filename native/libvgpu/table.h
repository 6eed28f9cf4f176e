/* A hash table from a 64-bit key to a small record, without an allocation per entry: open addressing over anonymous memory.
 *
 * O(1) however many entries there are (a program may have 100,000 live allocations), and it can be forgotten in a forked child without
 * touching the program's malloc. Not thread-safe: callers hold the book's lock.
 */
#ifndef HAMI_VGPU_TABLE_H
#define HAMI_VGPU_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct record {
    uint64_t key; /* 0 = empty */
    uint64_t size;
    uint64_t owner; /* the context, or what the table's user wants */
    int32_t index;  /* of the card */
    int32_t kind;
};

struct table {
    struct record *records;
    size_t room; /* a power of two, or 0 */
    size_t live;
};

struct record *table_find(const struct table *table, uint64_t key);

/* Adds or replaces. False if there is no memory. */
bool table_put(struct table *table, const struct record *record);

/* Removes; false if it was not there. `*taken` (may be NULL) gets the record. */
bool table_take(struct table *table, uint64_t key, struct record *taken);

/* Visits all; the visitor must not change the table. */
void table_each(const struct table *table, void (*visit)(const struct record *record, void *context), void *context);

/* Removes all records of an owner and returns them; NULL and 0 if there are none (or no memory to list them). */
struct record *table_take_of(struct table *table, uint64_t owner, size_t *count);
void table_free_taken(struct record *taken, size_t count);

void table_forget(struct table *table);

#endif
