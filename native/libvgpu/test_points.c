/* See test_points.h. Nothing of this is in the product. */
#include "test_points.h"

#ifdef VGPU_TEST_POINTS
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void hold(const char *folder, const char *label) {
    char armed[4096];
    char held[4200];
    snprintf(armed, sizeof armed, "%s/%s", folder, label);
    snprintf(held, sizeof held, "%s.held", armed);
    if (rename(armed, held) == 0) {
        while (access(held, F_OK) == 0) {
            usleep(1000);
        }
    }
}

void test_point(const char *label) {
    const char *folder = getenv("VGPU_HOLD_IN");
    if (folder != NULL) {
        hold(folder, label);
    }
    const char *wanted = getenv("VGPU_KILL_AT");
    if (wanted == NULL) {
        return;
    }
    size_t length = strlen(label);
    if (strncmp(wanted, label, length) != 0 || wanted[length] != ':') {
        return;
    }
    static atomic_int passed;
    if (atomic_fetch_add(&passed, 1) + 1 == atoi(wanted + length + 1)) {
        kill(getpid(), SIGKILL);
        pause();
    }
}
#else
typedef int nothing_to_compile;
#endif
