/* Managed memory: what the driver moves between the host and the cards as it is used, and counts for no process.
 *
 * It moves to a card by a kernel that touches it, which needs a context there, or by prefetch and advice, which name the card. So each piece
 * is charged in full on every card where this process has a context, and on every card that a call names for it: never too little on any
 * card, wherever it lies. What it is charged with stays until it is freed.
 */
#ifndef HAMI_VGPU_MANAGED_H
#define HAMI_VGPU_MANAGED_H

#include <stdbool.h>
#include <stdint.h>

#include "cards.h"
#include "cuda_abi.h"
#include "table.h"

/* A record's kind for managed memory that was asked for as device memory: shown as device memory, charged where it is at home. */
#define KIND_DISGUISED 0x100

/* Managed memory was made under `reserved` bytes on each of `cards`. */
void managed_made(CUdeviceptr pointer, size_t size, card_set cards, uint64_t reserved, int kind);

/* Forgets a piece that is about to be freed; false if it is none. Then either gives back its charge or remembers it again. */
bool managed_take(CUdeviceptr pointer, struct record *piece);
void managed_gone(const struct record *piece);
void managed_put_back(const struct record *piece);

/* A context was made on a card: all managed memory may go there now. False: it does not fit. */
bool managed_follow(int index);

void managed_drop_context(CUcontext context);

#endif
