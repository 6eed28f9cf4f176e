/* Asks for entry points in every way that programs have, and says in which file and under which name each one lies. Reads lines:
 *
 *   handle <file> <name>               dlsym on dlopen(file); "-" is the program itself
 *   default <name>                     dlsym(RTLD_DEFAULT)
 *   address <entry> <symbol> <version> <flags>    cuGetProcAddress in one of its shapes, itself found by dlsym
 *   call <name>                        calls what RTLD_DEFAULT finds with zeroes, says what it returned
 *   errno <file> <name>                whether dlsym left errno alone
 *   closed <file> <name>               dlsym after a dlclose of the same file
 *   forked <file> <name>               dlsym in a forked child
 *   threads <file> <name>              dlsym in eight threads at once; "differ" unless all are told the same
 *   versioned <file> <name> <version>  dlvsym on dlopen(file)
 *   user <how> <function>              calls a function of libuser.so, opened "plain", "deep" (RTLD_DEEPBIND) or "apart" (dlmopen)
 *   chain                              calls chained_name()
 *
 * and answers one line each: "<file> <name>", or "none <dlerror>", or a number.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*any_function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
typedef int (*lookup)(const char *, void **, int, uint64_t, int *);

int chained_name(void);

static void say(void *pointer) {
    Dl_info info;
    const char *message = dlerror();
    if (pointer == NULL) {
        printf("none %s\n", message != NULL ? message : "(no message)");
    } else if (message != NULL) {
        printf("found, but dlerror says: %s\n", message);
    } else if (dladdr(pointer, &info) == 0 || info.dli_fname == NULL) {
        printf("nowhere\n");
    } else {
        printf("%s %s\n", strrchr(info.dli_fname, '/') != NULL ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname,
               info.dli_sname != NULL ? info.dli_sname : "-");
    }
}

static void *open_file(const char *file) {
    return dlopen(strcmp(file, "-") == 0 ? NULL : file, RTLD_NOW | RTLD_LOCAL);
}

static void ask_for_address(const char *entry, const char *symbol, int version, unsigned int flags) {
    lookup look_up = (lookup)dlsym(open_file("libcuda.so.1"), entry);
    void *found = NULL;
    int status = -1;
    int result = look_up == NULL ? -1 : look_up(symbol, &found, version, flags, strstr(entry, "_v2") != NULL ? &status : NULL);
    if (result != 0) {
        printf("error %d status %d\n", result, status);
    } else {
        say(found);
    }
}

static void ask_in_child(const char *file, const char *name) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        say(dlsym(open_file(file), name));
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

#define THREADS 8

struct question {
    pthread_barrier_t *start;
    void *handle;
    const char *name;
    void *found;
};

static void *ask_in_thread(void *argument) {
    struct question *question = argument;
    pthread_barrier_wait(question->start);
    question->found = dlsym(question->handle, question->name);
    return NULL;
}

static void ask_in_threads(const char *file, const char *name) {
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, THREADS);
    pthread_t threads[THREADS];
    struct question questions[THREADS];
    void *handle = open_file(file);
    for (int i = 0; i < THREADS; i++) {
        questions[i] = (struct question){.start = &start, .handle = handle, .name = name};
        pthread_create(&threads[i], NULL, ask_in_thread, &questions[i]);
    }
    bool same = true;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        same = same && questions[i].found == questions[0].found;
    }
    if (same) {
        say(questions[0].found);
    } else {
        printf("differ\n");
    }
}

static void ask_user(const char *how, const char *function) {
    int flags = RTLD_NOW | RTLD_LOCAL | (strcmp(how, "deep") == 0 ? RTLD_DEEPBIND : 0);
    void *user = strcmp(how, "apart") == 0 ? dlmopen(LM_ID_NEWLM, "libuser.so", flags) : dlopen("libuser.so", flags);
    void *(*ask)(void) = user != NULL ? (void *(*)(void))dlsym(user, function) : NULL;
    say(ask != NULL ? ask() : NULL);
}

static void answer(char *line) {
    char first[256] = "";
    char second[256] = "";
    char third[256] = "";
    int version = 0;
    unsigned int flags = 0;
    if (sscanf(line, "handle %255s %255s", first, second) == 2) {
        say(dlsym(open_file(first), second));
    } else if (sscanf(line, "default %255s", first) == 1) {
        say(dlsym(RTLD_DEFAULT, first));
    } else if (sscanf(line, "address %255s %255s %d %u", first, second, &version, &flags) == 4) {
        ask_for_address(first, second, version, flags);
    } else if (sscanf(line, "call %255s", first) == 1) {
        any_function function = (any_function)dlsym(RTLD_DEFAULT, first);
        printf("%d\n", function != NULL ? function(0, 0, 0, 0, 0, 0, 0, 0) : -1);
    } else if (sscanf(line, "errno %255s %255s", first, second) == 2) {
        void *handle = open_file(first);
        errno = 77;
        void *found = dlsym(handle, second);
        int left = errno;
        printf("%s %d\n", found != NULL ? "found" : "none", left);
    } else if (sscanf(line, "closed %255s %255s", first, second) == 2) {
        void *handle = open_file(first);
        dlsym(handle, second);
        dlclose(handle);
        say(dlsym(open_file(first), second));
    } else if (sscanf(line, "forked %255s %255s", first, second) == 2) {
        ask_in_child(first, second);
    } else if (sscanf(line, "threads %255s %255s", first, second) == 2) {
        ask_in_threads(first, second);
    } else if (sscanf(line, "versioned %255s %255s %255s", first, second, third) == 3) {
        say(dlvsym(open_file(first), second, third));
    } else if (sscanf(line, "user %255s %255s", first, second) == 2) {
        ask_user(first, second);
    } else if (strncmp(line, "chain", 5) == 0) {
        printf("%d\n", chained_name());
    } else {
        printf("not understood\n");
    }
}

int main(void) {
    char line[1024];
    while (fgets(line, sizeof line, stdin) != NULL) {
        answer(line);
    }
    return 0;
}
