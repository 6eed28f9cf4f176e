/* What the parts of the store share: the layout of the file `state`, and the lock around it.
 *
 * The lock is an OFD write lock on the first byte of `state`, under a mutex between threads. Not a robust mutex in the file: the kernel
 * knows the owner of such a mutex by its thread id alone, and the first processes of all containers have the same. What a slot holds is
 * the only truth, sums are added up when they are needed: a process killed between any two instructions leaves nothing wrong behind.
 */
#ifndef FAKEGPU_STORE_INTERNAL_H
#define FAKEGPU_STORE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "store.h"

#ifndef EXPORT
#define EXPORT __attribute__((visibility("default")))
#endif

#define STORE_MAGIC 0x314552545547464Bull
#define STORE_VERSION 2u
#define STORE_OWNER_SIZE 192
#define STORE_OWNERS 1024

struct store_use {
    uint64_t process; /* bytes, what the driver counts for the process */
    uint64_t managed; /* bytes on the card, in no process's account */
    uint64_t busy[2]; /* nanoseconds, by clock */
    uint64_t peak;    /* bytes of the last line about this process */
};

struct store_slot {
    int32_t pid; /* as the process saw itself; 0: never owned, or swept */
    int32_t reserved;
    char owner[STORE_OWNER_SIZE];
    struct store_use use[FAKE_MAX_DEVICES];
};

/* One timeline for each clock: a run with the virtual one must not wait for times of the other. */
struct store_timeline {
    uint64_t end;
    uint64_t busy;
};

struct store_card {
    char uuid[96];
    uint64_t peak;
    struct store_timeline timeline[2];
};

/* Peaks of containers outlive their processes. A full table forgets the oldest, which costs only a needless line later. */
struct store_owner {
    char owner[STORE_OWNER_SIZE];
    uint64_t peak[FAKE_MAX_DEVICES];
};

struct store_state {
    uint64_t magic; /* written last */
    uint32_t version;
    uint32_t size;
    char boot_id[40];
    uint64_t virtual_now;
    uint32_t advances; /* futex: changes with every step of the virtual clock */
    uint32_t slots_used;
    uint64_t peaks_file; /* inode of peaks.jsonl, and its length after the last line: another file has none of the old lines */
    uint64_t peaks_length;
    uint32_t owners_used;
    uint32_t owners_next;
    struct store_card cards[FAKE_MAX_DEVICES];
    struct store_owner owners[STORE_OWNERS];
    struct store_slot slots[FAKE_MAX_SLOTS];
    /* When the last work of a slot's process ends, by clock: noted before it is on the timeline, so never too early. Read and written
     * without the lock, so not in the slot, which is emptied at one stroke. */
    uint64_t ends[FAKE_MAX_SLOTS][FAKE_MAX_DEVICES][2];
};

/* The folder, without a slash at its end. */
const char *store_folder(void);
bool store_path(char *path, unsigned long size, const char *name);

/* Opens what is not open yet and takes the lock. False: there is no usable folder, and nothing is locked. */
bool store_lock(void);
void store_unlock(void);

/* With the lock held (the mapping itself may be read without, once store_lock() has succeeded in this process). */
struct store_state *store_map(void);
bool store_map_is_own(void); /* opened by this process, not by the parent it was forked from */
struct store_slot *store_own_slot(void);   /* NULL: this process has none yet */
struct store_slot *store_claim_slot(void); /* takes one if need be; NULL: all are taken */
bool store_slot_lives(uint32_t number, int *pid);
void store_sweep(void); /* empties the slots of dead processes and takes their work off the timelines */

/* With the lock held: unpaid bytes on a card at the moment (store_shared.c). With `holders`, of FAKE_MAX_SLOTS, each piece
 * is added to the slot of one process that holds it. */
uint64_t store_orphans(const char *uuid, uint64_t *holders);

/* With the lock held: writes the lines of the peaks that the own slot's last allocation raised. */
void store_note_peaks(int device);
/* Whether it raised any. What dead processes left is not looked at here. */
bool store_peaks_rise(int device);
void store_check_peaks_file(void); /* forgets the noted peaks if the file that has their lines is gone */

/* `<pod UID>/<container>` of this process, or empty: see tests/e2e/auditor/peaks.py. */
void store_owner_name(char *owner, unsigned long size);

/* With the lock held: the slot's process queues no work (any more); and ends the cards' timelines where the work of the living ends. */
void store_forget_work(uint32_t slot);
void store_drop_dead_work(void);

bool store_clock_is_virtual(void);
uint64_t store_monotonic(void);

#endif
