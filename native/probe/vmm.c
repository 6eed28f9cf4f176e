/* Virtual memory management: handles, address ranges and mappings one by one, and whole pieces as kinds of memory.
 *
 *   vmm create <handle> <size> [<device>] | vmm release <handle> | vmm retain <new handle> <range>
 *   vmm map <range> <handle> [<size> [<offset>]] (reserves the range) | vmm unmap <range> | vmm unreserve <range>
 * Kinds: vmm (a handle only), vmmkept (mapped, handle kept), vmmlost (mapped, handle released at once).
 */
#include <string.h>

#include "probe.h"

static CUmemAllocationProp on_device(CUdevice device) {
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    return properties;
}

#define GRANULE ((size_t)2 << 20) /* sizes must be multiples of it on every card that we know */

static CUresult create(struct piece *piece, size_t size) {
    piece->size = (size + GRANULE - 1) / GRANULE * GRANULE;
    CUdevice device = 0;
    CUresult result = current_device(&device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUmemAllocationProp properties = on_device(device);
    return CALL(cuMemCreate, &piece->handle, piece->size, &properties, 0);
}

static CUresult release(struct piece *piece) { return CALL(cuMemRelease, piece->handle); }

static CUresult map_somewhere(CUdeviceptr *address, size_t size, CUmemGenericAllocationHandle handle, size_t offset) {
    CUdevice device = 0;
    CUresult result = current_device(&device);
    if (result == CUDA_SUCCESS) {
        result = CALL(cuMemAddressReserve, address, size, 0, 0, 0);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemMap, *address, size, offset, handle, 0);
    if (result != CUDA_SUCCESS) {
        CALL(cuMemAddressFree, *address, size);
        return result;
    }
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}, .flags = 3 /* read and write */};
    return CALL(cuMemSetAccess, *address, size, &access, 1);
}

static CUresult take_kept(struct piece *piece, size_t size) {
    CUresult result = create(piece, size);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = map_somewhere(&piece->pointer, piece->size, piece->handle, 0);
    if (result != CUDA_SUCCESS) {
        CALL(cuMemRelease, piece->handle);
    }
    return result;
}

static CUresult unmap(struct piece *piece) {
    CUresult result = CALL(cuMemUnmap, piece->pointer, piece->size);
    return result != CUDA_SUCCESS ? result : CALL(cuMemAddressFree, piece->pointer, piece->size);
}

static CUresult give_kept(struct piece *piece) {
    CUresult result = unmap(piece);
    return result != CUDA_SUCCESS ? result : release(piece);
}

static CUresult take_lost(struct piece *piece, size_t size) {
    CUresult result = take_kept(piece, size);
    return result != CUDA_SUCCESS ? result : release(piece);
}

const struct kind vmm_kinds[] = {
    {"vmm", create, release},
    {"vmmkept", take_kept, give_kept},
    {"vmmlost", take_lost, unmap},
    {NULL, NULL, NULL},
};

static void create_command(const struct command *command, struct answer *answer) {
    CUdevice device = 0;
    CUresult result = CUDA_SUCCESS;
    if (command->count > 4) {
        device = (CUdevice)size_word(command, 4, 0);
    } else {
        result = current_device(&device);
    }
    size_t size = size_word(command, 3, 0);
    CUmemAllocationProp properties = on_device(device);
    CUmemGenericAllocationHandle handle = 0;
    if (result == CUDA_SUCCESS) {
        result = CALL(cuMemCreate, &handle, size, &properties, 0);
    }
    if (result == CUDA_SUCCESS) {
        thing_add(THING_HANDLE, word(command, 2, ""), NULL, handle, size);
    }
    answer_result(answer, result);
}

static void map_command(const struct command *command, struct answer *answer) {
    const char *name = word(command, 2, "");
    struct thing *handle = thing_find(THING_HANDLE, word(command, 3, ""));
    if (handle == NULL) {
        answer_bad(answer, "no handle %s", word(command, 3, ""));
        return;
    }
    CUdeviceptr address = 0;
    size_t size = size_word(command, 4, handle->size);
    CUresult result = map_somewhere(&address, size, handle->value, size_word(command, 5, 0));
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
        return;
    }
    thing_add(THING_RANGE, name, NULL, address, size);
    thing_add(THING_PIECE, name, NULL, address, size); /* for `set` and `get`; it is given back by unmap */
    answer_ok(answer, "%llu", address);
}

static void range_command(const struct command *command, struct answer *answer) {
    const char *what = word(command, 1, ""), *name = word(command, 2, "");
    struct thing *range = thing_find(THING_RANGE, name);
    if (range == NULL) {
        answer_bad(answer, "no range %s", name);
        return;
    }
    if (strcmp(what, "unmap") == 0) {
        answer_result(answer, CALL(cuMemUnmap, range->value, range->size));
        return;
    }
    answer_result(answer, CALL(cuMemAddressFree, range->value, range->size));
    thing_forget(range);
    thing_forget(thing_find(THING_PIECE, name));
}

static void retain_command(const struct command *command, struct answer *answer) {
    struct thing *range = thing_find(THING_RANGE, word(command, 3, ""));
    if (range == NULL) {
        answer_bad(answer, "no range %s", word(command, 3, ""));
        return;
    }
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = CALL(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)range->value);
    if (result == CUDA_SUCCESS) {
        thing_add(THING_HANDLE, word(command, 2, ""), NULL, handle, range->size);
    }
    answer_result(answer, result);
}

bool vmm_commands(const struct command *command, struct answer *answer) {
    if (strcmp(command->words[0], "vmm") != 0) {
        return false;
    }
    const char *what = word(command, 1, "");
    if (strcmp(what, "create") == 0) {
        create_command(command, answer);
    } else if (strcmp(what, "map") == 0) {
        map_command(command, answer);
    } else if (strcmp(what, "retain") == 0) {
        retain_command(command, answer);
    } else if (strcmp(what, "unmap") == 0 || strcmp(what, "unreserve") == 0) {
        range_command(command, answer);
    } else if (strcmp(what, "release") == 0) {
        struct thing *handle = thing_find(THING_HANDLE, word(command, 2, ""));
        if (handle == NULL) {
            answer_bad(answer, "no handle %s", word(command, 2, ""));
        } else {
            answer_result(answer, CALL(cuMemRelease, handle->value));
            thing_forget(handle);
        }
    } else {
        answer_bad(answer, "vmm %s", what);
    }
    return true;
}
