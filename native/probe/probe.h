/* What the probe's parts share: commands and their answers, named things, kinds of memory.
 *
 * The probe is a program that drives the CUDA driver by lines on stdin and answers each by one line on stdout: `ok [values]`,
 * `error <CUresult> <function>`, or `bad <why>` for a line that it does not understand. Tests use it against the stand-in driver and
 * against a real one, with and without libvgpu; it uses only the published interface. main.c lists the commands.
 */
#ifndef HAMI_PROBE_H
#define HAMI_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"

/* ---- commands ---- */

#define MAX_WORDS 16

struct command {
    int count;
    char *words[MAX_WORDS]; /* words[0] is the command's name */
};

struct answer {
    char text[16384];
    size_t length;
};

void answer_ok(struct answer *answer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void answer_more(struct answer *answer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void answer_bad(struct answer *answer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void answer_result(struct answer *answer, CUresult result); /* "ok", or the error with the function that failed last */

/* "64m", "4k", "1g", "4096": false if it is none. */
bool parse_size(const char *text, size_t *size);
bool parse_number(const char *text, long long *number);

/* The number in word `index`, or `otherwise` if the command is shorter or the word is no number. */
size_t size_word(const struct command *command, int index, size_t otherwise);
const char *word(const struct command *command, int index, const char *otherwise);

/* The words were cut at blanks: those from `from` on as one line again, which may be cut at ";" into commands. */
void command_rest(const struct command *command, int from, char *line, size_t room);

/* A group of commands takes a command or returns false for a stranger. */
typedef bool command_group(const struct command *command, struct answer *answer);
command_group context_commands, memory_commands, pool_commands, vmm_commands, graph_commands, module_commands, share_commands,
    view_commands, load_commands, thread_commands, process_commands, door_commands;

/* Runs one line (changed by cutting it into words) in this process. */
void run_line(char *line, struct answer *answer);

/* The arguments the probe was started with, for those who start it again. */
extern char **probe_arguments;

/* ---- named things ---- */

enum thing_kind { THING_PIECE, THING_CONTEXT, THING_STREAM, THING_POOL, THING_MODULE, THING_EVENT, THING_HANDLE, THING_RANGE, THING_GRAPH, THING_GREEN };

struct piece;
struct thing {
    struct thing *next;
    enum thing_kind kind;
    char name[64];
    void *object;      /* the driver's handle, a struct of the group that made it, or a struct piece */
    uint64_t value;    /* a VMM handle, an address */
    size_t size;
};

/* Adds or replaces; never fails (out of host memory ends the probe). */
struct thing *thing_add(enum thing_kind kind, const char *name, void *object, uint64_t value, size_t size);
struct thing *thing_find(enum thing_kind kind, const char *name); /* NULL if there is none */
void thing_forget(struct thing *thing);

/* The stream called `name`; the default stream for NULL or "default"; false if there is none of that name. */
bool stream_named(const char *name, CUstream *stream);

/* ---- kinds of memory ---- */

struct kind;
struct piece {
    const struct kind *kind;
    size_t size;
    CUdeviceptr pointer;
    CUmemGenericAllocationHandle handle;
    void *object, *second;
    size_t extent; /* of the reserved address range */
    CUstream stream;
    CUmemoryPool pool;
};

/* One way to get device memory and the usual way to give it back. `size` is what is asked for; kinds with a shape choose one of about
 * that many bytes. */
struct kind {
    const char *name;
    CUresult (*take)(struct piece *piece, size_t size);
    CUresult (*give)(struct piece *piece);
};

extern const struct kind linear_kinds[], vmm_kinds[], graph_kinds[]; /* each ends with a NULL name */

/* Fills in kind, stream and pool from "alloc", "async", "async:<stream>", "pool:<pool>": false if there is no such kind. */
bool piece_prepare(struct piece *piece, const char *kind);
CUresult piece_take(struct piece *piece, size_t size);
CUresult piece_give(struct piece *piece);

/* The device of the current context. */
CUresult current_device(CUdevice *device);

/* Host memory that is always there. */
void *need(void *memory);

#endif
