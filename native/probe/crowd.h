/* Many pieces of memory at once: taken and given back at random, by a recipe that makes the same numbers on every machine. */
#ifndef HAMI_PROBE_CROWD_H
#define HAMI_PROBE_CROWD_H

#include "probe.h"

struct crowd {
    struct piece *pieces;
    size_t count, room;
    size_t bytes;
    size_t refused, failed;
    CUresult failure; /* the first that was no refusal */
    char culprit[64];
};

struct recipe {
    struct piece kinds[8];
    size_t count;
    size_t least, most;
    uint64_t seed;
};

void crowd_add(struct crowd *crowd, const struct piece *piece);
void crowd_give(struct crowd *crowd, size_t index);
void crowd_give_all(struct crowd *crowd);
void crowd_forget(struct crowd *crowd); /* without giving anything back */
void crowd_failed(struct crowd *crowd, CUresult result);
void crowd_answer_failure(struct answer *answer, const struct crowd *crowd);

/* Reads kinds `a,b,c` from word `kinds` of a command, and the least and most size from word `sizes` on. */
bool recipe_read(struct recipe *recipe, const struct command *command, int kinds, size_t seed, int sizes);

/* Takes or gives one piece. */
void crowd_step(struct crowd *crowd, struct recipe *recipe);

#endif
