/* Many allocations by one command.
 *
 *   fill <kind> <size> [<most>]               takes until refused (or <most> pieces); answers count, bytes, code, function
 *   drop                                      gives all of that back in the usual way
 *   abandon                                   forgets all of that: it went with its context
 *   mix <kinds> <seed> <count> <least> <most> random takes and gives of kinds `a,b,c`; answers live pieces, live bytes, refusals
 *   churn <kinds> <seed> <least> <most>       the same until stdin has something or closes; answers at once, so that a test may kill it
 *   time <kind> <count> <size> [<live>]       median and mean ns of take and of give, with <live> pieces beside them
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "crowd.h"
#include "probe.h"

static struct crowd filled;

static void fill_command(const struct command *command, struct answer *answer) {
    struct piece model;
    size_t size = size_word(command, 2, 0), most = size_word(command, 3, SIZE_MAX);
    if (!piece_prepare(&model, word(command, 1, ""))) {
        answer_bad(answer, "no such kind: %s", word(command, 1, ""));
        return;
    }
    size_t count = 0;
    CUresult result = CUDA_SUCCESS;
    while (count < most) {
        struct piece piece = model;
        result = piece_take(&piece, size);
        if (result != CUDA_SUCCESS) {
            break;
        }
        crowd_add(&filled, &piece);
        count++;
    }
    answer_ok(answer, "%zu %zu %d %s", count, count * size, result, result != CUDA_SUCCESS ? driver_culprit() : "none");
}

static void mix_command(const struct command *command, struct answer *answer) {
    struct recipe recipe;
    if (!recipe_read(&recipe, command, 1, size_word(command, 2, 1), 4)) {
        answer_bad(answer, "no such kinds: %s", word(command, 1, ""));
        return;
    }
    filled.refused = filled.failed = 0;
    for (size_t i = size_word(command, 3, 0); i > 0; i--) {
        crowd_step(&filled, &recipe);
    }
    if (filled.failed > 0) {
        crowd_answer_failure(answer, &filled);
    } else {
        answer_ok(answer, "%zu %zu %zu", filled.count, filled.bytes, filled.refused);
    }
}

static void churn_command(const struct command *command, struct answer *answer) {
    struct recipe recipe;
    if (!recipe_read(&recipe, command, 1, size_word(command, 2, 1), 3)) {
        answer_bad(answer, "no such kinds: %s", word(command, 1, ""));
        return;
    }
    printf("ok churning\n");
    fflush(stdout);
    filled.refused = filled.failed = 0;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&input, 1, 0) == 0) {
        for (int i = 0; i < 16; i++) {
            crowd_step(&filled, &recipe);
        }
    }
    if (filled.failed > 0) {
        crowd_answer_failure(answer, &filled);
    } else {
        answer_ok(answer, "%zu %zu %zu", filled.count, filled.bytes, filled.refused);
    }
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int by_size(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

static void time_command(const struct command *command, struct answer *answer) {
    struct piece model;
    size_t count = size_word(command, 2, 1000), size = size_word(command, 3, 4096), live = size_word(command, 4, 0);
    if (!piece_prepare(&model, word(command, 1, "")) || count == 0) {
        answer_bad(answer, "no such kind: %s", word(command, 1, ""));
        return;
    }
    struct crowd beside = {.count = 0};
    uint64_t *takes = need(calloc(count, sizeof *takes)), *gives = need(calloc(count, sizeof *gives));
    uint64_t took = 0, gave = 0;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < live && result == CUDA_SUCCESS; i++) {
        struct piece piece = model;
        result = piece_take(&piece, size);
        if (result == CUDA_SUCCESS) {
            crowd_add(&beside, &piece);
        }
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct piece piece = model;
        uint64_t begin = now();
        result = piece_take(&piece, size);
        uint64_t middle = now();
        if (result == CUDA_SUCCESS) {
            result = piece_give(&piece);
        }
        takes[i] = middle - begin;
        gives[i] = now() - middle;
        took += takes[i];
        gave += gives[i];
    }
    crowd_give_all(&beside);
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
    } else {
        qsort(takes, count, sizeof *takes, by_size);
        qsort(gives, count, sizeof *gives, by_size);
        answer_ok(answer, "%llu %llu %llu %llu", (unsigned long long)takes[count / 2], (unsigned long long)(took / count),
                  (unsigned long long)gives[count / 2], (unsigned long long)(gave / count));
    }
    free(takes);
    free(gives);
}

bool load_commands(const struct command *command, struct answer *answer) {
    const char *name = command->words[0];
    if (strcmp(name, "fill") == 0) {
        fill_command(command, answer);
    } else if (strcmp(name, "drop") == 0) {
        filled.failed = 0;
        crowd_give_all(&filled);
        if (filled.failed > 0) {
            crowd_answer_failure(answer, &filled);
        } else {
            answer_ok(answer, "%s", "");
        }
    } else if (strcmp(name, "abandon") == 0) {
        crowd_forget(&filled);
        answer_ok(answer, "%s", "");
    } else if (strcmp(name, "mix") == 0) {
        mix_command(command, answer);
    } else if (strcmp(name, "churn") == 0) {
        churn_command(command, answer);
    } else if (strcmp(name, "time") == 0) {
        time_command(command, answer);
    } else {
        return false;
    }
    return true;
}
