/* Linear memory: cuMemAlloc, pitch, and the frees.
 *
 * Measured rule: what counts is the number of distinct 2 MiB pages under live allocations. Above 1 MiB an allocation has pages of its own;
 * smaller ones share pages, so whether one more costs nothing or 2 MiB is known only afterwards. Each small allocation is therefore
 * covered by one page held ready: it is taken into the call and must be whole again after it, else the allocation is undone and refused.
 * That page is what a full container keeps, and why small allocations that fit into existing pages still succeed there.
 */
#include "linear.h"

#include <stdbool.h>

#include "books.h"
#include "contexts.h"
#include "guard.h"
#include "ledger.h"
#include "managed.h"
#include "overhead.h"
#include "oversubscription.h"
#include "pools.h"
#include "test_points.h"

#define SMALL (1 * MIB) /* up to here allocations share pages */

static uint64_t ready_pages[VGPU_MAX_DEVICES]; /* bytes kept pending for small allocations; under the books' lock */

void linear_forget_after_fork(void) {
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        ready_pages[index] = 0;
    }
}

static uint64_t first_page(uint64_t pointer) { return pointer / DEVICE_PAGE; }
static uint64_t last_page(uint64_t pointer, uint64_t size) { return (pointer + size - 1) / DEVICE_PAGE; }

/* With the books locked: one more allocation in the page; true if it is the first. */
static bool enter_page(uint64_t page, int index) {
    struct record *known = table_find(&books.small_pages, page);
    if (known != NULL) {
        known->size++;
        return false;
    }
    table_put(&books.small_pages, &(struct record){.key = page, .size = 1, .index = index});
    return true;
}

/* With the books locked: one less; true if it was the last. */
static bool leave_page(uint64_t page) {
    struct record *known = table_find(&books.small_pages, page);
    if (known == NULL || --known->size > 0) {
        return false;
    }
    return table_take(&books.small_pages, page, NULL);
}

static void remember(CUdeviceptr pointer, uint64_t size, int index) {
    table_put(&books.allocations,
              &(struct record){.key = pointer, .size = size, .index = index, .owner = (uint64_t)(uintptr_t)contexts_owner()});
}

/* --- small allocations ---------------------------------------------------------------------------------------------- */

static bool take_ready_page(int index) {
    books_lock();
    bool there = ready_pages[index] >= DEVICE_PAGE;
    if (there) {
        ready_pages[index] -= DEVICE_PAGE;
    }
    books_unlock();
    return there || ledger_reserve(index, DEVICE_PAGE);
}

/* A page's worth of pending bytes is free again: keep one ready while there are small allocations, give back the rest. */
static void put_ready_page(int index) {
    books_lock();
    bool keep = ready_pages[index] == 0 && books.small_pages.live > 0;
    if (keep) {
        ready_pages[index] = DEVICE_PAGE;
    }
    books_unlock();
    if (!keep) {
        ledger_return(index, LEDGER_PENDING, DEVICE_PAGE);
    }
}

/* With no small allocation left there is nothing to be ready for. */
static void drop_ready_pages_if_idle(void) {
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        books_lock();
        bool idle = ready_pages[index] != 0 && books.small_pages.live == 0;
        if (idle) {
            ready_pages[index] = 0;
        }
        books_unlock();
        if (idle) {
            ledger_return(index, LEDGER_PENDING, DEVICE_PAGE);
        }
    }
}

static bool is_small(const struct record *record) { return record->size <= SMALL; }

static uint64_t pages_under(uint64_t pointer, uint64_t size) { return (last_page(pointer, size) - first_page(pointer) + 1) * DEVICE_PAGE; }

/* Gives back what a forgotten allocation was charged with. */
static void uncharge(const struct record *record) {
    if (!is_small(record)) {
        ledger_return(record->index, LEDGER_LINEAR, pages_under(record->key, record->size));
        return;
    }
    uint64_t freed = 0;
    books_lock();
    for (uint64_t page = first_page(record->key); page <= last_page(record->key, record->size); page++) {
        freed += leave_page(page) ? DEVICE_PAGE : 0;
    }
    books_unlock();
    if (freed > 0) {
        ledger_return(record->index, LEDGER_LINEAR, freed);
        drop_ready_pages_if_idle();
    }
}

/* After a small allocation succeeded under one reserved page. False: it must be undone. */
static bool settle_small(CUdeviceptr pointer, uint64_t size, int index) {
    uint64_t entered = 0;
    books_lock();
    for (uint64_t page = first_page(pointer); page <= last_page(pointer, size); page++) {
        entered += enter_page(page, index) ? DEVICE_PAGE : 0;
    }
    remember(pointer, size, index);
    books_unlock();
    TEST_POINT("linear.small.between");
    if (entered == 0) {
        put_ready_page(index);
        return true;
    }
    ledger_settle(index, DEVICE_PAGE, LEDGER_LINEAR, entered);
    books_lock();
    bool ready = ready_pages[index] >= DEVICE_PAGE;
    books_unlock();
    if (!ready) {
        if (!ledger_reserve_lightly(index, DEVICE_PAGE)) {
            return false;
        }
        put_ready_page(index);
    }
    return true;
}

