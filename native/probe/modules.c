/* Modules and kernels. The text of a module is PTX that is written here, so that no compiler is needed, or a file.
 *
 *   module load <name> empty [<ns>]      one kernel that does nothing (on the stand-in driver it takes <ns>)
 *   module load <name> local <bytes>     its kernel has that much local memory per thread
 *   module load <name> code <bytes>      loading it takes that much device memory
 *   module load <name> file <path>       any module; its kernel must be called `kernel`
 *   (`module library <name> ...` does the same by cuLibraryLoadData)
 *   module function <name>               finds the kernel only
 *   module unload <name>
 *   launch <name> [<stream>] [<count>]   starts the kernel without waiting
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

struct module {
    CUmodule module;
    CUlibrary library;
    CUfunction function;
    char kernel[64];
};

static const char HEAD[] = ".version 6.3\n.target sm_75\n.address_size 64\n";

static char *empty_text(struct module *module, size_t nanoseconds) {
    char *text = need(malloc(512));
    snprintf(module->kernel, sizeof module->kernel, "k_%zu", nanoseconds);
    snprintf(text, 512, "%s.visible .entry %s(.param .u64 out, .param .u32 at)\n{\n    ret;\n}\n", HEAD, module->kernel);
    return text;
}

/* The kernel writes at one place of its local memory and reads at another that no compiler knows, so the memory must exist. */
static char *local_text(struct module *module, size_t bytes) {
    char *text = need(malloc(4096));
    snprintf(module->kernel, sizeof module->kernel, "kernel");
    snprintf(text, 4096,
             "%s.visible .entry kernel(.param .u64 out, .param .u32 at)\n{\n"
             "    .local .align 8 .b8 depot[%zu];\n"
             "    .reg .pred %%p<2>;\n    .reg .b32 %%r<4>;\n    .reg .b64 %%rd<6>;\n"
             "    ld.param.u64 %%rd1, [out];\n    ld.param.u32 %%r1, [at];\n"
             "    mov.u64 %%rd2, depot;\n    cvt.u64.u32 %%rd3, %%r1;\n    add.u64 %%rd4, %%rd2, %%rd3;\n"
             "    mov.u32 %%r2, %%tid.x;\n    cvt.u64.u32 %%rd5, %%r2;\n    add.u64 %%rd5, %%rd2, %%rd5;\n"
             "    st.local.u8 [%%rd5], %%r2;\n    ld.local.u8 %%r3, [%%rd4];\n"
             "    setp.eq.u64 %%p1, %%rd1, 0;\n    @%%p1 bra DONE;\n    st.global.u8 [%%rd1], %%r3;\nDONE:\n    ret;\n}\n",
             HEAD, bytes);
    return text;
}

/* The comment is for the stand-in driver; a real one gives the array its memory. */
static char *code_text(struct module *module, size_t bytes) {
    char *text = need(malloc(1024));
    snprintf(module->kernel, sizeof module->kernel, "kernel");
    snprintf(text, 1024,
             "// fakegpu: code %zu\n%s.visible .global .align 8 .b8 ballast[%zu];\n"
             ".visible .entry kernel(.param .u64 out, .param .u32 at)\n{\n    ret;\n}\n",
             bytes, HEAD, bytes);
    return text;
}

static char *file_text(struct module *module, const char *path) {
    snprintf(module->kernel, sizeof module->kernel, "kernel");
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    const size_t most = 256u << 20;
    char *text = need(malloc(most));
    size_t length = fread(text, 1, most - 1, file);
    text[length] = '\0';
    fclose(file);
    return text;
}

static void load_command(const struct command *command, struct answer *answer) {
    const char *name = word(command, 2, ""), *what = word(command, 3, "");
    struct module *module = need(calloc(1, sizeof *module));
    char *text = NULL;
    if (strcmp(what, "empty") == 0) {
        text = empty_text(module, size_word(command, 4, 5000));
    } else if (strcmp(what, "local") == 0) {
        text = local_text(module, size_word(command, 4, 4096));
    } else if (strcmp(what, "code") == 0) {
        text = code_text(module, size_word(command, 4, 1u << 20));
    } else if (strcmp(what, "file") == 0) {
        text = file_text(module, word(command, 4, ""));
    }
    if (text == NULL) {
        answer_bad(answer, "no such text: %s", what);
        free(module);
        return;
    }
    CUresult result = strcmp(word(command, 1, ""), "library") == 0
                          ? CALL(cuLibraryLoadData, &module->library, text, NULL, NULL, 0, NULL, NULL, 0)
                          : CALL(cuModuleLoadData, &module->module, text);
    free(text);
    answer_result(answer, result);
    if (result == CUDA_SUCCESS) {
        thing_add(THING_MODULE, name, module, 0, 0);
    } else {
        free(module);
    }
}

static CUresult find_function(struct module *module) {
    if (module->function != NULL) {
        return CUDA_SUCCESS;
    }
    CUfunction function = NULL;
    CUresult result;
    if (module->library == NULL) {
        result = CALL(cuModuleGetFunction, &function, module->module, module->kernel);
    } else {
        CUkernel kernel = NULL;
        result = CALL(cuLibraryGetKernel, &kernel, module->library, module->kernel);
        if (result == CUDA_SUCCESS) {
            result = CALL(cuKernelGetFunction, &function, kernel);
        }
    }
    module->function = result == CUDA_SUCCESS ? function : NULL;
    return result;
}

static void launch_command(const struct command *command, struct answer *answer, struct module *module) {
    CUstream stream;
    if (!stream_named(word(command, 2, NULL), &stream)) {
        answer_bad(answer, "no stream %s", word(command, 2, ""));
        return;
    }
    CUresult result = find_function(module);
    CUdeviceptr nowhere = 0;
    unsigned int at = 0;
    void *parameters[] = {&nowhere, &at};
    for (size_t i = size_word(command, 3, 1); i > 0 && result == CUDA_SUCCESS; i--) {
        result = CALL(cuLaunchKernel, module->function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
    }
    answer_result(answer, result);
}

bool module_commands(const struct command *command, struct answer *answer) {
    bool launch = strcmp(command->words[0], "launch") == 0;
    if (!launch && strcmp(command->words[0], "module") != 0) {
        return false;
    }
    const char *what = word(command, 1, "");
    if (!launch && (strcmp(what, "load") == 0 || strcmp(what, "library") == 0)) {
        load_command(command, answer);
        return true;
    }
    const char *name = word(command, launch ? 1 : 2, "");
    struct thing *thing = thing_find(THING_MODULE, name);
    if (thing == NULL) {
        answer_bad(answer, "no module %s", name);
        return true;
    }
    struct module *module = thing->object;
    if (launch) {
        launch_command(command, answer, module);
    } else if (strcmp(what, "function") == 0) {
        answer_result(answer, find_function(module));
    } else if (strcmp(what, "unload") == 0) {
        answer_result(answer, module->library != NULL ? CALL(cuLibraryUnload, module->library) : CALL(cuModuleUnload, module->module));
        free(module);
        thing_forget(thing);
    } else {
        answer_bad(answer, "module %s", what);
    }
    return true;
}
