/* CUDA arrays: textures' memory, with a layout that only the driver knows.
 *
 * Width x height x bytes is up to 60 % too low. But an array with DEFERRED_MAPPING costs nothing and can be asked what it would need; such
 * a twin is made first, asked, and thrown away. Above 1 MiB that is exact when rounded up to 2 MiB; smaller arrays share pages by size, so
 * a page is reserved for each call, the fair share is charged, and the measurement that follows finds the rest.
 */
#include "arrays.h"

#include <stdbool.h>

#include "books.h"
#include "contexts.h"
#include "guard.h"
#include "ledger.h"
#include "overhead.h"
#include "test_points.h"

#define SMALL (1 * MIB)

struct cost {
    uint64_t reserve;
    uint64_t charge;
    bool small;
};

static struct cost cost_of(uint64_t required) {
    if (required > SMALL) {
        uint64_t bytes = round_up(required, DEVICE_PAGE);
        return (struct cost){.reserve = bytes, .charge = bytes};
    }
    return (struct cost){.reserve = DEVICE_PAGE, .charge = DEVICE_PAGE / (DEVICE_PAGE / required), .small = true};
}

/* Where the driver cannot be asked: never too low as far as was seen. */
static uint64_t guessed(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels) {
    uint64_t element = 4;
    switch (array->Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        element = 1;
        break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        element = 2;
        break;
    default:
        break;
    }
    uint64_t row = round_up(array->Width * element * (array->NumChannels > 0 ? array->NumChannels : 1), 512);
    uint64_t height = round_up(array->Height > 0 ? array->Height : 1, 16);
    uint64_t depth = round_up(array->Depth > 0 ? array->Depth : 1, array->Depth > 1 ? 16 : 1);
    return row * height * depth * (levels > 1 ? 2 : 1);
}

static uint64_t required_for(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels, int index) {
    CUDA_ARRAY3D_DESCRIPTOR twin = *array;
    twin.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements = {0};
    CUdevice device = guard_device_of(index);
    if (levels > 0 && real.cuMipmappedArrayGetMemoryRequirements != NULL) {
        CUmipmappedArray made;
        if (real.cuMipmappedArrayCreate(&made, &twin, levels) == CUDA_SUCCESS) {
            real.cuMipmappedArrayGetMemoryRequirements(&requirements, made, device);
            real.cuMipmappedArrayDestroy(made);
        }
    } else if (levels == 0 && real.cuArrayGetMemoryRequirements != NULL) {
        CUarray made;
        if (real.cuArray3DCreate_v2(&made, &twin) == CUDA_SUCCESS) {
            real.cuArrayGetMemoryRequirements(&requirements, made, device);
            real.cuArrayDestroy(made);
        }
    }
    uint64_t bytes = requirements.size > 0 ? requirements.size : guessed(array, levels);
    return bytes > 0 ? bytes : 1;
}

static void remember(uint64_t array, const struct cost *cost, int index) {
    books_lock();
    table_put(&books.arrays, &(struct record){.key = array,
                                              .size = cost->charge,
                                              .index = index,
                                              .kind = cost->small,
                                              .owner = (uint64_t)(uintptr_t)contexts_owner()});
    books_unlock();
}

