/* Many allocations by one command.
 *
 *   fill <kind> <size> [<most>]               takes until refused (or <most> pieces); answers count, bytes, code, function
 *   drop                                      gives all of that back in the usual way
 *   abandon                                   forgets all of that: it went with its context
 *   mix <kinds> <seed> <count> <least> <most> random takes and gives of kinds `a,b,c`; answers live pieces, live bytes, refusals
 *   churn <kinds> <seed> <least> <most>       the same until stdin has something or closes; answers at once, so that a test may kill it
 *   threads <n> <kinds> <count> <least> <most> `mix` in n threads at once, all given back; answers refusals and other errors
 *   forks <n> <kinds> <count> <least> <most>  n threads mix on while <count> children are forked, which ask the driver something and end
 *   wrong memory|threads                      an error on purpose: shows that a sanitizer is at work
 *   time <kind> <count> <size> [<live>]       median and mean ns of take and of give, with <live> pieces beside them
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "probe.h"

struct crowd {
    struct piece *pieces;
    size_t count, room;
    size_t bytes;
    size_t refused, failed;
    CUresult failure; /* the first that was no refusal */
    char culprit[64];
};

static struct crowd filled;

static void crowd_add(struct crowd *crowd, const struct piece *piece) {
    if (crowd->count == crowd->room) {
        crowd->room = crowd->room == 0 ? 64 : crowd->room * 2;
        crowd->pieces = need(realloc(crowd->pieces, crowd->room * sizeof *crowd->pieces));
    }
    crowd->pieces[crowd->count++] = *piece;
    crowd->bytes += piece->size;
}

static void crowd_failed(struct crowd *crowd, CUresult result) {
    if (crowd->failed++ == 0) {
        crowd->failure = result;
        snprintf(crowd->culprit, sizeof crowd->culprit, "%s", driver_culprit());
    }
}

static void crowd_give(struct crowd *crowd, size_t index) {
    CUresult result = piece_give(&crowd->pieces[index]);
    if (result != CUDA_SUCCESS) {
        crowd_failed(crowd, result);
    }
    crowd->bytes -= crowd->pieces[index].size;
    crowd->pieces[index] = crowd->pieces[--crowd->count];
}

static void crowd_give_all(struct crowd *crowd) {
    while (crowd->count > 0) {
        crowd_give(crowd, crowd->count - 1);
    }
    free(crowd->pieces);
    crowd->pieces = NULL;
    crowd->room = 0;
}

static void crowd_forget(struct crowd *crowd) {
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

struct recipe {
    struct piece kinds[8];
    size_t count;
    size_t least, most;
    uint64_t seed;
};

/* `kinds` and `sizes` say in which words they stand. */
static bool recipe_read(struct recipe *recipe, const struct command *command, int kinds, size_t seed, int sizes) {
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

static void step(struct crowd *crowd, struct recipe *recipe) {
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

static void answer_failure(struct answer *answer, const struct crowd *crowd) {
    answer->length = 0;
    answer_more(answer, "error %d %s", crowd->failure, crowd->culprit);
}

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
        step(&filled, &recipe);
    }
    if (filled.failed > 0) {
        answer_failure(answer, &filled);
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
            step(&filled, &recipe);
        }
    }
    if (filled.failed > 0) {
        answer_failure(answer, &filled);
    } else {
        answer_ok(answer, "%zu %zu %zu", filled.count, filled.bytes, filled.refused);
    }
}

struct worker {
    pthread_t thread;
    struct recipe recipe;
    struct crowd crowd;
    size_t count;      /* how many steps; 0: until *stop */
    atomic_bool *stop;
    CUcontext context;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    CUresult result = CALL(cuCtxSetCurrent, worker->context);
    if (result != CUDA_SUCCESS) {
        crowd_failed(&worker->crowd, result);
        return NULL;
    }
    for (size_t i = 0; worker->count > 0 ? i < worker->count : !atomic_load(worker->stop); i++) {
        step(&worker->crowd, &worker->recipe);
    }
    crowd_give_all(&worker->crowd);
    return NULL;
}

/* In the child of a process whose other threads were in the middle of everything: each call must come back, whatever it says. */
static void ask_in_child(void) {
    size_t available, total;
    CUdeviceptr pointer;
    CALL(cuInit, 0);
    CALL(cuMemGetInfo_v2, &available, &total);
    CALL(cuMemAlloc_v2, &pointer, 4096);
    _exit(0);
}

static bool child_ends(pid_t child) {
    for (int tries = 0; tries < 2000; tries++) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child) {
            return status == 0;
        }
        usleep(10000);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return false;
}

static bool fork_children(size_t count) {
    for (size_t i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            ask_in_child();
        }
        if (child < 0 || !child_ends(child)) {
            return false;
        }
    }
    return true;
}

static void threads_command(const struct command *command, struct answer *answer) {
    bool forks = strcmp(command->words[0], "forks") == 0;
    atomic_bool stop = false;
    size_t count = size_word(command, 1, 2);
    struct worker *workers = need(calloc(count, sizeof *workers));
    CUcontext context = NULL;
    CUresult result = CALL(cuCtxGetCurrent, &context);
    size_t started = 0, refused = 0;
    for (; result == CUDA_SUCCESS && started < count; started++) {
        struct worker *worker = &workers[started];
        worker->context = context;
        worker->count = forks ? 0 : size_word(command, 3, 100);
        worker->stop = &stop;
        if (!recipe_read(&worker->recipe, command, 2, started + 1, 4) ||
            pthread_create(&worker->thread, NULL, work, worker) != 0) {
            break;
        }
    }
    bool forked = !forks || result != CUDA_SUCCESS || fork_children(size_word(command, 3, 1));
    atomic_store(&stop, true);
    struct crowd *failed = NULL;
    for (size_t i = 0; i < started; i++) {
        pthread_join(workers[i].thread, NULL);
        refused += workers[i].crowd.refused;
        if (workers[i].crowd.failed > 0) {
            failed = &workers[i].crowd;
        }
    }
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
    } else if (failed != NULL) {
        answer_failure(answer, failed);
    } else if (started < count) {
        answer_bad(answer, "no such kinds, or no thread");
    } else if (!forked) {
        answer_bad(answer, "a forked child hung or died");
    } else {
        answer_ok(answer, "%zu", refused);
    }
    free(workers);
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

static int shared_by_accident;

static void *write_without_lock(void *unused) {
    for (int i = 0; i < 1000; i++) {
        shared_by_accident++;
    }
    return unused;
}

static void wrong_command(const struct command *command, struct answer *answer) {
    if (strcmp(word(command, 1, ""), "threads") == 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, write_without_lock, NULL) == 0) {
            write_without_lock(NULL);
            pthread_join(thread, NULL);
        }
    } else {
        volatile char *block = need(malloc(16));
        volatile size_t at = 16;
        block[at] = 1;
        free((void *)(uintptr_t)block);
    }
    answer_ok(answer, "%s", "");
}

bool load_commands(const struct command *command, struct answer *answer) {
    const char *name = command->words[0];
    if (strcmp(name, "fill") == 0) {
        fill_command(command, answer);
    } else if (strcmp(name, "drop") == 0) {
        filled.failed = 0;
        crowd_give_all(&filled);
        if (filled.failed > 0) {
            answer_failure(answer, &filled);
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
    } else if (strcmp(name, "wrong") == 0) {
        wrong_command(command, answer);
    } else if (strcmp(name, "threads") == 0 || strcmp(name, "forks") == 0) {
        threads_command(command, answer);
    } else if (strcmp(name, "time") == 0) {
        time_command(command, answer);
    } else {
        return false;
    }
    return true;
}
