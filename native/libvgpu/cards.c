/* See cards.h. */
#include "cards.h"

#include "guard.h"

bool location_is_host(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

struct whereabouts location_unknown(void) {
    struct whereabouts any = {0};
    int count = 0;
    if (real.cuDeviceGetCount(&count) != CUDA_SUCCESS) {
        any.forward = true;
    }
    for (int ordinal = 0; ordinal < count; ordinal++) {
        CUdevice device;
        int index = real.cuDeviceGet(&device, ordinal) == CUDA_SUCCESS ? guard_index_of(device) : GUARD_REFUSE;
        if (index >= 0) {
            any.cards |= card_alone(index);
        } else {
            any.refuse = true;
        }
    }
    return any;
}

static struct whereabouts device_find(CUdevice device) {
    int index = guard_index_of(device);
    return (struct whereabouts){
        .forward = index == GUARD_FORWARD, .refuse = index == GUARD_REFUSE, .cards = index >= 0 ? card_alone(index) : 0};
}

struct whereabouts location_find(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? device_find(location->id) : location_unknown();
}

bool device_is_foreign(CUdevice device) { return device_find(device).refuse; }

bool location_is_foreign(const CUmemLocation *location) { return !location_is_host(location) && location_find(location).refuse; }

CUdevice device_of_context(CUcontext context) {
    CUdevice device = -1;
    CUcontext popped;
    if (real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
        if (real.cuCtxGetDevice(&device) != CUDA_SUCCESS) {
            device = -1;
        }
        real.cuCtxPopCurrent_v2(&popped);
    }
    return device;
}

/* The lowest card of a set, which is taken out of it; -1 when it is empty. */
static int next_card(card_set *cards) {
    if (*cards == 0) {
        return -1;
    }
    int index = __builtin_ctz(*cards);
    *cards &= *cards - 1;
    return index;
}

bool cards_reserve(card_set cards, uint64_t bytes) {
    card_set had = 0;
    for (int index; (index = next_card(&cards)) >= 0;) {
        if (!ledger_reserve(index, bytes)) {
            cards_return(had, LEDGER_PENDING, bytes);
            return false;
        }
        had |= card_alone(index);
    }
    return true;
}

void cards_settle(card_set cards, uint64_t reserved, enum ledger_kind kind, uint64_t used) {
    for (int index; (index = next_card(&cards)) >= 0;) {
        ledger_settle(index, reserved, kind, used);
    }
}

void cards_return(card_set cards, enum ledger_kind kind, uint64_t bytes) {
    for (int index; (index = next_card(&cards)) >= 0;) {
        ledger_return(index, kind, bytes);
    }
}
