/* New processes in every way that a program may make them.
 *
 *   pid                       answers this process's number
 *   fork <command>; ...       fork(), the commands in the child, its answers separated by " | "
 *   clone <command>; ...      the same by the bare system call: no library hears of it
 *   spawn <command>; ...      vfork and exec of a new probe
 *   exec                      becomes a new probe under the same number, which reads on from stdin
 *   background <command>; ... like fork, but the child stays (until killed) and only its number and answers are told
 *   closefds <from> <to>      closes descriptors as a daemon does
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

static void run_all(char *line, int output) {
    static struct answer answer;
    char *rest = NULL;
    bool first = true;
    for (char *part = strtok_r(line, ";", &rest); part != NULL; part = strtok_r(NULL, ";", &rest)) {
        run_line(part, &answer);
        if ((!first && write(output, " | ", 3) != 3) || write(output, answer.text, answer.length) != (ssize_t)answer.length) {
            _exit(74);
        }
        first = false;
    }
    if (write(output, "\n", 1) != 1) {
        _exit(74);
    }
}

/* The child's one line into the answer; false at its end without one. */
static bool hear(int input, struct answer *answer) {
    char byte;
    for (;;) {
        ssize_t got = read(input, &byte, 1);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        if (byte == '\n') {
            return true;
        }
        answer_more(answer, "%c", byte);
    }
}

static void finish(pid_t child, int input, struct answer *answer, bool wait_for_end) {
    if (child < 0) {
        answer_bad(answer, "no new process: %s", strerror(errno));
        return;
    }
    answer_ok(answer, "%ld | ", (long)child);
    bool heard = hear(input, answer);
    int status = 0;
    if (wait_for_end || !heard) {
        waitpid(child, &status, 0);
    }
    if (!heard || status != 0) {
        answer_bad(answer, "the child ended with status %d", status);
    }
    close(input);
}

static void child_command(const struct command *command, struct answer *answer) {
    char line[4096];
    command_rest(command, 1, line, sizeof line);
    int ends[2];
    if (pipe(ends) != 0) {
        answer_bad(answer, "no pipe: %s", strerror(errno));
        return;
    }
    const char *how = command->words[0];
    /* The bare system call is clone with fork's flags: the C library's handlers do not run. */
    pid_t child = strcmp(how, "clone") == 0 ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
    if (child == 0) {
        close(ends[0]);
        run_all(line, ends[1]);
        close(ends[1]);
        if (strcmp(how, "background") == 0) {
            for (;;) {
                pause();
            }
        }
        _exit(0);
    }
    close(ends[1]);
    finish(child, ends[0], answer, strcmp(how, "background") != 0);
}

static void spawn_command(const struct command *command, struct answer *answer) {
    char line[4096];
    command_rest(command, 1, line, sizeof line);
    for (char *part = strchr(line, ';'); part != NULL; part = strchr(part, ';')) {
        *part = '\n';
    }
    int input[2], output[2];
    if (pipe(input) != 0 || pipe(output) != 0) {
        answer_bad(answer, "no pipe: %s", strerror(errno));
        return;
    }
    pid_t child = vfork();
    if (child == 0) {
        dup2(input[0], STDIN_FILENO);
        dup2(output[1], STDOUT_FILENO);
        close(input[1]);
        close(output[0]);
        execv("/proc/self/exe", probe_arguments);
        _exit(71);
    }
    close(input[0]);
    close(output[1]);
    if (child > 0) {
        size_t length = strlen(line);
        line[length++] = '\n';
        if (write(input[1], line, length) != (ssize_t)length) {
            answer_bad(answer, "the new probe does not listen");
        }
    }
    close(input[1]);
    if (child < 0) {
        answer_bad(answer, "no new process: %s", strerror(errno));
        return;
    }
    answer_ok(answer, "%ld", (long)child);
    size_t end = answer->length;
    for (;;) { /* one line for each command */
        answer_more(answer, " | ");
        if (!hear(output[0], answer)) {
            break;
        }
        end = answer->length;
    }
    answer->length = end;
    answer->text[end] = '\0';
    close(output[0]);
    waitpid(child, NULL, 0);
}

bool process_commands(const struct command *command, struct answer *answer) {
    const char *name = command->words[0];
    if (strcmp(name, "pid") == 0) {
        answer_ok(answer, "%ld", (long)getpid());
    } else if (strcmp(name, "fork") == 0 || strcmp(name, "clone") == 0 || strcmp(name, "background") == 0) {
        child_command(command, answer);
    } else if (strcmp(name, "spawn") == 0) {
        spawn_command(command, answer);
    } else if (strcmp(name, "exec") == 0) {
        execv("/proc/self/exe", probe_arguments);
        answer_bad(answer, "exec: %s", strerror(errno));
    } else if (strcmp(name, "closefds") == 0) {
        for (size_t descriptor = size_word(command, 1, 3); descriptor <= size_word(command, 2, 255); descriptor++) {
            close((int)descriptor);
        }
        answer_ok(answer, "%s", "");
    } else {
        return false;
    }
    return true;
}
