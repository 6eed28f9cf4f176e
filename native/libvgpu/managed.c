/* See managed.h. The order of things keeps a piece from slipping through between two threads: who makes a piece writes it down and then
 * looks for contexts; who makes a context counts it and then looks for pieces.
 */
#include "managed.h"

#include <stdlib.h>

#include "books.h"
#include "contexts.h"
#include "guard.h"
#include "pools.h"

/* books.managed: key = pointer, size = bytes, index = card_set, kind = 0 or KIND_DISGUISED, owner = context. */

static uint64_t bytes_of(uint64_t size) { return round_up(size, DEVICE_PAGE); }

/* With the books locked: the piece is charged on these cards from now on; those that are new for it. */
static card_set add_cards(struct record *piece, card_set cards) {
    card_set fresh = cards & ~(card_set)piece->index;
    piece->index |= (int32_t)fresh;
    return fresh;
}

void managed_made(CUdeviceptr pointer, size_t size, card_set cards, uint64_t reserved, int kind) {
    books_lock();
    table_put(&books.managed, &(struct record){.key = pointer,
                                               .size = size,
                                               .index = (int32_t)cards,
                                               .kind = kind,
                                               .owner = (uint64_t)(uintptr_t)contexts_owner()});
    books_unlock();
    cards_settle(cards, reserved, LEDGER_MANAGED, bytes_of(size));
    if (kind == KIND_DISGUISED) {
        return;
    }
    books_lock();
    struct record *piece = table_find(&books.managed, pointer);
    card_set late = piece != NULL ? add_cards(piece, contexts_cards()) : 0;
    books_unlock();
    cards_settle(late, 0, LEDGER_MANAGED, bytes_of(size));
}

bool managed_take(CUdeviceptr pointer, struct record *piece) {
    books_lock();
    bool known = table_take(&books.managed, pointer, piece);
    books_unlock();
    return known;
}

void managed_gone(const struct record *piece) { cards_return((card_set)piece->index, LEDGER_MANAGED, bytes_of(piece->size)); }

void managed_put_back(const struct record *piece) {
    books_lock();
    table_put(&books.managed, piece);
    books_unlock();
}

void managed_drop_context(CUcontext context) {
    books_lock();
    size_t count;
    struct record *gone = table_take_of(&books.managed, (uint64_t)(uintptr_t)context, &count);
    books_unlock();
    for (size_t at = 0; at < count; at++) {
        managed_gone(&gone[at]);
    }
    table_free_taken(gone, count);
}

/* With the books locked: bytes that are not charged on a card yet; with `mark` they are from now on. */
static uint64_t not_charged(int index, bool mark) {
    uint64_t bytes = 0;
    for (size_t at = 0; at < books.managed.room; at++) {
        struct record *piece = &books.managed.records[at];
        bool there = piece->key == 0 || piece->kind == KIND_DISGUISED || ((card_set)piece->index & card_alone(index)) != 0;
        bytes += there ? 0 : bytes_of(piece->size);
        if (!there && mark) {
            add_cards(piece, card_alone(index));
        }
    }
    return bytes;
}

