/* The clocks, and the time that work takes on a card. Without the lock: a launch is one compare-and-swap, which no SIGKILL can cut in
 * two. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "store_internal.h"

static pthread_once_t clock_once = PTHREAD_ONCE_INIT;
static bool clock_is_virtual;

static void read_clock(void)
{
    const char *kind = getenv("FAKEGPU_CLOCK");
    clock_is_virtual = kind && strcmp(kind, "virtual") == 0;
}

bool store_clock_is_virtual(void)
{
    pthread_once(&clock_once, read_clock);
    return clock_is_virtual;
}

uint64_t store_monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The mapping, opened if need be; NULL without a usable folder. */
static struct store_state *mapped(void)
{
    if (!store_map_is_own() && store_lock()) {
        store_unlock();
    }
    return store_map();
}

uint64_t store_now(void)
{
    if (!store_clock_is_virtual()) {
        return store_monotonic();
    }
    struct store_state *map = mapped();
    return map ? __atomic_load_n(&map->virtual_now, __ATOMIC_ACQUIRE) : 0;
}

EXPORT void fakegpu_advance(uint64_t nanoseconds);
EXPORT void fakegpu_advance(uint64_t nanoseconds)
{
    struct store_state *map = mapped();
    if (!map) {
        return;
    }
    __atomic_add_fetch(&map->virtual_now, nanoseconds, __ATOMIC_ACQ_REL);
    __atomic_add_fetch(&map->advances, 1, __ATOMIC_ACQ_REL);
    int kept = errno;
    syscall(SYS_futex, &map->advances, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
    errno = kept;
}

static void wait_for_advance(struct store_state *map, uint64_t when)
{
    for (;;) {
        uint32_t seen = __atomic_load_n(&map->advances, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&map->virtual_now, __ATOMIC_ACQUIRE) >= when) {
            return;
        }
        struct timespec patience = {.tv_sec = 1}; /* a process that advanced may have been killed before it woke us */
        syscall(SYS_futex, &map->advances, FUTEX_WAIT, seen, &patience, NULL, 0);
    }
}

void store_sleep_until(uint64_t when)
{
    int kept = errno;
    if (store_clock_is_virtual()) {
        struct store_state *map = mapped();
        if (map) {
            wait_for_advance(map, when);
        }
    } else {
        struct timespec until = {.tv_sec = (time_t)(when / 1000000000u), .tv_nsec = (long)(when % 1000000000u)};
        while (store_monotonic() < when && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
        }
    }
    errno = kept;
}

static struct store_slot *slot_for_work(void)
{
    struct store_slot *slot = store_map_is_own() ? store_own_slot() : NULL;
    if (!slot && store_lock()) {
        slot = store_claim_slot();
        store_unlock();
    }
    return slot;
}

static uint64_t *end_of(uint32_t slot, int device, int clock)
{
    return &store_map()->ends[slot][device][clock];
}

void store_forget_work(uint32_t slot)
{
    for (int device = 0; device < FAKE_MAX_DEVICES; device++) {
        __atomic_store_n(end_of(slot, device, 0), 0, __ATOMIC_RELEASE);
        __atomic_store_n(end_of(slot, device, 1), 0, __ATOMIC_RELEASE);
    }
}

