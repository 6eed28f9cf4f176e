/* The driver as the probe sees it: one pointer per function, found in the way that the caller of the probe chose, and who failed last.
 *
 * Programs reach the driver by linking, by dlsym or by cuGetProcAddress, and a limiter must stand in all three ways. The same commands can
 * therefore run over each of them.
 */
#ifndef HAMI_PROBE_DRIVER_H
#define HAMI_PROBE_DRIVER_H

#include <stdbool.h>

#include "cuda_abi.h"

struct driver {
#define FUNCTION(name, base, lowest, highest, params) CUresult(*name) params;
#include "driver.def"
#undef FUNCTION
};

extern struct driver driver;

enum lookup { LOOKUP_DLSYM, LOOKUP_PROC_ADDRESS, LOOKUP_LINKED };

/* Finds all functions. False, and why in `problem`, if there is no driver at all; a missing function is only missed when it is called. */
bool driver_find(enum lookup lookup, int version, bool per_thread, char *problem, size_t room);

/* A pointer by any name, found in the same way; NULL if there is none. */
void *driver_address(const char *name);

#define DRIVER_MISSING (-1) /* no CUresult: the driver has no such function */

/* Calls a function and remembers its name if it fails: CALL(cuMemFree_v2, pointer). */
#define CALL(name, ...) called(#name, driver.name == NULL ? DRIVER_MISSING : driver.name(__VA_ARGS__))
CUresult called(const char *name, CUresult result);

/* The function that failed last in this thread. */
const char *driver_culprit(void);

#endif
