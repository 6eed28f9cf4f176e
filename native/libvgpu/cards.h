/* Which cards memory may lie on, and charging it on each of them.
 *
 * Only memory of the host is free. A location that names a card means that card; every other one (a kind that a newer driver adds, or
 * none) may be any card of this process, so such memory is charged on every granted card. Memory that may lie on a card that was not
 * granted is refused.
 */
#ifndef HAMI_VGPU_CARDS_H
#define HAMI_VGPU_CARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "ledger.h"

/* A set of cards: bit n is the card with index n in policy and state. */
typedef uint32_t card_set;

static inline card_set card_alone(int index) { return 1u << index; }

struct whereabouts {
    bool forward; /* the driver has an error to tell: nothing is to be charged */
    bool refuse;  /* of a card that was not granted, or it cannot be told */
    card_set cards;
};

bool location_is_host(const CUmemLocation *location);

/* Of a location that is not the host. */
struct whereabouts location_find(const CUmemLocation *location);
struct whereabouts location_unknown(void);

/* Whether giving memory, or access to it, to a location may reach a card that was not granted. */
bool location_is_foreign(const CUmemLocation *location);
bool device_is_foreign(CUdevice device);

/* The device of a context; -1 if it is none. */
CUdevice device_of_context(CUcontext context);

/* As ledger.h, on each card of a set; all of them or none. */
bool cards_reserve(card_set cards, uint64_t bytes);
void cards_settle(card_set cards, uint64_t reserved, enum ledger_kind kind, uint64_t used);
void cards_return(card_set cards, enum ledger_kind kind, uint64_t bytes);

#endif
