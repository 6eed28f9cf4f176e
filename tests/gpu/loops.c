/* Timed loops around driver calls. Python finds the functions (ctypes, so through a preloaded libvgpu.so as any program does) and
 * passes their addresses; the loop itself is C, because a call from Python costs more than what is measured.
 * Built by tests/gpu/timing.py with the machine's own compiler. Every function returns nanoseconds per turn, or -1 - CUresult.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int (*alloc_function)(uint64_t *pointer, size_t size);
typedef int (*free_function)(uint64_t pointer);
typedef int (*alloc_async_function)(uint64_t *pointer, size_t size, void *stream);
typedef int (*free_async_function)(uint64_t pointer, void *stream);
typedef int (*launch_function)(void *function, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                               unsigned int, void *stream, void **parameters, void **extra);
typedef int (*attribute_function)(void *object, int attribute, void *value);
typedef int (*info_function)(size_t *available, size_t *total);

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_RAW, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

double time_alloc_free(alloc_function alloc, free_function release, size_t size, int turns)
{
    double start = now();
    for (int turn = 0; turn < turns; turn++) {
        uint64_t pointer;
        int code = alloc(&pointer, size);
        if (code == 0)
            code = release(pointer);
        if (code != 0)
            return -1.0 - code;
    }
    return (now() - start) / turns;
}

/* Makes `count` allocations and keeps them; returns ns per allocation. */
double time_alloc(alloc_function alloc, size_t size, uint64_t *pointers, int count)
{
    double start = now();
    for (int index = 0; index < count; index++) {
        int code = alloc(&pointers[index], size);
        if (code != 0)
            return -1.0 - code;
    }
    return (now() - start) / count;
}

double time_free(free_function release, const uint64_t *pointers, int count)
{
    double start = now();
    for (int index = 0; index < count; index++) {
        int code = release(pointers[index]);
        if (code != 0)
            return -1.0 - code;
    }
    return (now() - start) / count;
}

double time_async_pair(alloc_async_function alloc, free_async_function release, size_t size, void *stream, int turns)
{
    double start = now();
    for (int turn = 0; turn < turns; turn++) {
        uint64_t pointer;
        int code = alloc(&pointer, size, stream);
        if (code == 0)
            code = release(pointer, stream);
        if (code != 0)
            return -1.0 - code;
    }
    return (now() - start) / turns;
}

double time_launch(launch_function launch, void *function, void *stream, int turns)
{
    double start = now();
    for (int turn = 0; turn < turns; turn++) {
        int code = launch(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
        if (code != 0)
            return -1.0 - code;
    }
    return (now() - start) / turns;
}

double time_attribute(attribute_function get, void *object, int attribute, int turns)
{
    uint64_t value[8];
    double start = now();
    for (int turn = 0; turn < turns; turn++) {
        int code = get(object, attribute, value);
        if (code != 0)
            return -1.0 - code;
    }
    return (now() - start) / turns;
}

double time_info(info_function info, int turns)
{
    size_t available, total;
    double start = now();
    for (int turn = 0; turn < turns; turn++) {
        int code = info(&available, &total);
        if (code != 0)
            return -1.0 - code;
    }
    return (now() - start) / turns;
}
