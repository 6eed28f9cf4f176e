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
        struct timespec patience = {.tv_sec = 1}; /* one who advanced may have been killed before he woke us */
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

uint64_t store_run(int device, uint64_t after, uint64_t cost)
{
    struct store_slot *slot = slot_for_work();
    if (!slot || device < 0 || device >= FAKE_MAX_DEVICES) {
        return after + cost;
    }
    int clock = store_clock_is_virtual();
    struct store_timeline *timeline = &store_map()->cards[device].timeline[clock];
    uint64_t seen = __atomic_load_n(&timeline->end, __ATOMIC_ACQUIRE);
    uint64_t end;
    do {
        end = (seen > after ? seen : after) + cost;
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
