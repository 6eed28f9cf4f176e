/* This process's own books, all under one lock: which pointer, handle, array, pool, graph or context was charged with what. The lock is
 * held for nanoseconds and never across a driver call.
 */
#ifndef HAMI_VGPU_BOOKS_H
#define HAMI_VGPU_BOOKS_H

#include "table.h"

void books_lock(void);
void books_unlock(void);

/* A second lock, taken before the books' and the state's: around reading what the driver has of a kind and writing that into the ledger.
 * Two threads that did so at once would write in another order than they read. */
void books_settling(void);
void books_settled(void);

struct books {
    struct table allocations; /* device pointer -> size, card, context */
    struct table managed;     /* pointer of managed memory -> size, cards, context */
    struct table pool_pieces; /* pointer of a pool of managed memory -> size, pool */
    struct table small_pages; /* number of a 2 MiB page -> live allocations in it (size), card */
    struct table shared;      /* device pointers that other processes may have opened */
    struct table handles;     /* cuMemCreate's handle -> physical object */
    struct table mappings;    /* mapped address -> size, physical object (owner) */
    struct table objects;     /* physical object -> size, card; see vmm.c */
    struct table arrays;      /* array or mipmapped array -> charge, card, context */
    struct table graphs;      /* graph exec -> charge, card */
    struct table contexts;    /* context -> local bytes per thread, card */
};
extern struct books books;

void books_forget_after_fork(void);

#endif
