/* Reads and applies faults: see faults.h. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults.h"
#include "store_internal.h"

#define MOST_FAULTS 256
#define NOWHERE 4194304 /* above every pid that Linux gives */

enum kind { FAIL, DELAY, MISSING, LOST, HIDE, PIDS };

struct order {
    enum kind kind;
    char text[256]; /* as it was written: a file that is read again keeps the counts of the lines that stayed */
    char name[128]; /* function, or UUID of a card */
    uint64_t first; /* FAIL: which call */
    bool onwards;
    int code;
    uint64_t amount; /* DELAY: milliseconds, HIDE: bytes, PIDS: what is added */
    uint64_t calls;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct order orders[MOST_FAULTS];
static int order_count;
static bool environment_read;
static int from_environment;
static struct stat file_seen;

void fault_after_fork(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    mutex = fresh;
}

/* What cannot be read is no fault: a test that misspells one sees that nothing fails. */
static bool parse(const char *text, struct order *order)
{
    char word[3][128] = {"", "", ""};
    memset(order, 0, sizeof *order);
    snprintf(order->text, sizeof order->text, "%s", text);
    int words = sscanf(text, "%127s %127s %127s", word[0], word[1], word[2]);
    snprintf(order->name, sizeof order->name, "%s", words > 1 ? word[1] : "");
    if (words == 2 && strcmp(word[0], "missing") == 0) {
        order->kind = MISSING;
        return true;
    }
    if (words >= 2 && strcmp(word[0], "pids") == 0) {
        order->kind = PIDS;
        order->amount = strcmp(word[1], "outer") == 0 ? NOWHERE : strtoull(word[2], NULL, 10);
        return strcmp(word[1], "outer") == 0 || strcmp(word[1], "shifted") == 0;
    }
    if (words == 3 && strcmp(word[0], "card") == 0) {
        order->kind = strcmp(word[2], "lost") == 0 ? LOST : HIDE;
        char bytes[64] = "";
        return order->kind == LOST || (sscanf(text, "%*s %*s hide %63s", bytes) == 1 && (order->amount = strtoull(bytes, NULL, 10)) > 0);
    }
    if (words != 3) {
        return false;
    }
    snprintf(order->name, sizeof order->name, "%s", word[0]);
    if (strcmp(word[1], "delay") == 0) {
        order->kind = DELAY;
        order->amount = strtoull(word[2], NULL, 10);
        return true;
    }
    char *end;
    order->kind = FAIL;
    order->first = strtoull(word[1], &end, 10);
    order->onwards = *end == '+';
    order->code = atoi(word[2]);
    return order->first > 0 && order->code != 0;
}

static void add_all(char *text)
{
    char *rest = text;
    for (char *line; order_count < MOST_FAULTS && (line = strsep(&rest, "\n;")) != NULL;) {
        line += strspn(line, " \t\r");
        if (*line && *line != '#' && parse(line, &orders[order_count])) {
            order_count++;
        }
    }
}

static void read_environment(void)
{
    const char *given = getenv("FAKEGPU_FAULTS");
    char *copy = given ? strdup(given) : NULL;
    if (copy) {
        add_all(copy);
        free(copy);
    }
    from_environment = order_count;
    environment_read = true;
}

static void read_file(const char *path)
{
    static struct order before[MOST_FAULTS];
    char text[16384] = "";
    int old_count = order_count;
    memcpy(before, orders, sizeof before);
    order_count = from_environment;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t length = read(fd, text, sizeof text - 1);
        text[length > 0 ? length : 0] = 0;
        close(fd);
    }
    add_all(text);
    for (int i = from_environment; i < order_count; i++) {
        for (int old = from_environment; old < old_count; old++) {
            if (strcmp(before[old].text, orders[i].text) == 0) {
                orders[i].calls = before[old].calls;
            }
        }
    }
}

static bool same_file(const struct stat *one, const struct stat *other)
{
    return one->st_ino == other->st_ino && one->st_size == other->st_size && one->st_mtim.tv_sec == other->st_mtim.tv_sec &&
           one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

static void look_again(void)
{
    int kept = errno;
    if (!environment_read) {
        read_environment();
    }
    char path[4096];
    struct stat now;
    memset(&now, 0, sizeof now);
    if (store_path(path, sizeof path, "faults") && stat(path, &now) < 0) {
        memset(&now, 0, sizeof now);
    }
    if (!same_file(&now, &file_seen)) {
        file_seen = now;
        read_file(path);
    }
    errno = kept;
}

static void lock_and_look(void)
{
    pthread_mutex_lock(&mutex);
    look_again();
}

int fault(const char *name)
{
    uint64_t delay = 0;
    int code = 0;
    lock_and_look();
    for (int i = 0; i < order_count; i++) {
        struct order *order = &orders[i];
        if (order->kind > DELAY || strcmp(order->name, name) != 0) {
            continue;
        }
        if (order->kind == DELAY) {
            delay += order->amount;
            continue;
        }
        order->calls++;
        if (code == 0 && (order->calls == order->first || (order->onwards && order->calls > order->first))) {
            code = order->code;
        }
    }
    pthread_mutex_unlock(&mutex);
    if (delay > 0) {
        store_sleep_until(store_now() + delay * 1000000u);
    }
    return code;
}

static bool ordered(enum kind kind, const char *name, uint64_t *amount)
{
    bool found = false;
    lock_and_look();
    for (int i = 0; i < order_count; i++) {
        if (orders[i].kind == kind && (!name || strcmp(orders[i].name, name) == 0)) {
            found = true;
            *amount += orders[i].amount;
        }
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

bool fault_missing(const char *name)
{
    uint64_t unused = 0;
    return ordered(MISSING, name, &unused);
}

bool fault_lost(const char *uuid)
{
    uint64_t unused = 0;
    return ordered(LOST, uuid, &unused);
}

uint64_t fault_hidden(const char *uuid)
{
    uint64_t bytes = 0;
    (void)ordered(HIDE, uuid, &bytes);
    return bytes;
}

int fault_pid(int pid)
{
    uint64_t shift = 0;
    (void)ordered(PIDS, NULL, &shift);
    return pid + (int)shift;
}
