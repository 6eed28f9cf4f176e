/* The stand-in NVML: power, heat, clocks, modes and errors. Power and heat follow how busy the card is. */
#include "nvml_internal.h"

static uint64_t power_limit(const struct nvml_card *card)
{
    return nvml_number(card->device, "power", 300000);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts);
EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(milliwatts);
    *milliwatts = (unsigned int)(power_limit(&card) * (12 + 88 * nvml_utilisation(card.index) / 100) / 100);
    return NVML_SUCCESS;
}

/* What a card has by its line in `devices`, whatever it does. */
static nvmlReturn_t fixed(nvmlDevice_t device, const char *function, const char *key, uint64_t otherwise, unsigned int *value)
{
    struct nvml_card card;
    nvmlReturn_t refused = nvml_begin_card(function, device, NVML_CARD_ONLY, &card);
    if (refused) {
        return refused;
    }
    NEED(value);
    *value = (unsigned int)nvml_number(card.device, key, otherwise);
    return NVML_SUCCESS;
}

#define FIXED(name, key, otherwise)                                           \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *value);       \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *value)        \
    {                                                                         \
        return fixed(device, __func__, key, otherwise, value);                \
    }

FIXED(nvmlDeviceGetPowerManagementLimit, "power", 300000)
FIXED(nvmlDeviceGetPowerManagementDefaultLimit, "power", 300000)
FIXED(nvmlDeviceGetEnforcedPowerLimit, "power", 300000)
FIXED(nvmlDeviceGetPersistenceMode, "persistence", 1)
FIXED(nvmlDeviceGetComputeMode, "compute_mode", 0)
FIXED(nvmlDeviceGetPerformanceState, "performance_state", 0)

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius);
EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(celsius && sensor == 0);
    *celsius = 30 + 40 * nvml_utilisation(card.index) / 100;
    return NVML_SUCCESS;
}

struct temperature {
    unsigned int version, sensor;
    int celsius;
};

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *temperature);
EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *temperature)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(temperature && temperature->sensor == 0);
    if (temperature->version != (sizeof *temperature | (1u << 24))) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    temperature->celsius = 30 + (int)(40 * nvml_utilisation(card.index) / 100);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold, unsigned int *celsius);
EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold, unsigned int *celsius)
{
    static const unsigned int degrees[] = {92, 89, 95, 87}; /* shutdown, slowdown, memory, card */
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(celsius);
    if (threshold >= sizeof degrees / sizeof degrees[0]) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *celsius = degrees[threshold];
    return NVML_SUCCESS;
}

enum clock { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO };

static unsigned int highest_clock(const struct nvml_card *card, unsigned int clock)
{
    bool memory = clock == CLOCK_MEMORY;
    return (unsigned int)(memory ? nvml_number(card->device, "memory_clock", 2619) : nvml_number(card->device, "clock", 1980));
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int clock, unsigned int *megahertz);
EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int clock, unsigned int *megahertz)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(megahertz && clock <= CLOCK_VIDEO);
    bool idle = clock != CLOCK_MEMORY && nvml_utilisation(card.index) == 0;
    *megahertz = idle ? 345 : highest_clock(&card, clock);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int clock, unsigned int *megahertz);
EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int clock, unsigned int *megahertz)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(megahertz && clock <= CLOCK_VIDEO);
    *megahertz = highest_clock(&card, clock);
    return NVML_SUCCESS;
}

static bool has_ecc(const struct nvml_card *card)
{
    char text[8];
    return store_field(card->device, "ecc", text, sizeof text);
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending);
EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(current && pending);
    if (!has_ecc(&card)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *current = *pending = nvml_number(card.device, "ecc", 0) != 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter, unsigned long long *errors);
EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter, unsigned long long *errors)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(errors && type < 2 && counter < 2);
    if (!has_ecc(&card)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *errors = 0;
    return NVML_SUCCESS;
}

/* Cards remap rows since Ampere, and retired pages before; none of ours ever had to. */
EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                              unsigned int *pending, unsigned int *failed);
EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                              unsigned int *pending, unsigned int *failed)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(corrected && uncorrected && pending && failed);
    if (card.device->major < 8 || !has_ecc(&card)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *corrected = *uncorrected = *pending = *failed = 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t retired_pages(nvmlDevice_t device, const char *function, unsigned int *value)
{
    struct nvml_card card;
    nvmlReturn_t refused = nvml_begin_card(function, device, NVML_CARD_ONLY, &card);
    if (refused) {
        return refused;
    }
    NEED(value);
    if (card.device->major >= 8 || !has_ecc(&card)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *value = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause, unsigned int *count, unsigned long long *pages);
EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause, unsigned int *count, unsigned long long *pages)
{
    (void)cause;
    (void)pages;
    return retired_pages(device, __func__, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned int cause, unsigned int *count, unsigned long long *pages,
                                                 unsigned long long *times);
EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned int cause, unsigned int *count, unsigned long long *pages,
                                                 unsigned long long *times)
{
    (void)cause;
    (void)pages;
    (void)times;
    return retired_pages(device, __func__, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending);
EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending)
{
    return retired_pages(device, __func__, pending);
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *value);
EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *value)
{
    struct nvml_card card;
    (void)counter;
    (void)value;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    return NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, void *values);
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, void *values)
{
    struct nvml_card card;
    (void)count;
    (void)values;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    return NVML_ERROR_NOT_SUPPORTED;
}
