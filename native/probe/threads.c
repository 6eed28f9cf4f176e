/* Threads, alone and with children that are forked between them.
 *
 *   threads <n> <kinds> <count> <least> <most>  `mix` in n threads at once, all given back; answers refusals
 *   forks <n> <kinds> <count> <least> <most>    n threads mix on while <count> children are forked, which ask the driver something and end
 *   retains <n> <device>                        n threads retain the primary context at once, and release it; answers how many were refused
 *   beside <command>; ...                       the commands in a thread of their own, while this one reads on; one at a time of those that
 *                                               take or give named things
 *   join                                        waits for the threads so made; answers what the commands answered, separated by " | "
 *   wrong memory|threads                        an error on purpose: shows that a sanitizer is at work
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crowd.h"
#include "probe.h"

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
        crowd_step(&worker->crowd, &worker->recipe);
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
        crowd_answer_failure(answer, failed);
    } else if (started < count) {
        answer_bad(answer, "no such kinds, or no thread");
    } else if (!forked) {
        answer_bad(answer, "a forked child hung or died");
    } else {
        answer_ok(answer, "%zu", refused);
    }
    free(workers);
}

struct retainer {
    pthread_t thread;
    CUdevice device;
    pthread_barrier_t *start;
    pthread_barrier_t *end;
    CUresult result;
};

static void *retain(void *argument) {
    struct retainer *retainer = argument;
    CUcontext context;
    pthread_barrier_wait(retainer->start);
    retainer->result = CALL(cuDevicePrimaryCtxRetain, &context, retainer->device);
    pthread_barrier_wait(retainer->end);
    if (retainer->result == CUDA_SUCCESS) {
        CALL(cuDevicePrimaryCtxRelease_v2, retainer->device);
    }
    return NULL;
}

static void retains_command(const struct command *command, struct answer *answer) {
    size_t count = size_word(command, 1, 2), refused = 0;
    struct retainer *retainers = need(calloc(count, sizeof *retainers));
    pthread_barrier_t start, end;
    pthread_barrier_init(&start, NULL, (unsigned int)count);
    pthread_barrier_init(&end, NULL, (unsigned int)count);
    for (size_t i = 0; i < count; i++) {
        retainers[i] = (struct retainer){.device = (CUdevice)size_word(command, 2, 0), .start = &start, .end = &end};
        if (pthread_create(&retainers[i].thread, NULL, retain, &retainers[i]) != 0) {
            _exit(70);
        }
    }
    for (size_t i = 0; i < count; i++) {
        pthread_join(retainers[i].thread, NULL);
        refused += retainers[i].result != CUDA_SUCCESS;
    }
    pthread_barrier_destroy(&start);
    pthread_barrier_destroy(&end);
    free(retainers);
    answer_ok(answer, "%zu", refused);
}

struct beside {
    struct beside *next;
    pthread_t thread;
    CUcontext context;
    char line[4096];
    struct answer answer;
};
static struct beside *besides;

static void *do_beside(void *argument) {
    struct beside *beside = argument;
    CALL(cuCtxSetCurrent, beside->context);
    struct answer *answer = need(calloc(1, sizeof *answer));
    char *rest = NULL;
    for (char *part = strtok_r(beside->line, ";", &rest); part != NULL; part = strtok_r(NULL, ";", &rest)) {
        run_line(part, answer);
        answer_more(&beside->answer, "%s%.*s", beside->answer.length > 0 ? " | " : "", (int)answer->length, answer->text);
    }
    free(answer);
    return NULL;
}

static void beside_command(const struct command *command, struct answer *answer) {
    struct beside *beside = need(calloc(1, sizeof *beside));
    command_rest(command, 1, beside->line, sizeof beside->line);
    CUresult result = CALL(cuCtxGetCurrent, &beside->context);
    if (result != CUDA_SUCCESS || pthread_create(&beside->thread, NULL, do_beside, beside) != 0) {
        free(beside);
        answer_bad(answer, "no context, or no thread");
        return;
    }
    beside->next = besides;
    besides = beside;
    answer_ok(answer, "%s", "");
}

static void join_command(struct answer *answer) {
    answer->length = 0;
    answer_more(answer, "ok");
    for (struct beside *next; besides != NULL; besides = next) {
        next = besides->next;
        pthread_join(besides->thread, NULL);
        answer_more(answer, "%s%.*s", answer->length > 2 ? " | " : " ", (int)besides->answer.length, besides->answer.text);
        free(besides);
    }
}

/* Many places, and none of them optimised away: of two writes in the very same moment a sanitizer may miss one. */
static volatile int shared_by_accident[256];

static void *write_without_lock(void *unused) {
    for (int i = 0; i < 256 * 16; i++) {
        shared_by_accident[i % 256]++;
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

bool thread_commands(const struct command *command, struct answer *answer) {
    const char *name = command->words[0];
    if (strcmp(name, "wrong") == 0) {
        wrong_command(command, answer);
    } else if (strcmp(name, "retains") == 0) {
        retains_command(command, answer);
    } else if (strcmp(name, "beside") == 0) {
        beside_command(command, answer);
    } else if (strcmp(name, "join") == 0) {
        join_command(answer);
    } else if (strcmp(name, "threads") == 0 || strcmp(name, "forks") == 0) {
        threads_command(command, answer);
    } else {
        return false;
    }
    return true;
}