bool managed_follow(int index) {
    books_lock();
    uint64_t expected = not_charged(index, false) + pools_not_charged(index, false);
    books_unlock();
    if (expected > 0 && !ledger_reserve(index, expected)) {
        return false;
    }
    books_lock();
    uint64_t bytes = not_charged(index, true) + pools_not_charged(index, true);
    books_unlock();
    if (expected > 0 || bytes > 0) {
        ledger_settle(index, expected, LEDGER_MANAGED, bytes);
    }
    return true;
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags) {
    if (!guard_on()) {
        return real.cuMemAllocManaged(pointer, size, flags);
    }
    int index = guard_current_index();
    if (index == GUARD_FORWARD || size == 0 || pointer == NULL) {
        return real.cuMemAllocManaged(pointer, size, flags);
    }
    if (index == GUARD_REFUSE) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    card_set cards = card_alone(index) | contexts_cards();
    uint64_t reserved = bytes_of(size);
    if (!cards_reserve(cards, reserved)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = real.cuMemAllocManaged(pointer, size, flags);
    if (result != CUDA_SUCCESS) {
        cards_return(cards, LEDGER_PENDING, reserved);
        return result;
    }
    managed_made(*pointer, size, cards, reserved, 0);
    return result;
}

/* --- prefetch and advice ------------------------------------------------------------------------------------------------------------ */

/* A range that shall go to a location. */
struct move {
    CUdeviceptr start; /* of the piece that it is in; 0 if that is none of ours */
    card_set added;    /* on which the piece was not charged before */
    card_set of_pool;  /* on which its pool was not */
};

/* Charges a piece on cards that are new for it. */
static bool charge_piece(struct move *move, card_set cards) {
    books_lock();
    const struct record *known = table_find(&books.managed, move->start);
    card_set missing = known != NULL ? cards & ~(card_set)known->index : 0;
    uint64_t bytes = known != NULL ? bytes_of(known->size) : 0;
    books_unlock();
    if (!cards_reserve(missing, bytes)) {
        return false;
    }
    books_lock();
    struct record *piece = table_find(&books.managed, move->start);
    move->added = piece != NULL ? add_cards(piece, missing) : 0;
    books_unlock();
    cards_settle(move->added, bytes, LEDGER_MANAGED, bytes);
    cards_return(missing & ~move->added, LEDGER_PENDING, bytes);
    return true;
}

/* False: refuse. */
static bool may_move(CUdeviceptr pointer, const CUmemLocation *location, struct move *move) {
    *move = (struct move){0};
    if (location_is_host(location)) {
        return true;
    }
    struct whereabouts where = location_find(location);
    if (where.forward || where.refuse) {
        return where.forward;
    }
    if (real.cuPointerGetAttribute(&move->start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer) != CUDA_SUCCESS) {
        move->start = 0; /* memory of the program's own: see "What it cannot do" */
    }
    return move->start == 0 || (charge_piece(move, where.cards) && pools_may_move(move->start, where.cards, &move->of_pool));
}

static CUresult moved(const struct move *move, CUresult result) {
    if (result != CUDA_SUCCESS && move->added != 0) {
        books_lock();
        struct record *piece = table_find(&books.managed, move->start);
        uint64_t bytes = piece != NULL ? bytes_of(piece->size) : 0;
        if (piece != NULL) {
            piece->index &= (int32_t)~move->added;
        }
        books_unlock();
        cards_return(piece != NULL ? move->added : 0, LEDGER_MANAGED, bytes);
    }
    if (result != CUDA_SUCCESS && move->of_pool != 0) {
        pools_did_not_move(move->start, move->of_pool);
    }
    return result;
}

/* As the first kinds of the functions say it. */
static CUmemLocation by_number(CUdevice device) {
    return (CUmemLocation){.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

#define MOVE(location, call)                         \
    if (!guard_on()) {                               \
        return call;                                 \
    }                                                \
    struct move move;                                \
    if (!may_move(pointer, location, &move)) {       \
        return CUDA_ERROR_OUT_OF_MEMORY;             \
    }                                                \
    return moved(&move, call)

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream) {
    CUmemLocation location = by_number(device);
    MOVE(&location, real.cuMemPrefetchAsync(pointer, size, device, stream));
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream) {
    CUmemLocation location = by_number(device);
    MOVE(&location, real.cuMemPrefetchAsync_ptsz(pointer, size, device, stream));
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags, CUstream stream) {
    MOVE(&location, real.cuMemPrefetchAsync_v2(pointer, size, location, flags, stream));
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags, CUstream stream) {
    MOVE(&location, real.cuMemPrefetchAsync_v2_ptsz(pointer, size, location, flags, stream));
}

/* Advice that brings nothing to a card does not say a location either. */
static bool brings_nothing(int advice) {
    return advice == CU_MEM_ADVISE_SET_READ_MOSTLY || advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY ||
           advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t size, int advice, CUdevice device) {
    CUmemLocation location = by_number(brings_nothing(advice) ? CU_DEVICE_CPU : device);
    MOVE(&location, real.cuMemAdvise(pointer, size, advice, device));
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t size, int advice, CUmemLocation location) {
    CUmemLocation target = brings_nothing(advice) ? by_number(CU_DEVICE_CPU) : location;
    MOVE(&target, real.cuMemAdvise_v2(pointer, size, advice, location));
}

typedef CUresult (*prefetch_batch)(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations, size_t *firsts,
                                   size_t location_count, unsigned long long flags, CUstream stream);

/* Range i goes to the last location whose first range is not behind it. */
static CUresult prefetch_all(prefetch_batch call, CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations,
                             size_t *firsts, size_t location_count, unsigned long long flags, CUstream stream) {
    bool sound = guard_on() && pointers != NULL && locations != NULL && firsts != NULL && location_count > 0 && count > 0;
    struct move *moves = sound ? calloc(count, sizeof *moves) : NULL;
    if (!sound) {
        return call(pointers, sizes, count, locations, firsts, location_count, flags, stream);
    }
    bool may = moves != NULL;
    size_t checked = 0;
    for (size_t place = 0; may && checked < count; checked++) {
        while (place + 1 < location_count && firsts[place + 1] <= checked) {
            place++;
        }
        may = may_move(pointers[checked], &locations[place], &moves[checked]);
    }
    CUresult result =
        may ? call(pointers, sizes, count, locations, firsts, location_count, flags, stream) : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t at = 0; at < checked; at++) {
        moved(&moves[at], result);
    }
    free(moves);
    return result;
}

#define PREFETCH_BATCH(name)                                                                                                   \
    CUresult name(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations, size_t *firsts,                \
                  size_t location_count, unsigned long long flags, CUstream stream) {                                          \
        guard_on();                                                                                                            \
        return prefetch_all(real.name, pointers, sizes, count, locations, firsts, location_count, flags, stream);              \
    }

PREFETCH_BATCH(cuMemPrefetchBatchAsync)
PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)
