/* What the stand-in reads out of a module's image, which is PTX text: the kernels, what each costs, and the module's variables.
 *
 * Comments steer what PTX itself does not say: `// fakegpu: code <bytes>` (what loading the module takes on the card; without it nothing,
 * as small code has room in what the context costs) and, inside a
 * kernel, `// fakegpu: cost <ns>` (how long one launch runs; a kernel named k_<ns> says it by its name).
 */
#ifndef FAKEGPU_CUDA_MODULE_PTX_H
#define FAKEGPU_CUDA_MODULE_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptx_kernel {
    char *name;
    uint64_t local; /* bytes of local memory per thread */
    uint64_t shared;
    uint64_t cost; /* nanoseconds */
};

struct ptx_variable {
    char *name;
    uint64_t bytes;
};

struct ptx {
    uint64_t code; /* bytes on the card */
    struct ptx_kernel *kernels;
    unsigned int kernel_count;
    struct ptx_variable *variables;
    unsigned int variable_count;
};

/* False if the text is no PTX (or memory is short): nothing is left to free then. */
bool ptx_read(const char *text, struct ptx *found);
void ptx_free(struct ptx *ptx);

#endif
