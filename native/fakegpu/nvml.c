/* The stand-in NVML: beginning and end, versions, error texts, and what every entry point does first. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvml_internal.h"
#include "store_internal.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int users;
static int visible[FAKE_MAX_DEVICES];
static int visible_count;
static struct nvmlDevice_st handles[FAKE_MAX_DEVICES * (1 + NVML_MOST_MIG)];
/* Device files that this process has open: of each card, and last the driver's own. 0: not open, else the descriptor + 1. */
static int device_files[FAKE_MAX_DEVICES + 1];

int nvml_count(void)
{
    return visible_count;
}

int nvml_index_of(int place)
{
    return visible[place];
}

int nvml_place_of(int index)
{
    for (int place = 0; place < visible_count; place++) {
        if (visible[place] == index) {
            return place;
        }
    }
    return -1;
}

nvmlDevice_t nvml_handle(int index, int mig)
{
    return &handles[index * (1 + NVML_MOST_MIG) + mig];
}

/* Where the folder has no device files, as on a node of an earlier version, none is opened. The caller holds the mutex. */
static void open_file(int place, const char *name)
{
    char path[512];
    if (!device_files[place] && store_path(path, sizeof path, name)) {
        device_files[place] = open(path, O_RDONLY | O_CLOEXEC) + 1;
    }
}

void nvml_attach(int index)
{
    const struct fake_device *devices;
    char name[64];
    (void)store_devices(&devices);
    snprintf(name, sizeof name, "dev/nvidia%u", (unsigned int)nvml_number(&devices[index], "minor_number", (uint64_t)index));
    pthread_mutex_lock(&mutex);
    open_file(index, name);
    pthread_mutex_unlock(&mutex);
}

static void close_files(void)
{
    for (int place = 0; place <= FAKE_MAX_DEVICES; place++) {
        if (device_files[place]) {
            close(device_files[place] - 1);
            device_files[place] = 0;
        }
    }
}

nvmlReturn_t nvml_begin(const char *function)
{
    int code = fault(function);
    if (code) {
        return code;
    }
    if (fault_missing(function)) {
        return NVML_ERROR_FUNCTION_NOT_FOUND; /* what callers make of a symbol that is not there */
    }
    return __atomic_load_n(&users, __ATOMIC_ACQUIRE) > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvml_begin_card(const char *function, nvmlDevice_t device, enum nvml_wants wants, struct nvml_card *card)
{
    nvmlReturn_t refused = nvml_begin(function);
    if (refused) {
        return refused;
    }
    uintptr_t distance = (uintptr_t)device - (uintptr_t)handles;
    if (!device || distance >= sizeof handles) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct fake_device *devices;
    int number = (int)(distance / sizeof handles[0]);
    card->index = number / (1 + NVML_MOST_MIG);
    card->mig = number % (1 + NVML_MOST_MIG);
    if (card->index >= store_devices(&devices) || nvml_place_of(card->index) < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    card->device = &devices[card->index];
    if (fault_lost(card->device->uuid)) {
        return NVML_ERROR_GPU_IS_LOST;
    }
    return card->mig && wants == NVML_CARD_ONLY ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

uint64_t nvml_number(const struct fake_device *device, const char *key, uint64_t otherwise)
{
    char text[64];
    return store_field(device, key, text, sizeof text) && *text ? strtoull(text, NULL, 0) : otherwise;
}

nvmlReturn_t nvml_text(const char *text, char *buffer, unsigned int length)
{
    NEED(buffer);
    if (strlen(text) >= length) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(buffer, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

static nvmlReturn_t start(const char *function)
{
    const struct fake_device *devices;
    nvmlReturn_t refused = nvml_begin(function);
    if (refused && refused != NVML_ERROR_UNINITIALIZED) {
        return refused;
    }
    if (store_devices(&devices) == 0 && *store_problem()) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    pthread_mutex_lock(&mutex);
    if (users == 0) {
        visible_count = store_visible_nvml(visible);
        nvml_start_samples();
        open_file(FAKE_MAX_DEVICES, "dev/nvidiactl");
    }
    __atomic_add_fetch(&users, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_unlock(&mutex);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit(void);
EXPORT nvmlReturn_t nvmlInit(void)
{
    return start(__func__);
}

EXPORT nvmlReturn_t nvmlInit_v2(void);
EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return start(__func__);
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags);
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return start(__func__);
}

EXPORT nvmlReturn_t nvmlShutdown(void);
EXPORT nvmlReturn_t nvmlShutdown(void)
{
    BEGIN();
    pthread_mutex_lock(&mutex);
    nvmlReturn_t result = users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (users > 0) {
        if (__atomic_sub_fetch(&users, 1, __ATOMIC_ACQ_REL) == 0) {
            close_files();
        }
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code);
EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS: return "success";
    case NVML_ERROR_UNINITIALIZED: return "NVML was not initialised";
    case NVML_ERROR_INVALID_ARGUMENT: return "an argument is not valid";
    case NVML_ERROR_NOT_SUPPORTED: return "the card does not support this";
    case NVML_ERROR_NO_PERMISSION: return "not permitted";
    case NVML_ERROR_ALREADY_INITIALIZED: return "NVML is initialised already";
    case NVML_ERROR_NOT_FOUND: return "there is no such thing";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "the buffer is too small";
    case NVML_ERROR_INSUFFICIENT_POWER: return "the card lacks power";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "the driver is not loaded";
    case NVML_ERROR_TIMEOUT: return "the time is over";
    case NVML_ERROR_IRQ_ISSUE: return "an interrupt of the card went wrong";
    case NVML_ERROR_LIBRARY_NOT_FOUND: return "the library was not found";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "this driver has no such function";
    case NVML_ERROR_GPU_IS_LOST: return "the card is lost";
    case NVML_ERROR_RESET_REQUIRED: return "the card needs a reset";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "an argument's version is not known";
    default: return "an unknown error";
    }
}

static nvmlReturn_t machine_text(const char *key, const char *otherwise, char *buffer, unsigned int length)
{
    const struct fake_device *devices;
    char text[80];
    bool told = store_devices(&devices) > 0 && store_field(&devices[0], key, text, sizeof text);
    return nvml_text(told ? text : otherwise, buffer, length);
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length);
EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    BEGIN();
    return machine_text("driver", "580.159.04", version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length);
EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    BEGIN();
    return machine_text("nvml", "13.580.159.04", version, length);
}

static nvmlReturn_t cuda_version(int *version)
{
    const struct fake_device *devices;
    NEED(version);
    *version = store_devices(&devices) > 0 ? (int)nvml_number(&devices[0], "cuda", 13000) : 13000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version);
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    BEGIN();
    return cuda_version(version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version);
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    BEGIN();
    return cuda_version(version);
}

/* The name as /proc has it; of processes that the caller cannot see there is none. */
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length);
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    BEGIN();
    char path[64];
    char text[256] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file) {
        return NVML_ERROR_NOT_FOUND;
    }
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    return nvml_text(text, name, length);
}
