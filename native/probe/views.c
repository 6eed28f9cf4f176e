/* What a process is told about memory, and whose functions it got.
 *
 *   info            cuMemGetInfo of the current context: free, total
 *   total <n>       cuDeviceTotalMem of CUDA device n
 *   uuid <n>        of CUDA device n
 *   nvml-init       nvmlInit alone: the code
 *   nvml <n>        total free used (v1), total reserved free used (v2), then pid:bytes of each process
 *   where <name>    the file that a function of that name was found in
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "nvml_abi.h"
#include "probe.h"

static void *nvml_function(const char *name) {
    static void *library;
    if (library == NULL) {
        library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    }
    return library != NULL ? dlsym(library, name) : NULL;
}

/* Finds and calls an NVML function; answers the failure and leaves the calling function. */
#define NVML(name, params, ...) \
    do { \
        nvmlReturn_t(*function) params; \
        void *address = nvml_function(#name); \
        memcpy(&function, &address, sizeof address); \
        nvmlReturn_t result = function != NULL ? function(__VA_ARGS__) : (nvmlReturn_t)NVML_ERROR_FUNCTION_NOT_FOUND; \
        if (result != NVML_SUCCESS) { \
            answer->length = 0; \
            answer_more(answer, "error %d " #name, result); \
            return; \
        } \
    } while (0)

static void init_command(struct answer *answer) {
    NVML(nvmlInit_v2, (void));
    answer_ok(answer, "%s", "");
}

static void nvml_command(unsigned int index, struct answer *answer) {
    NVML(nvmlInit_v2, (void));
    nvmlDevice_t device = NULL;
    NVML(nvmlDeviceGetHandleByIndex_v2, (unsigned int, nvmlDevice_t *), index, &device);
    nvmlMemory_t first = {0, 0, 0};
    NVML(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *), device, &first);
    nvmlMemory_v2_t second = {.version = NVML_MEMORY_V2};
    NVML(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, nvmlMemory_v2_t *), device, &second);
    nvmlProcessInfo_v2_t processes[512];
    unsigned int count = sizeof processes / sizeof *processes;
    NVML(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *), device, &count, processes);
    answer_ok(answer, "%llu %llu %llu %llu %llu %llu %llu", first.total, first.free, first.used, second.total, second.reserved,
              second.free, second.used);
    for (unsigned int i = 0; i < count; i++) {
        answer_more(answer, " %u:%llu", processes[i].pid, processes[i].usedGpuMemory);
    }
}

static void where_command(const char *name, struct answer *answer) {
    void *address = strncmp(name, "nvml", 4) == 0 ? nvml_function(name) : driver_address(name);
    Dl_info found;
    if (address == NULL || dladdr(address, &found) == 0) {
        answer_bad(answer, "no function %s", name);
        return;
    }
    const char *slash = strrchr(found.dli_fname, '/');
    answer_ok(answer, "%s %s", slash != NULL ? slash + 1 : found.dli_fname, found.dli_sname != NULL ? found.dli_sname : "?");
}

static void uuid_command(CUdevice device, struct answer *answer) {
    CUuuid uuid;
    CUresult result = CALL(cuDeviceGetUuid_v2, &uuid, device);
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
        return;
    }
    answer_ok(answer, "GPU-");
    for (size_t i = 0; i < sizeof uuid.bytes; i++) {
        bool dash = i == 4 || i == 6 || i == 8 || i == 10;
        answer_more(answer, "%s%02x", dash ? "-" : "", (unsigned char)uuid.bytes[i]);
    }
}

bool view_commands(const struct command *command, struct answer *answer) {
    const char *name = command->words[0];
    size_t available = 0, total = 0;
    if (strcmp(name, "info") == 0) {
        CUresult result = CALL(cuMemGetInfo_v2, &available, &total);
        if (result != CUDA_SUCCESS) {
            answer_result(answer, result);
        } else {
            answer_ok(answer, "%zu %zu", available, total);
        }
    } else if (strcmp(name, "total") == 0) {
        CUresult result = CALL(cuDeviceTotalMem_v2, &total, (CUdevice)size_word(command, 1, 0));
        if (result != CUDA_SUCCESS) {
            answer_result(answer, result);
        } else {
            answer_ok(answer, "%zu", total);
        }
    } else if (strcmp(name, "uuid") == 0) {
        uuid_command((CUdevice)size_word(command, 1, 0), answer);
    } else if (strcmp(name, "nvml-init") == 0) {
        init_command(answer);
    } else if (strcmp(name, "nvml") == 0) {
        nvml_command((unsigned int)size_word(command, 1, 0), answer);
    } else if (strcmp(name, "where") == 0) {
        where_command(word(command, 1, ""), answer);
    } else {
        return false;
    }
    return true;
}
