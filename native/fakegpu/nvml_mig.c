/* The stand-in NVML: MIG devices that were made with the node. They can be seen and granted; CUDA does not run on them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_internal.h"

static bool read_mig(const struct fake_device *device, const char *entry, struct nvml_mig *mig)
{
    int gigabytes = 0;
    memset(mig, 0, sizeof *mig);
    if (sscanf(entry, "%31[^:]:%95s", mig->profile, mig->uuid) != 2 || sscanf(mig->profile, "%dg.%dgb", &mig->slices, &gigabytes) != 2) {
        return false;
    }
    mig->sms = (device->sms * mig->slices / 8 + 1) / 2 * 2; /* in pairs, an eighth for each slice */
    mig->memory = ((uint64_t)gigabytes << 30) - (512u << 20); /* a profile's name rounds up */
    return true;
}

int nvml_mig_devices(const struct fake_device *device, struct nvml_mig found[NVML_MOST_MIG])
{
    char list[sizeof device->line];
    int count = 0;
    if (!store_field(device, "mig", list, sizeof list)) {
        return 0;
    }
    char *rest = list;
    for (char *entry; count < NVML_MOST_MIG && (entry = strsep(&rest, ",")) != NULL;) {
        if (read_mig(device, entry, &found[count])) {
            count++;
        }
    }
    return count;
}

/* A container that was given one MIG device does not see those beside it. */
bool nvml_mig_visible(const struct fake_device *device, int index, const struct nvml_mig *mig)
{
    const char *wanted = getenv("NVIDIA_VISIBLE_DEVICES");
    if (!wanted || strcmp(wanted, "all") == 0) {
        return true;
    }
    char number[16];
    snprintf(number, sizeof number, "%d", index);
    while (wanted) {
        size_t width = strcspn(wanted, ",");
        const char *names[] = {device->uuid, mig->uuid, number};
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (strlen(names[i]) == width && strncmp(names[i], wanted, width) == 0) {
                return true;
            }
        }
        wanted = wanted[width] ? wanted + width + 1 : NULL;
    }
    return false;
}

static bool mig_is_on(const struct nvml_card *card)
{
    struct nvml_mig migs[NVML_MOST_MIG];
    return nvml_mig_devices(card->device, migs) > 0;
}

static bool is_capable(const struct nvml_card *card)
{
    return mig_is_on(card) || nvml_number(card->device, "mig_capable", 0) != 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending);
EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(current && pending);
    if (!is_capable(&card)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *current = *pending = mig_is_on(&card);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(count);
    *count = is_capable(&card) ? NVML_MOST_MIG : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    struct nvml_card card;
    struct nvml_mig migs[NVML_MOST_MIG];
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(mig);
    if (!is_capable(&card)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    unsigned int count = (unsigned int)nvml_mig_devices(card.device, migs);
    if (index >= NVML_MOST_MIG) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (index >= count || !nvml_mig_visible(card.device, card.index, &migs[index])) {
        return NVML_ERROR_NOT_FOUND;
    }
    *mig = nvml_handle(card.index, (int)index + 1);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig);
EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    NEED(is_mig);
    *is_mig = card.mig != 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    struct nvml_card card;
    BEGIN_WITH(mig, NVML_CARD_OR_MIG, &card);
    NEED(device && card.mig);
    *device = nvml_handle(card.index, 0);
    return NVML_SUCCESS;
}

/* Instance numbers of a real card begin behind those of the larger profiles. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    NEED(id);
    if (!card.mig) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *id = (unsigned int)card.mig + 6;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id);
EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    NEED(id);
    if (!card.mig) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *id = 0;
    return NVML_SUCCESS;
}

struct attributes {
    unsigned int sms, copy_engines, decoders, encoders, jpeg_engines, flow_engines, gpu_slices, compute_slices;
    unsigned long long megabytes;
};

static nvmlReturn_t attributes_of(nvmlDevice_t device, const char *function, struct attributes *attributes)
{
    struct nvml_card card;
    struct nvml_mig migs[NVML_MOST_MIG];
    nvmlReturn_t refused = nvml_begin_card(function, device, NVML_CARD_OR_MIG, &card);
    if (refused) {
        return refused;
    }
    NEED(attributes);
    if (!card.mig || card.mig > nvml_mig_devices(card.device, migs)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    const struct nvml_mig *mig = &migs[card.mig - 1];
    unsigned int slices = (unsigned int)mig->slices;
    *attributes = (struct attributes){.sms = (unsigned int)mig->sms,
                                      .copy_engines = slices,
                                      .gpu_slices = slices,
                                      .compute_slices = slices,
                                      .megabytes = mig->memory / FAKE_MIB};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, struct attributes *attributes);
EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, struct attributes *attributes)
{
    return attributes_of(device, __func__, attributes);
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, struct attributes *attributes);
EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, struct attributes *attributes)
{
    return attributes_of(device, __func__, attributes);
}
