/* How much memory a card has, as the container shall see it: one snapshot for cuMemGetInfo, cuDeviceTotalMem and NVML, so that they
 * never contradict each other.
 */
#ifndef HAMI_VGPU_VIEWS_H
#define HAMI_VGPU_VIEWS_H

#include <stdbool.h>
#include <stdint.h>

struct memory_view {
    uint64_t total;
    uint64_t used;
    uint64_t free; /* used + free = total, unless more is used than the limit (it was lowered): then free is 0 and used is total */
};

/* The view of the card with this index (guard.h), whose real size is `physical_total`. False: there is nothing to show but what the
 * driver says (no limit on this card, or the driver does not tell which card it is). A card that was not granted has 0 of everything. */
bool view_of(int index, uint64_t physical_total, struct memory_view *view);

#endif
