/* Coarse time for "not more often than" decisions: a few nanoseconds a reading. */
#ifndef HAMI_VGPU_CLOCK_H
#define HAMI_VGPU_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_coarse_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
