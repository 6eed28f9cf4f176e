/* A program that obeys commands from stdin, one answer line each: it is a process of a container, seen from libvgpu's parts for limits,
 * state and mirror, which are linked into it. Those look for their files beside this program. See state_driving.py.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "limits.h"
#include "mirror.h"
#include "state.h"

static struct places places;
static struct limits limits;
static struct vgpu_state *state;
static const char *own_path;
static bool errno_changed; /* by a call that must not */

#define KEEPING_ERRNO(call) (errno = EXDEV, (call), errno_changed = errno_changed || errno != EXDEV)

static void show_limits(void) {
    static const char *const sources[] = {"none", "policy", "env", "refused"};
    printf("%s %" PRIu64 " %" PRIu32 " %" PRId32, sources[limits.source], limits.generation, limits.flags, limits.priority);
    for (uint32_t i = 0; i < limits.device_count; i++) {
        const struct device_limit *device = &limits.devices[i];
        printf(" %s/%" PRIu64 "/%" PRIu32 "/%" PRIu64, device->uuid, device->memory, device->cores, device->context_bytes);
    }
}

/* Adds to what this process has, as the library's ledger does. */
static bool use(uint32_t device, uint64_t bytes) {
    if (state == NULL || state_own_slot() < 0 || !state_lock(state)) {
        return false;
    }
    state->writing = 1;
    state->slots[state_own_slot()].usage[device].linear += bytes;
    state->devices[device].used += bytes;
    state->writing = 0;
    state_unlock(state);
    return true;
}

struct counted {
    int32_t pid;
    uint64_t bytes;
};

static uint64_t counted_for(int32_t pid, uint32_t device, uint64_t dead_since, void *context) {
    (void)dead_since;
    const struct counted *counted = context;
    return pid == counted->pid && device == 0 ? counted->bytes : 0;
}

static int open_state_files(void) {
    int count = 0;
    struct stat wanted;
    if (stat(places.state, &wanted) != 0) {
        return -1;
    }
    for (int fd = 0; fd < 4096; fd++) {
        struct stat found;
        count += fstat(fd, &found) == 0 && found.st_dev == wanted.st_dev && found.st_ino == wanted.st_ino;
    }
    return count;
}

static void close_from_to(int first, int last) {
    for (int fd = first; fd <= last; fd++) {
        close(fd);
    }
}

/* Gives every descriptor number that the library may have used to a file of the program. */
static void squat(const char *path) {
    close_from_to(3, 1023);
    int fd = open(path, O_RDWR);
    for (int other = 512; other < 530; other++) {
        dup2(fd, other);
    }
}

static void *worker(void *argument) {
    long turns = *(const long *)argument;
    for (long turn = 0; turn < turns; turn++) {
        state_attach(&places, true);
        use(0, 1);
        if (turn % 16 == 0 && state_lock(state)) {
            state_sweep(state, NULL, NULL);
            state_unlock(state);
        }
    }
    return NULL;
}