/* Forgets an allocation and frees it. */
static void undo(CUdeviceptr pointer) {
    struct record record;
    books_lock();
    bool known = table_take(&books.allocations, pointer, &record);
    books_unlock();
    real.cuMemFree_v2(pointer);
    if (known) {
        uncharge(&record);
    }
}

/* --- hooks ---------------------------------------------------------------------------------------------------------------- */

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    if (!guard_on()) {
        return real.cuMemAlloc_v2(pointer, size);
    }
    int index = guard_current_index();
    if (index == GUARD_FORWARD || size == 0 || pointer == NULL) {
        return real.cuMemAlloc_v2(pointer, size);
    }
    if (index == GUARD_REFUSE) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bool small = size <= SMALL;
    if (!small && oversubscription_is_on()) {
        return oversubscription_allocate(pointer, size, index);
    }
    uint64_t reserved = small ? DEVICE_PAGE : round_up(size, DEVICE_PAGE);
    if (small ? !take_ready_page(index) : !ledger_reserve(index, reserved)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    TEST_POINT("linear.reserved");
    overhead_operation_begins();
    CUresult result = real.cuMemAlloc_v2(pointer, size);
    TEST_POINT("linear.allocated");
    bool keep = true;
    if (result != CUDA_SUCCESS) {
        if (small) {
            put_ready_page(index);
        } else {
            ledger_return(index, LEDGER_PENDING, reserved);
        }
    } else if (small) {
        keep = settle_small(*pointer, size, index);
    } else {
        books_lock();
        remember(*pointer, size, index);
        books_unlock();
        ledger_settle(index, reserved, LEDGER_LINEAR, pages_under(*pointer, size));
    }
    if (!keep) {
        undo(*pointer);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    overhead_operation_ends();
    return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element) {
    if (!guard_on()) {
        return real.cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    }
    int index = guard_current_index();
    if (index == GUARD_FORWARD || pointer == NULL || pitch == NULL || width == 0 || height == 0) {
        return real.cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    }
    /* The pitch is the driver's choice, seen to be a multiple of 512 bytes: reserved as such, charged as it then says. */
    uint64_t row = round_up(width, 512);
    uint64_t reserved = row > UINT64_MAX / 2 / height ? UINT64_MAX / 2 : round_up(row * height, DEVICE_PAGE);
    if (index == GUARD_REFUSE || !ledger_reserve(index, reserved)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    overhead_operation_begins();
    CUresult result = real.cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    bool keep = true;
    if (result != CUDA_SUCCESS) {
        ledger_return(index, LEDGER_PENDING, reserved);
    } else if (*pitch * height <= SMALL) {
        keep = settle_small(*pointer, *pitch * height, index); /* reserved is one page here */
    } else {
        books_lock();
        remember(*pointer, *pitch * height, index);
        books_unlock();
        ledger_settle(index, reserved, LEDGER_LINEAR, pages_under(*pointer, *pitch * height));
    }
    if (!keep) {
        undo(*pointer);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    overhead_operation_ends();
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    if (!guard_on()) {
        return real.cuMemFree_v2(pointer);
    }
    /* Forgotten before the driver frees it: from then on another thread may be given the same address. */
    struct record record;
    books_lock();
    bool known = table_take(&books.allocations, pointer, &record);
    bool shared = table_take(&books.shared, pointer, NULL);
    books_unlock();
    struct record piece;
    bool managed = !known && managed_take(pointer, &piece);
    bool of_pool = !known && !managed && pools_piece_take(pointer, &piece);
    if (!known && !managed) {
        pools_something_was_freed();
    }
    overhead_operation_begins();
    CUresult result = real.cuMemFree_v2(pointer);
    TEST_POINT("linear.freed");
    if (known && result == CUDA_SUCCESS) {
        uncharge(&record);
    } else if (known) {
        books_lock();
        table_put(&books.allocations, &record);
        books_unlock();
    }
    overhead_operation_ends();
    if (managed && result == CUDA_SUCCESS) {
        managed_gone(&piece);
    } else if (managed) {
        managed_put_back(&piece);
    }
    if (of_pool) {
        pools_piece_freed(&piece, result);
    }
    if (shared) {
        overhead_suspect_all();
    }
    return result;
}

/* Of before CUDA 3.2, with 32-bit addresses: nothing that is built today can use them, and what they allocate cannot be told apart. */
CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int size) {
    return guard_on() ? CUDA_ERROR_NOT_SUPPORTED : real.cuMemAlloc(pointer, size);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element) {
    return guard_on() ? CUDA_ERROR_NOT_SUPPORTED : real.cuMemAllocPitch(pointer, pitch, width, height, element);
}

CUresult cuMemFree(CUdeviceptr_v1 pointer) { return guard_on() ? CUDA_ERROR_NOT_SUPPORTED : real.cuMemFree(pointer); }

/* --- contexts that go --------------------------------------------------------------------------------------------------------------- */

void linear_drop_context(CUcontext context) {
    books_lock();
    size_t count;
    struct record *gone = table_take_of(&books.allocations, (uint64_t)(uintptr_t)context, &count);
    books_unlock();
    for (size_t at = 0; at < count; at++) {
        uncharge(&gone[at]);
    }
    table_free_taken(gone, count);
}
