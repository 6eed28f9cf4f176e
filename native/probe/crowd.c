/* See crowd.h. */
#include "crowd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void crowd_add(struct crowd *crowd, const struct piece *piece) {
    if (crowd->count == crowd->room) {
        crowd->room = crowd->room == 0 ? 64 : crowd->room * 2;
        crowd->pieces = need(realloc(crowd->pieces, crowd->room * sizeof *crowd->pieces));
    }
    crowd->pieces[crowd->count++] = *piece;
    crowd->bytes += piece->size;
}

void crowd_failed(struct crowd *crowd, CUresult result) {
    if (crowd->failed++ == 0) {
        crowd->failure = result;
        snprintf(crowd->culprit, sizeof crowd->culprit, "%s", driver_culprit());
    }
}

void crowd_give(struct crowd *crowd, size_t index) {
    CUresult result = piece_give(&crowd->pieces[index]);
    if (result != CUDA_SUCCESS) {
        crowd_failed(crowd, result);
    }
    crowd->bytes -= crowd->pieces[index].size;
    crowd->pieces[index] = crowd->pieces[--crowd->count];
}

void crowd_give_all(struct crowd *crowd) {
    while (crowd->count > 0) {
        crowd_give(crowd, crowd->count - 1);
    }
    free(crowd->pieces);
    crowd->pieces = NULL;
    crowd->room = 0;
}

void crowd_forget(struct crowd *crowd) {
    free(crowd->pieces);
    *crowd = (struct crowd){.count = 0};
}

static uint64_t next_random(uint64_t *seed) { /* xorshift64*: the same numbers on every machine */
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return *seed * 2685821657736338717ull;
}

/* Not all large: most sizes are some powers of two smaller than an even choice would make them. */
static size_t random_size(uint64_t *seed, size_t least, size_t most) {
    size_t size = least + next_random(seed) % (most - least + 1);
    size_t smaller = size >> next_random(seed) % 8;
    return smaller >= least ? smaller : size;
}

bool recipe_read(struct recipe *recipe, const struct command *command, int kinds, size_t seed, int sizes) {
    size_t least = size_word(command, sizes, 512), most = size_word(command, sizes + 1, 1u << 20);
    char names[256];
    snprintf(names, sizeof names, "%s", word(command, kinds, ""));
    recipe->count = 0;
    recipe->seed = seed * 0x9e3779b97f4a7c15ull + 1;
    recipe->least = least;
    recipe->most = most > least ? most : least;
    char *rest = NULL;
    for (char *name = strtok_r(names, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        if (recipe->count == sizeof recipe->kinds / sizeof *recipe->kinds || !piece_prepare(&recipe->kinds[recipe->count++], name)) {
            return false;
        }
    }
    return recipe->count > 0;
}

void crowd_step(struct crowd *crowd, struct recipe *recipe) {
    if (crowd->count > 0 && next_random(&recipe->seed) % 100 < 40) {
        crowd_give(crowd, next_random(&recipe->seed) % crowd->count);
        return;
    }
    struct piece piece = recipe->kinds[next_random(&recipe->seed) % recipe->count];
    size_t size = random_size(&recipe->seed, recipe->least, recipe->most);
    CUresult result = piece_take(&piece, size);
    if (result == CUDA_SUCCESS) {
        crowd_add(crowd, &piece);
        return;
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        crowd->refused++;
    } else {
        crowd_failed(crowd, result);
    }
    if (crowd->count > 0) { /* as a program does that makes room */
        crowd_give(crowd, next_random(&recipe->seed) % crowd->count);
    }
}

void crowd_answer_failure(struct answer *answer, const struct crowd *crowd) {
    answer->length = 0;
    answer_more(answer, "error %d %s", crowd->failure, crowd->culprit);
}