static void run_threads(int count, long turns) {
    pthread_t threads[64];
    for (int i = 0; i < count; i++) {
        pthread_create(&threads[i], NULL, worker, &turns);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void obey(char *line);

/* The rest of the line, parts separated by `;`, is obeyed by a child; its answers stand in one line. */
static void in_child(char *commands, bool with_handler) {
    fflush(stdout);
    pid_t child = with_handler ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        if (with_handler) {
            state_forget_after_fork();
            mirror_forget_after_fork();
        }
        char *rest = commands;
        for (char *part = strtok_r(rest, ";", &rest); part != NULL; part = strtok_r(rest, ";", &rest)) {
            obey(part);
            printf(" ");
        }
        fflush(stdout);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("status=%d", status);
}

static void obey_mirror(const char *what, const char *rest) {
    if (strcmp(what, "mirror") == 0) {
        char uuids[VGPU_MAX_DEVICES][VGPU_UUID_SIZE] = {{0}};
        uint32_t count = (uint32_t)strtoul(rest, NULL, 10);
        for (uint32_t i = 0; i < count && i < VGPU_MAX_DEVICES; i++) {
            snprintf(uuids[i], sizeof uuids[i], "GPU-%" PRIu32, i);
        }
        KEEPING_ERRNO(mirror_open(places.mirror, &limits, count, (const char(*)[VGPU_UUID_SIZE])uuids));
        printf("%d", mirror_is_open());
    } else if (strcmp(what, "mirror_process") == 0) {
        int slot = 0;
        int pid = 0;
        int status = 0;
        sscanf(rest, "%d %d %d", &slot, &pid, &status);
        KEEPING_ERRNO(mirror_process(slot, pid, status));
        printf("ok");
    } else if (strcmp(what, "mirror_usage") == 0) {
        int slot = 0;
        uint32_t device = 0;
        struct vgpu_usage usage = {0};
        sscanf(rest, "%d %" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &slot,
               &device, &usage.overhead, &usage.linear, &usage.managed, &usage.pool, &usage.vmm, &usage.array, &usage.graph,
               &usage.pending);
        KEEPING_ERRNO(mirror_usage(slot, device, &usage));
        printf("ok");
    } else if (strcmp(what, "mirror_limits") == 0) {
        KEEPING_ERRNO(mirror_limits(&limits));
        printf("ok");
    } else if (strcmp(what, "mirror_kernel") == 0) {
        mirror_kernel_time(strtoull(rest, NULL, 10));
        printf("ok");
    } else {
        printf("unknown command %s", what);
    }
}

static void obey_state(const char *what, const char *rest) {
    if (strcmp(what, "lock") == 0) {
        printf("%d", state_lock(state));
    } else if (strcmp(what, "unlock") == 0) {
        state_unlock(state);
        printf("ok");
    } else if (strcmp(what, "use") == 0) {
        uint32_t device = 0;
        uint64_t bytes = 0;
        sscanf(rest, "%" SCNu32 " %" SCNu64, &device, &bytes);
        printf("%d", use(device, bytes));
    } else if (strcmp(what, "used") == 0) {
        bool locked = state_lock(state);
        printf("%" PRIu64, locked ? state->devices[strtoul(rest, NULL, 10)].used : UINT64_MAX);
        if (locked) {
            state_unlock(state);
        }
    } else if (strcmp(what, "sweep") == 0) {
        struct counted counted = {0};
        int given = sscanf(rest, "%" SCNd32 " %" SCNu64, &counted.pid, &counted.bytes);
        int waiting = -1;
        if (state_lock(state)) {
            KEEPING_ERRNO(waiting = state_sweep(state, given == 2 ? counted_for : NULL, &counted));
            state_unlock(state);
        }
        printf("%d", waiting);
    } else if (strcmp(what, "recompute") == 0) {
        state_recompute(state);
        printf("ok");
    } else if (strcmp(what, "threads") == 0) {
        int count = 0;
        long turns = 0;
        sscanf(rest, "%d %ld", &count, &turns);
        run_threads(count < 64 ? count : 64, turns);
        printf("ok");
    } else {
        obey_mirror(what, rest);
    }
}

static void obey_process(const char *what, char *rest) {
    if (strcmp(what, "fork") == 0 || strcmp(what, "clone") == 0) {
        in_child(rest, what[0] == 'f');
    } else if (strcmp(what, "exec") == 0) {
        fflush(stdout);
        execl(own_path, own_path, (char *)NULL);
        printf("errno %d", errno);
    } else if (strcmp(what, "close") == 0) {
        int first = 0;
        int last = 0;
        sscanf(rest, "%d %d", &first, &last);
        close_from_to(first, last);
        printf("ok");
    } else if (strcmp(what, "squat") == 0) {
        squat(rest);
        printf("ok");
    } else if (strcmp(what, "stay") == 0) {
        printf("staying\n");
        fflush(stdout);
        while (fgetc(stdin) != EOF) { /* until the test ends */
        }
    } else if (strcmp(what, "fds") == 0) {
        printf("%d", open_state_files());
    } else if (strcmp(what, "fsize") == 0) {
        struct rlimit limit;
        getrlimit(RLIMIT_FSIZE, &limit);
        limit.rlim_cur = strtoull(rest, NULL, 10);
        printf("%d", setrlimit(RLIMIT_FSIZE, &limit));
    } else {
        obey_state(what, rest);
    }
}

static void obey(char *line) {
    char *rest = line;
    const char *what = strsep(&rest, " ");
    if (rest == NULL) {
        rest = line + strlen(line);
    }
    if (strcmp(what, "places") == 0) {
        KEEPING_ERRNO(places_find(&places));
        printf("%s|%s|%s|%d", places.policy, places.state, places.mirror, places.state_made_by_agent);
    } else if (strcmp(what, "limits") == 0) {
        KEEPING_ERRNO(limits_read(&places, &limits));
        show_limits();
    } else if (strcmp(what, "reread") == 0) {
        bool changed;
        KEEPING_ERRNO(changed = limits_reread(&places, &limits));
        printf("%d ", changed);
        show_limits();
    } else if (strcmp(what, "parse") == 0) {
        printf("%" PRIu64, limits_parse_memory(rest));
    } else if (strcmp(what, "attach") == 0) {
        KEEPING_ERRNO(state = state_attach(&places, true));
        printf("%d", state != NULL ? state_own_slot() : -1);
    } else if (strcmp(what, "view") == 0) {
        KEEPING_ERRNO(state = state_attach(&places, false));
        printf("%d", state != NULL);
    } else {
        obey_process(what, rest);
    }
}

int main(int count, char **words) {
    static char line[65536];
    (void)count;
    own_path = words[0];
    setvbuf(stdin, NULL, _IONBF, 0); /* what is not read yet must be there after exec */
    places_find(&places);
    limits_read(&places, &limits);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        errno_changed = false;
        obey(line);
        printf("%s\n", errno_changed ? " errno changed" : "");
        fflush(stdout);
    }
    return 0;
}
