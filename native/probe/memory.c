/* Commands on single pieces of memory.
 *
 *   take <kind> <name> <size>    every kind of kinds.c, vmm.c and graphs.c; answers the pointer where there is one
 *   give <name>                  the usual way back
 *   free <name>                  cuMemFree, whatever it came from
 *   freeasync <name> [<stream>]  cuMemFreeAsync, whatever it came from
 *   forget <name>                drop the name only: it went with its context or pool
 *   pitch <name> <width> <height> <element> | array2d <name> <w> <h> <channels> | array3d <name> <w> <h> <d> <channels> [<flags>]
 *   mipmap <name> <w> <h> <levels>
 *   set <name> <byte> <count>    write on the device; get <name> <count> answers the first bytes in hexadecimal
 *   attribute <name> <number>    cuPointerGetAttribute, as an int or (for addresses and sizes) a long
 */
#include <stdlib.h>
#include <string.h>

#include "probe.h"

static void keep(struct answer *answer, const char *name, const struct piece *piece, CUresult result) {
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
        return;
    }
    struct piece *kept = need(malloc(sizeof *kept));
    *kept = *piece;
    thing_add(THING_PIECE, name, kept, piece->pointer, piece->size);
    answer_ok(answer, "%llu", piece->pointer);
}

static void drop(struct thing *thing) {
    free(thing->object);
    thing_forget(thing);
}

static void take_command(const struct command *command, struct answer *answer) {
    struct piece piece;
    if (!piece_prepare(&piece, word(command, 1, ""))) {
        answer_bad(answer, "no such kind, stream or pool: %s", word(command, 1, ""));
        return;
    }
    CUresult result = piece_take(&piece, size_word(command, 3, 0));
    keep(answer, word(command, 2, ""), &piece, result);
}

static void give_command(const struct command *command, struct answer *answer) {
    const char *how = command->words[0];
    struct thing *thing = thing_find(THING_PIECE, word(command, 1, ""));
    CUstream stream;
    struct piece *piece = thing != NULL ? thing->object : NULL; /* a mapped range has none: see vmm.c */
    if (piece == NULL || !stream_named(word(command, 2, NULL), &stream)) {
        answer_bad(answer, "no such piece or stream");
        return;
    }
    CUresult result;
    if (strcmp(how, "free") == 0) {
        result = CALL(cuMemFree_v2, piece->pointer);
    } else if (strcmp(how, "freeasync") == 0) {
        result = CALL(cuMemFreeAsync, piece->pointer, stream);
    } else if (strcmp(how, "forget") == 0) {
        result = CUDA_SUCCESS;
    } else {
        result = piece_give(piece);
    }
    answer_result(answer, result);
    if (result == CUDA_SUCCESS) {
        drop(thing);
    }
}

static void shape_command(const struct command *command, struct answer *answer) {
    const char *shape = command->words[0], *name = word(command, 1, "");
    size_t width = size_word(command, 2, 1), height = size_word(command, 3, 1), third = size_word(command, 4, 1);
    struct piece piece;
    (void)piece_prepare(&piece, shape);
    CUresult result;
    if (strcmp(shape, "pitch") == 0) {
        size_t pitch = 0;
        result = CALL(cuMemAllocPitch_v2, &piece.pointer, &pitch, width, height, (unsigned int)third);
        piece.size = pitch * height;
    } else if (strcmp(shape, "array2d") == 0) {
        CUDA_ARRAY_DESCRIPTOR descriptor = {
            .Width = width, .Height = height, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = (unsigned int)third};
        CUarray array = NULL;
        result = CALL(cuArrayCreate_v2, &array, &descriptor);
        piece.object = array;
    } else {
        CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = width, .Height = height, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
        if (strcmp(shape, "mipmap") == 0) {
            CUmipmappedArray array = NULL;
            result = CALL(cuMipmappedArrayCreate, &array, &descriptor, (unsigned int)third);
            piece.object = array;
        } else {
            descriptor.Depth = third;
            descriptor.NumChannels = (unsigned int)size_word(command, 5, 1);
            descriptor.Flags = (unsigned int)size_word(command, 6, 0);
            CUarray array = NULL;
            result = CALL(cuArray3DCreate_v2, &array, &descriptor);
            piece.object = array;
        }
    }
    keep(answer, name, &piece, result);
}

static void data_command(const struct command *command, struct answer *answer) {
    const struct thing *thing = thing_find(THING_PIECE, word(command, 1, ""));
    if (thing == NULL) {
        answer_bad(answer, "no piece %s", word(command, 1, ""));
        return;
    }
    if (strcmp(command->words[0], "set") == 0) {
        answer_result(answer, CALL(cuMemsetD8_v2, thing->value, (unsigned char)size_word(command, 2, 0), size_word(command, 3, 1)));
        return;
    }
    if (strcmp(command->words[0], "attribute") == 0) {
        uint64_t value = 0; /* the driver writes four or eight bytes of it */
        CUresult result = CALL(cuPointerGetAttribute, &value, (int)size_word(command, 2, 0), thing->value);
        if (result != CUDA_SUCCESS) {
            answer_result(answer, result);
        } else {
            answer_ok(answer, "%llu", (unsigned long long)value);
        }
        return;
    }
    unsigned char bytes[64];
    size_t count = size_word(command, 2, 1);
    if (count > sizeof bytes) {
        count = sizeof bytes;
    }
    CUresult result = CALL(cuMemcpyDtoH_v2, bytes, thing->value, count);
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
        return;
    }
    answer_ok(answer, "%s", "");
    answer_more(answer, " ");
    for (size_t i = 0; i < count; i++) {
        answer_more(answer, "%02x", bytes[i]);
    }
}

bool memory_commands(const struct command *command, struct answer *answer) {
    static const struct {
        const char *name;
        void (*run)(const struct command *command, struct answer *answer);
    } rows[] = {
        {"take", take_command},       {"give", give_command},     {"free", give_command},   {"freeasync", give_command},
        {"forget", give_command},     {"pitch", shape_command},   {"array2d", shape_command}, {"array3d", shape_command},
        {"mipmap", shape_command},    {"set", data_command},      {"get", data_command},    {"attribute", data_command},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(command->words[0], rows[i].name) == 0) {
            rows[i].run(command, answer);
            return true;
        }
    }
    return false;
}
