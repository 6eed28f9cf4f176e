/* The probe's loop: a line in, a line out. Groups of commands by subject lie in their own files:
 *
 *   contexts.c   init, count, device, release, reset, ctx, limit, stream, event
 *   memory.c     take, give, free, freeasync, forget, pitch, array2d, array3d, mipmap, set, get, attribute
 *   pools.c      pool
 *   vmm.c        vmm
 *   graphs.c     graph
 *   modules.c    module, launch
 *   sharing.c    ipc, vmm-send, vmm-receive, pool-send, pool-receive, pool-pointer, pool-open
 *   doors.c      prefetch, advise, access, poolaccess, poolat, poolof, vmmat, graphat, green, peer, multicast
 *   views.c      info, total, uuid, nvml, nvml-init, where
 *   load.c       fill, drop, abandon, mix, churn, time
 *   threads.c    threads, forks, retains, wrong, beside, join
 *   processes.c  fork, clone, background, spawn, exec, pid, closefds
 *   here         quit
 *
 * Options: --lookup dlsym|procaddress|linked, --version <N> (for procaddress), --ptsz (per-thread default streams).
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "probe.h"

char **probe_arguments;

static void answer_add(struct answer *answer, const char *format, va_list values) {
    size_t room = sizeof answer->text - answer->length;
    int written = vsnprintf(answer->text + answer->length, room, format, values);
    if (written > 0) {
        answer->length += (size_t)written < room ? (size_t)written : room - 1;
    }
}

void answer_more(struct answer *answer, const char *format, ...) {
    va_list values;
    va_start(values, format);
    answer_add(answer, format, values);
    va_end(values);
}

void answer_ok(struct answer *answer, const char *format, ...) {
    answer->length = 0;
    answer_more(answer, "%s", *format == '\0' ? "ok" : "ok ");
    va_list values;
    va_start(values, format);
    answer_add(answer, format, values);
    va_end(values);
}

void answer_bad(struct answer *answer, const char *format, ...) {
    answer->length = 0;
    answer_more(answer, "bad ");
    va_list values;
    va_start(values, format);
    answer_add(answer, format, values);
    va_end(values);
}

void answer_result(struct answer *answer, CUresult result) {
    answer->length = 0;
    if (result == CUDA_SUCCESS) {
        answer_more(answer, "ok");
    } else {
        answer_more(answer, "error %d %s", result, driver_culprit());
    }
}

bool parse_size(const char *text, size_t *size) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (end == text || errno != 0) {
        return false;
    }
    static const struct {
        const char *letter;
        int shift;
    } units[] = {{"", 0}, {"k", 10}, {"m", 20}, {"g", 30}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].letter) == 0) {
            *size = (size_t)value << units[i].shift;
            return true;
        }
    }
    return false;
}

bool parse_number(const char *text, long long *number) {
    char *end;
    *number = strtoll(text, &end, 0);
    return end != text && *end == '\0';
}

size_t size_word(const struct command *command, int index, size_t otherwise) {
    size_t size;
    return index < command->count && parse_size(command->words[index], &size) ? size : otherwise;
}

const char *word(const struct command *command, int index, const char *otherwise) {
    return index < command->count ? command->words[index] : otherwise;
}

void *need(void *memory) {
    if (memory == NULL) {
        fprintf(stderr, "probe: no host memory left\n");
        _exit(70);
    }
    return memory;
}

void command_rest(const struct command *command, int from, char *line, size_t room) {
    size_t length = 0;
    line[0] = '\0';
    for (int i = from; i < command->count && length < room; i++) {
        int written = snprintf(line + length, room - length, "%s%s", i > from ? " " : "", command->words[i]);
        length += written > 0 ? (size_t)written : 0;
    }
}

void run_line(char *line, struct answer *answer) {
    struct command command = {.count = 0};
    char *rest = NULL;
    for (char *part = strtok_r(line, " \t", &rest); part != NULL; part = strtok_r(NULL, " \t", &rest)) {
        if (command.count == MAX_WORDS) {
            answer_bad(answer, "more than %d words", MAX_WORDS);
            return;
        }
        command.words[command.count++] = part;
    }
    if (command.count == 0) {
        answer_ok(answer, "%s", "");
        return;
    }
    static command_group *const groups[] = {
        context_commands, memory_commands, pool_commands, vmm_commands,    graph_commands,   module_commands,
        share_commands,   view_commands,   load_commands, thread_commands, process_commands, door_commands,
    };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (groups[i](&command, answer)) {
            return;
        }
    }
    answer_bad(answer, "no such command: %s", command.words[0]);
}

/* Byte by byte and without a buffer, so that a program started by exec goes on with the next line. */
static bool read_line(char *line, size_t room) {
    size_t length = 0;
    for (;;) {
        char byte;
        ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        if (byte == '\n') {
            line[length] = '\0';
            return true;
        }
        if (length + 1 < room) {
            line[length++] = byte;
        }
    }
}

static void say(const struct answer *answer) {
    fwrite(answer->text, 1, answer->length, stdout);
    fputc('\n', stdout);
    fflush(stdout);
}

static bool read_options(char **arguments, enum lookup *lookup, int *version, bool *per_thread) {
    for (char **argument = arguments + 1; *argument != NULL; argument++) {
        if (strcmp(*argument, "--ptsz") == 0) {
            *per_thread = true;
        } else if (strcmp(*argument, "--version") == 0 && argument[1] != NULL) {
            *version = atoi(*++argument);
        } else if (strcmp(*argument, "--lookup") == 0 && argument[1] != NULL) {
            argument++;
            if (strcmp(*argument, "dlsym") == 0) {
                *lookup = LOOKUP_DLSYM;
            } else if (strcmp(*argument, "procaddress") == 0) {
                *lookup = LOOKUP_PROC_ADDRESS;
            } else if (strcmp(*argument, "linked") == 0) {
                *lookup = LOOKUP_LINKED;
            } else {
                return false;
            }
        } else {
            return false;
        }
    }
    return true;
}

int main(int count, char **arguments) {
    (void)count;
    probe_arguments = arguments;
#ifdef PROBE_LINKED
    enum lookup lookup = LOOKUP_LINKED;
#else
    enum lookup lookup = LOOKUP_DLSYM;
#endif
    int version = 13000;
    bool per_thread = false;
    if (!read_options(arguments, &lookup, &version, &per_thread)) {
        fprintf(stderr, "usage: probe [--lookup dlsym|procaddress|linked] [--version N] [--ptsz]\n");
        return 64;
    }
    static struct answer answer;
    char problem[512];
    if (!driver_find(lookup, version, per_thread, problem, sizeof problem)) {
        answer_bad(&answer, "no driver: %s", problem);
        say(&answer);
        return 69;
    }
    static char line[8192];
    while (read_line(line, sizeof line)) {
        if (strcmp(line, "quit") == 0) {
            answer_ok(&answer, "%s", "");
            say(&answer);
            break;
        }
        run_line(line, &answer);
        say(&answer);
    }
    return 0;
}
