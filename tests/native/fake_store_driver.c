/* A process that uses the stand-in driver's store directly and obeys one command per line: the tests' way to its behaviour without the
 * rest of a driver. Numbers are in MiB for memory, in nanoseconds for time. Answers are one line each. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults.h"
#include "store.h"

void fakegpu_advance(uint64_t nanoseconds);

static void list_processes(int device)
{
    struct fake_process found[64];
    int count = store_processes(device, found, 64);
    for (int i = 0; i < count && i < 64; i++) {
        printf("%s%d:%d:%llu", i ? " " : "", found[i].pid, found[i].inner_pid, (unsigned long long)(found[i].bytes / FAKE_MIB));
    }
    printf("\n");
}

static void list_cards(int (*visible)(int *))
{
    int indexes[FAKE_MAX_DEVICES];
    int count = visible(indexes);
    for (int i = 0; i < count; i++) {
        printf("%s%d", i ? " " : "", indexes[i]);
    }
    printf("\n");
}

/* Takes and gives until it is killed: where, is up to the killer. */
static void churn(int device)
{
    printf("ok\n");
    fflush(stdout);
    for (unsigned int turn = 0;; turn++) {
        uint64_t bytes = (turn % 7 + 1) * FAKE_PAGE;
        enum fake_kind kind = turn % 3 ? FAKE_PROCESS : FAKE_MANAGED;
        if (store_take(device, kind, bytes) && turn % 5) {
            store_give(device, kind, bytes);
        }
    }
}

static void *take_and_give(void *device)
{
    for (int turn = 0; turn < 500; turn++) {
        if (store_take(*(int *)device, FAKE_PROCESS, FAKE_PAGE)) {
            store_give(*(int *)device, FAKE_PROCESS, FAKE_PAGE);
        }
        (void)store_run(*(int *)device, store_now(), 10);
        (void)fault("cuNothing");
    }
    return NULL;
}

static void run_threads(int device)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, take_and_give, &device);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("ok\n");
}

/* What a child has after fork, and what it can take: both seen by the child. */
static void fork_and_take(int device, uint64_t bytes)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        unsigned long long before = store_own(device) / FAKE_MIB;
        bool taken = store_take(device, FAKE_PROCESS, bytes);
        printf("%llu %d %llu %llu\n", before, taken, (unsigned long long)store_own(device) / FAKE_MIB,
               (unsigned long long)store_used(device) / FAKE_MIB);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static void obey(const char *what, int device, uint64_t number, uint64_t second, const char *word)
{
    const struct fake_device *devices;
    if (strcmp(what, "take") == 0) {
        printf("%d\n", store_take(device, FAKE_PROCESS, number * FAKE_MIB));
    } else if (strcmp(what, "take-bytes") == 0) {
        printf("%d\n", store_take(device, FAKE_PROCESS, number));
    } else if (strcmp(what, "managed") == 0) {
        printf("%d\n", store_take(device, FAKE_MANAGED, number * FAKE_MIB));
    } else if (strcmp(what, "give") == 0) {
        store_give(device, FAKE_PROCESS, number * FAKE_MIB);
        printf("ok\n");
    } else if (strcmp(what, "used") == 0) {
        printf("%llu\n", (unsigned long long)(store_used(device) / FAKE_MIB));
    } else if (strcmp(what, "own") == 0) {
        printf("%llu\n", (unsigned long long)(store_own(device) / FAKE_MIB));
    } else if (strcmp(what, "processes") == 0) {
        list_processes(device);
    } else if (strcmp(what, "churn") == 0) {
        churn(device);
    } else if (strcmp(what, "threads") == 0) {
        run_threads(device);
    } else if (strcmp(what, "fork") == 0) {
        fork_and_take(device, number * FAKE_MIB);
    } else if (strcmp(what, "run") == 0) {
        printf("%llu\n", (unsigned long long)store_run(device, number, second));
    } else if (strcmp(what, "busy") == 0) {
        uint64_t own;
        unsigned long long all = store_busy(device, &own);
        printf("%llu %llu\n", all, (unsigned long long)own);
    } else if (strcmp(what, "now") == 0) {
        printf("%llu\n", (unsigned long long)store_now());
    } else if (strcmp(what, "sleep") == 0) {
        store_sleep_until(number);
        printf("ok\n");
    } else if (strcmp(what, "advance") == 0) {
        fakegpu_advance(number);
        printf("ok\n");
    } else if (strcmp(what, "nvml") == 0) {
        list_cards(store_visible_nvml);
    } else if (strcmp(what, "cuda") == 0) {
        list_cards(store_visible_cuda);
    } else if (strcmp(what, "problem") == 0) {
        int count = store_devices(&devices);
        printf("%d %s\n", count, store_problem());
    } else if (strcmp(what, "fault") == 0) {
        printf("%d\n", fault(word));
    } else if (strcmp(what, "missing") == 0) {
        printf("%d\n", fault_missing(word));
    } else {
        printf("what is %s?\n", what);
    }
}

int main(void)
{
    char line[256];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char what[64] = "";
        char word[64] = "";
        int device = 0;
        unsigned long long number = 0;
        unsigned long long second = 0;
        if (sscanf(line, "%63s %d %llu %llu", what, &device, &number, &second) < 2) {
            (void)sscanf(line, "%63s %63s", what, word);
        }
        obey(what, device, number, second, word);
        fflush(stdout);
    }
    return 0;
}
