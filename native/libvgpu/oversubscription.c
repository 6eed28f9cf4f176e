/* See oversubscription.h. Small allocations, pools, VMM and arrays stay real device memory, and the limit counts both alike. What cannot
 * be done with managed memory cannot be done here with large cuMemAlloc memory: cuIpcGetMemHandle refuses it. Programs that share buffers
 * between processes use VMM or pools for them, or do not oversubscribe.
 */
#include "oversubscription.h"

#include "books.h"
#include "guard.h"
#include "ledger.h"
#include "managed.h"

bool oversubscription_is_on(void) {
    return (guard_limits()->flags & VGPU_POLICY_OVERSUBSCRIBE) != 0;
}

CUresult oversubscription_allocate(CUdeviceptr *pointer, size_t size, int index) {
    uint64_t reserved = round_up(size, DEVICE_PAGE);
    if (!ledger_reserve(index, reserved)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = real.cuMemAllocManaged(pointer, size, CU_MEM_ATTACH_GLOBAL);
    if (result != CUDA_SUCCESS) {
        ledger_return(index, LEDGER_PENDING, reserved);
        return result;
    }
    /* Hints: the card is home, and the pages go there now rather than one fault at a time. They may fail; the memory works all the same. */
    CUdevice device = guard_device_of(index);
    real.cuMemAdvise(*pointer, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device);
    real.cuMemPrefetchAsync(*pointer, size, device, NULL);
    managed_made(*pointer, size, card_alone(index), reserved, KIND_DISGUISED);
    return CUDA_SUCCESS;
}

static bool is_disguised(CUdeviceptr pointer) {
    CUdeviceptr start = 0;
    if (real.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer) != CUDA_SUCCESS) {
        return false;
    }
    books_lock();
    const struct record *record = table_find(&books.managed, start);
    bool disguised = record != NULL && record->kind == KIND_DISGUISED;
    books_unlock();
    return disguised;
}

static void disguise(int attribute, void *data) {
    if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED && data != NULL) {
        *(unsigned int *)data = 0;
    } else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE && data != NULL) {
        *(unsigned int *)data = CU_MEMORYTYPE_DEVICE;
    }
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer) {
    bool on = guard_on() && oversubscription_is_on();
    CUresult result = real.cuPointerGetAttribute(data, attribute, pointer);
    if (on && result == CUDA_SUCCESS && is_disguised(pointer)) {
        disguise(attribute, data);
    }
    return result;
}

CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr pointer) {
    bool on = guard_on() && oversubscription_is_on();
    CUresult result = real.cuPointerGetAttributes(count, attributes, data, pointer);
    if (on && result == CUDA_SUCCESS && is_disguised(pointer)) {
        for (unsigned int at = 0; at < count; at++) {
            disguise(attributes[at], data[at]);
        }
    }
    return result;
}