/* What the dead queued in front of the living stays: these have been told already when their work ends. */
static void drop_dead_work(int device, int clock, uint64_t now)
{
    struct store_timeline *timeline = &store_map()->cards[device].timeline[clock];
    for (;;) {
        uint64_t seen = __atomic_load_n(&timeline->end, __ATOMIC_ACQUIRE);
        uint64_t end = now;
        for (uint32_t n = 0; n < store_map()->slots_used; n++) {
            uint64_t noted = __atomic_load_n(end_of(n, device, clock), __ATOMIC_ACQUIRE);
            end = noted > end ? noted : end;
        }
        if (end >= seen) {
            return;
        }
        if (__atomic_compare_exchange_n(&timeline->end, &seen, end, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            uint64_t busy = __atomic_load_n(&timeline->busy, __ATOMIC_ACQUIRE);
            __atomic_sub_fetch(&timeline->busy, seen - end < busy ? seen - end : busy, __ATOMIC_ACQ_REL);
            return;
        }
    }
}

void store_drop_dead_work(void)
{
    uint64_t now = store_monotonic();
    for (int device = 0; device < FAKE_MAX_DEVICES; device++) {
        drop_dead_work(device, 0, now);
        drop_dead_work(device, 1, __atomic_load_n(&store_map()->virtual_now, __ATOMIC_ACQUIRE));
    }
}

/* Before a process queues behind the work that ends at `end`: is that work's process alive? One question to the kernel, no lock. */
static void look_for_dead_work(int device, int clock, uint64_t end)
{
    uint32_t used = __atomic_load_n(&store_map()->slots_used, __ATOMIC_ACQUIRE);
    for (uint32_t n = 0; n < used; n++) {
        if (__atomic_load_n(end_of(n, device, clock), __ATOMIC_ACQUIRE) < end) {
            continue;
        }
        if (!store_slot_lives(n, NULL) && store_lock()) {
            store_sweep();
            store_unlock();
        }
        return;
    }
}

/* Threads of one process may both be here. */
static void note_end(uint64_t *noted, uint64_t end)
{
    uint64_t seen = __atomic_load_n(noted, __ATOMIC_ACQUIRE);
    while (seen < end && !__atomic_compare_exchange_n(noted, &seen, end, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
}

uint64_t store_run(int device, uint64_t after, uint64_t cost)
{
    struct store_slot *slot = slot_for_work();
    if (!slot || device < 0 || device >= FAKE_MAX_DEVICES) {
        return after + cost;
    }
    int clock = store_clock_is_virtual();
    struct store_timeline *timeline = &store_map()->cards[device].timeline[clock];
    uint64_t *noted = end_of((uint32_t)(slot - store_map()->slots), device, clock);
    uint64_t seen = __atomic_load_n(&timeline->end, __ATOMIC_ACQUIRE);
    if (seen > after && seen > __atomic_load_n(noted, __ATOMIC_ACQUIRE)) {
        look_for_dead_work(device, clock, seen);
        seen = __atomic_load_n(&timeline->end, __ATOMIC_ACQUIRE);
    }
    uint64_t end;
    do {
        end = (seen > after ? seen : after) + cost;
        note_end(noted, end);
    } while (!__atomic_compare_exchange_n(&timeline->end, &seen, end, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    __atomic_add_fetch(&timeline->busy, cost, __ATOMIC_ACQ_REL);
    __atomic_add_fetch(&slot->use[device].busy[clock], cost, __ATOMIC_ACQ_REL);
    return end;
}

/* Reserved time that lies ahead is not busy yet; it is at the timeline's end. */
uint64_t store_busy(int device, uint64_t *own)
{
    if (own) {
        *own = 0;
    }
    struct store_state *map = mapped();
    if (!map || device < 0 || device >= FAKE_MAX_DEVICES) {
        return 0;
    }
    int clock = store_clock_is_virtual();
    struct store_timeline *timeline = &map->cards[device].timeline[clock];
    uint64_t end = __atomic_load_n(&timeline->end, __ATOMIC_ACQUIRE);
    uint64_t busy = __atomic_load_n(&timeline->busy, __ATOMIC_ACQUIRE);
    uint64_t now = store_now();
    uint64_t ahead = end > now ? end - now : 0;
    busy -= ahead < busy ? ahead : busy;
    struct store_slot *slot = own ? store_own_slot() : NULL;
    if (slot) {
        uint64_t mine = __atomic_load_n(&slot->use[device].busy[clock], __ATOMIC_ACQUIRE);
        *own = mine < busy ? mine : busy;
    }
    return busy;
}

bool store_working(int device)
{
    struct store_state *map = mapped();
    if (!map || device < 0 || device >= FAKE_MAX_DEVICES) {
        return false;
    }
    return __atomic_load_n(&map->cards[device].timeline[store_clock_is_virtual()].end, __ATOMIC_ACQUIRE) > store_now();
}