/* Backed by memory that the program maps itself: costs nothing by itself. */
static bool has_memory_of_its_own(unsigned int flags) { return (flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0; }

#define CREATE_ARRAY(descriptor3d, levels, call)                                      \
    int index = guard_current_index();                                                \
    if (index == GUARD_FORWARD) {                                                     \
        return call;                                                                  \
    }                                                                                 \
    if (index == GUARD_REFUSE) {                                                      \
        return CUDA_ERROR_OUT_OF_MEMORY;                                              \
    }                                                                                 \
    struct cost cost = cost_of(required_for(descriptor3d, levels, index));            \
    if (!ledger_reserve(index, cost.reserve)) {                                       \
        return CUDA_ERROR_OUT_OF_MEMORY;                                              \
    }                                                                                 \
    TEST_POINT("arrays.reserved");                                                    \
    overhead_operation_begins();                                                      \
    CUresult result = call;                                                           \
    TEST_POINT("arrays.created");                                                     \
    if (result == CUDA_SUCCESS) {                                                     \
        remember((uint64_t)(uintptr_t)*array, &cost, index);                          \
        ledger_settle(index, cost.small ? 0 : cost.reserve, LEDGER_ARRAY, cost.charge); \
    } else {                                                                          \
        ledger_return(index, LEDGER_PENDING, cost.small ? 0 : cost.reserve);          \
    }                                                                                 \
    overhead_operation_ends();                                                        \
    if (cost.small) {                                                                 \
        overhead_measure(index, cost.reserve);                                        \
    }                                                                                 \
    return result

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
    if (!guard_on() || array == NULL || descriptor == NULL) {
        return real.cuArrayCreate_v2(array, descriptor);
    }
    CUDA_ARRAY3D_DESCRIPTOR as_3d = {.Width = descriptor->Width,
                                     .Height = descriptor->Height,
                                     .Format = descriptor->Format,
                                     .NumChannels = descriptor->NumChannels};
    CREATE_ARRAY(&as_3d, 0, real.cuArrayCreate_v2(array, descriptor));
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    if (!guard_on() || array == NULL || descriptor == NULL || !has_memory_of_its_own(descriptor->Flags)) {
        return real.cuArray3DCreate_v2(array, descriptor);
    }
    CREATE_ARRAY(descriptor, 0, real.cuArray3DCreate_v2(array, descriptor));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels) {
    if (!guard_on() || array == NULL || descriptor == NULL || !has_memory_of_its_own(descriptor->Flags)) {
        return real.cuMipmappedArrayCreate(array, descriptor, levels);
    }
    CREATE_ARRAY(descriptor, levels > 0 ? levels : 1, real.cuMipmappedArrayCreate(array, descriptor, levels));
}

/* As cuMemAlloc without _v2: of before CUDA 3.2. */
CUresult cuArrayCreate(CUarray *array, const void *descriptor) {
    return guard_on() ? CUDA_ERROR_NOT_SUPPORTED : real.cuArrayCreate(array, descriptor);
}

CUresult cuArray3DCreate(CUarray *array, const void *descriptor) {
    return guard_on() ? CUDA_ERROR_NOT_SUPPORTED : real.cuArray3DCreate(array, descriptor);
}

static void uncharge(const struct record *gone) {
    ledger_return(gone->index, LEDGER_ARRAY, gone->size);
    if (gone->kind != 0) {
        overhead_suspect(); /* its page may live on under others */
    }
}

static bool forget(uint64_t array, struct record *gone) {
    books_lock();
    bool known = table_take(&books.arrays, array, gone);
    books_unlock();
    return known;
}

static CUresult destroyed(const struct record *gone, bool known, CUresult result) {
    if (known && result == CUDA_SUCCESS) {
        uncharge(gone);
    } else if (known) {
        books_lock();
        table_put(&books.arrays, gone);
        books_unlock();
    }
    overhead_operation_ends();
    return result;
}

CUresult cuArrayDestroy(CUarray array) {
    if (!guard_on()) {
        return real.cuArrayDestroy(array);
    }
    struct record gone;
    bool known = forget((uint64_t)(uintptr_t)array, &gone);
    overhead_operation_begins();
    return destroyed(&gone, known, real.cuArrayDestroy(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    if (!guard_on()) {
        return real.cuMipmappedArrayDestroy(array);
    }
    struct record gone;
    bool known = forget((uint64_t)(uintptr_t)array, &gone);
    overhead_operation_begins();
    return destroyed(&gone, known, real.cuMipmappedArrayDestroy(array));
}

void arrays_drop_context(CUcontext context) {
    books_lock();
    size_t count;
    struct record *gone = table_take_of(&books.arrays, (uint64_t)(uintptr_t)context, &count);
    books_unlock();
    for (size_t at = 0; at < count; at++) {
        uncharge(&gone[at]);
    }
    table_free_taken(gone, count);
}
