/* The dynamic linker's doors to the driver beside dlsym: dlvsym, dlopen, dlmopen.
 *
 * dlvsym is answered as dlsym is, and who asks for one of these four by the C library's handle gets ours. A library that is opened with RTLD_DEEPBIND, as Julia does by default, prefers what it is linked to
 * over what is preloaded: it would have the driver's functions, and the linker's own dlsym. A namespace made by dlmopen has nothing
 * that is preloaded. So under a limit the flag is left out and there is only the first namespace. What is opened, by whom and where it
 * is looked for is left to the real functions: they see our caller as theirs.
 */
#ifndef HAMI_VGPU_LINKER_H
#define HAMI_VGPU_LINKER_H

#include <stdbool.h>
#include <stdint.h>

/* dlsym and its like run before a sanitizer's shadow memory exists: what they touch on the way to the real one is not instrumented. */
#define BEFORE_SANITIZERS __attribute__((no_sanitize_address, no_sanitize_thread))

typedef void *(*dlvsym_function)(void *handle, const char *name, const char *version);

/* Called by the exported functions (dlsym_*.S) with their arguments, which they may change, and after these the address they return to.
 * They return `found` or, if that is NULL, jump to `next` with the arguments as they are then. */
struct linker_answer {
    void *found;
    void *next;
};

#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN struct linker_answer linker_dlsym_hook(uintptr_t call[4]); /* in intercept.c */
HIDDEN struct linker_answer linker_dlopen_hook(uintptr_t call[4]);
HIDDEN struct linker_answer linker_dlmopen_hook(uintptr_t call[4]);
HIDDEN struct linker_answer linker_dlvsym_hook(uintptr_t call[4]);
#undef HIDDEN

/* The C library's dlvsym, found in its symbol table: the name alone would lead to ours. */
dlvsym_function linker_real_dlvsym(void);

/* Ours, if `found` is the C library's own function of that name: the real dlsym would lead past us. Else NULL. */
void *linker_own_door(const char *name, const void *found);

/* Whether an address lies in a file that has this name for itself (DT_SONAME), as every copy of that file has. */
bool linker_lies_in(const void *address, const char *name);

/* Whether two addresses lie in the same loaded file. */
bool linker_lie_together(const void *one, const void *other);

/* The next dlopen after ours. */
void *linker_real_dlopen(const char *file, int flags);

#endif
