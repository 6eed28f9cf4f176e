/* Memory of the cards: who has how much. Each process writes into its own slot; sums are added up over the living. See store.h. */
#include <string.h>

#include "faults.h"
#include "store_internal.h"

static const struct fake_device *card_of(int device)
{
    const struct fake_device *devices;
    return device >= 0 && device < store_devices(&devices) ? &devices[device] : NULL;
}

static uint64_t sum_of(const struct store_state *map, int device)
{
    uint64_t sum = store_orphans(card_of(device)->uuid, NULL);
    for (uint32_t n = 0; n < map->slots_used; n++) {
        if (map->slots[n].pid != 0) {
            sum += map->slots[n].use[device].process + map->slots[n].use[device].managed;
        }
    }
    return sum;
}

static uint64_t room_on(const struct fake_device *card, int device)
{
    uint64_t gone = sum_of(store_map(), device) + fault_hidden(card->uuid);
    return gone < card->memory ? card->memory - gone : 0;
}

static uint64_t *account_of(struct store_slot *slot, int device, enum fake_kind kind)
{
    return kind == FAKE_MANAGED ? &slot->use[device].managed : &slot->use[device].process;
}

bool store_take(int device, enum fake_kind kind, uint64_t bytes)
{
    const struct fake_device *card = card_of(device);
    if (!card || !store_lock()) {
        return false;
    }
    struct store_slot *slot = store_claim_slot();
    bool fits = slot && bytes <= room_on(card, device);
    if (slot && !fits) {
        store_sweep();
        fits = bytes <= room_on(card, device);
    }
    if (fits) {
        *account_of(slot, device, kind) += bytes;
        if (store_peaks_rise(device)) {
            store_sweep(); /* what the dead had must not make a peak */
            store_note_peaks(device);
        }
    }
    store_unlock();
    return fits;
}

void store_give(int device, enum fake_kind kind, uint64_t bytes)
{
    if (!card_of(device) || !store_lock()) {
        return;
    }
    struct store_slot *slot = store_own_slot();
    if (slot) {
        uint64_t *account = account_of(slot, device, kind);
        *account -= bytes < *account ? bytes : *account;
    }
    store_unlock();
}

uint64_t store_used(int device)
{
    if (!card_of(device) || !store_lock()) {
        return 0;
    }
    store_sweep();
    uint64_t sum = sum_of(store_map(), device);
    store_unlock();
    return sum;
}

uint64_t store_own(int device)
{
    if (!card_of(device) || !store_lock()) {
        return 0;
    }
    const struct store_slot *slot = store_own_slot();
    uint64_t bytes = slot ? slot->use[device].process : 0;
    store_unlock();
    return bytes;
}

int store_slot(void)
{
    if (!store_lock()) {
        return -1;
    }
    const struct store_slot *slot = store_claim_slot();
    int number = slot ? (int)(slot - store_map()->slots) : -1;
    store_unlock();
    return number;
}

int store_processes(int device, struct fake_process *found, int room)
{
    static uint64_t inherited[FAKE_MAX_SLOTS]; /* of processes that died; under the lock */
    if (!card_of(device) || !store_lock()) {
        return 0;
    }
    int count = 0;
    const struct store_state *map = store_map();
    memset(inherited, 0, map->slots_used * sizeof *inherited);
    store_orphans(card_of(device)->uuid, inherited);
    for (uint32_t n = 0; n < map->slots_used; n++) {
        const struct store_slot *slot = &map->slots[n];
        int pid;
        uint64_t bytes = slot->use[device].process + inherited[n];
        if (slot->pid == 0 || bytes == 0 || !store_slot_lives(n, &pid)) {
            continue;
        }
        if (count < room) {
            const struct store_use *use = &slot->use[device];
            uint64_t busy = __atomic_load_n(&use->busy[store_clock_is_virtual()], __ATOMIC_ACQUIRE);
            found[count] =
                (struct fake_process){.pid = pid, .inner_pid = slot->pid, .slot = (int)n, .bytes = bytes, .busy = busy};
        }
        count++;
    }
    store_unlock();
    return count;
}
