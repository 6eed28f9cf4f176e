/* The stand-in NVML: finding cards, and what a card is. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml_internal.h"

static nvmlReturn_t count(unsigned int *result)
{
    NEED(result);
    *result = (unsigned int)nvml_count();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *result);
EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *result)
{
    BEGIN();
    return count(result);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *result);
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *result)
{
    BEGIN();
    return count(result);
}

static nvmlReturn_t by_index(unsigned int place, nvmlDevice_t *device)
{
    NEED(device);
    if (place >= (unsigned int)nvml_count()) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct fake_device *devices;
    (void)store_devices(&devices);
    int index = nvml_index_of((int)place);
    if (fault_lost(devices[index].uuid)) {
        return NVML_ERROR_GPU_IS_LOST;
    }
    nvml_attach(index);
    *device = nvml_handle(index, 0);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    BEGIN();
    return by_index(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    BEGIN();
    return by_index(index, device);
}

/* The MIG device with this UUID on this card as the second part of a handle; 0: none. */
static int mig_by_uuid(const struct fake_device *card, int index, const char *uuid)
{
    struct nvml_mig migs[NVML_MOST_MIG];
    int found = nvml_mig_devices(card, migs);
    for (int i = 0; i < found; i++) {
        if (strcasecmp(migs[i].uuid, uuid) == 0 && nvml_mig_visible(card, index, &migs[i])) {
            return i + 1;
        }
    }
    return 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    BEGIN();
    NEED(uuid);
    NEED(device);
    const struct fake_device *devices;
    (void)store_devices(&devices);
    for (int place = 0; place < nvml_count(); place++) {
        int index = nvml_index_of(place);
        nvml_attach(index); /* NVML opens the cards that it searches */
        int mig = mig_by_uuid(&devices[index], index, uuid);
        if (!mig && strcasecmp(devices[index].uuid, uuid) != 0) {
            continue;
        }
        if (fault_lost(devices[index].uuid)) {
            return NVML_ERROR_GPU_IS_LOST;
        }
        *device = nvml_handle(index, mig);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

struct address {
    unsigned int domain, bus, device;
};

/* Domain and function may be missing, and the domain may have four digits or eight. */
static bool parse_address(const char *text, struct address *address)
{
    unsigned int function;
    memset(address, 0, sizeof *address);
    if (sscanf(text, "%x:%x:%x.%x", &address->domain, &address->bus, &address->device, &function) >= 3) {
        return true;
    }
    address->domain = 0;
    return sscanf(text, "%x:%x.%x", &address->bus, &address->device, &function) >= 2;
}

static nvmlReturn_t by_bus(const char *bus, nvmlDevice_t *device)
{
    struct address wanted;
    NEED(bus);
    NEED(device);
    if (!parse_address(bus, &wanted)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct fake_device *devices;
    (void)store_devices(&devices);
    for (int place = 0; place < nvml_count(); place++) {
        struct address present;
        (void)parse_address(devices[nvml_index_of(place)].bus, &present);
        if (memcmp(&wanted, &present, sizeof wanted) == 0) {
            return by_index((unsigned int)place, device);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *device)
{
    BEGIN();
    return by_bus(bus, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
    BEGIN();
    return by_bus(bus, device);
}

void nvml_pci_of(const char *bus, uint64_t device_id, uint64_t subsystem, nvmlPciInfo_t *pci)
{
    struct address address;
    memset(pci, 0, sizeof *pci);
    (void)parse_address(bus, &address);
    pci->domain = address.domain;
    pci->bus = address.bus & 0xff;
    pci->device = address.device & 0x1f;
    pci->pciDeviceId = (unsigned int)device_id;
    pci->pciSubSystemId = (unsigned int)subsystem;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus, pci->device);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
}

static void pci_of_card(const struct nvml_card *card, nvmlPciInfo_t *pci)
{
    nvml_pci_of(card->device->bus, nvml_number(card->device, "pci_device", 0x233510de), nvml_number(card->device, "pci_subsystem", 0),
                pci);
}

/* The two older forms end before the long address; the second has four unused numbers in its place. */
static nvmlReturn_t old_pci(const struct nvml_card *card, void *pci, size_t size, size_t unused)
{
    nvmlPciInfo_t whole;
    NEED(pci);
    pci_of_card(card, &whole);
    memcpy(pci, &whole, size);
    memset((char *)pci + size, 0, unused);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, void *pci);
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, void *pci)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    return old_pci(&card, pci, 32, 0);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, void *pci);
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, void *pci)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    return old_pci(&card, pci, 36, 16);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci);
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    NEED(pci);
    pci_of_card(&card, pci);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index);
EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    NEED(index);
    *index = (unsigned int)(card.mig ? card.mig - 1 : nvml_place_of(card.index));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);
EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    struct nvml_card card;
    struct nvml_mig migs[NVML_MOST_MIG];
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    if (card.mig && card.mig <= nvml_mig_devices(card.device, migs)) {
        return nvml_text(migs[card.mig - 1].uuid, uuid, length);
    }
    return nvml_text(card.device->uuid, uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length);
EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    struct nvml_card card;
    struct nvml_mig migs[NVML_MOST_MIG];
    char text[160];
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    if (card.mig && card.mig <= nvml_mig_devices(card.device, migs)) {
        snprintf(text, sizeof text, "%s MIG %s", card.device->name, migs[card.mig - 1].profile);
        return nvml_text(text, name, length);
    }
    return nvml_text(card.device->name, name, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor);
EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(minor);
    *minor = (unsigned int)nvml_number(card.device, "minor_number", (uint64_t)card.index);
    return NVML_SUCCESS;
}

static nvmlReturn_t text_of_card(const struct nvml_card *card, const char *key, char *buffer, unsigned int length)
{
    char text[80];
    return store_field(card->device, key, text, sizeof text) ? nvml_text(text, buffer, length) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length);
EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    return text_of_card(&card, "serial", serial, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length);
EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    return text_of_card(&card, "vbios", version, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor);
EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    NEED(major);
    NEED(minor);
    *major = card.device->major;
    *minor = card.device->minor;
    return NVML_SUCCESS;
}

static unsigned int architecture(int major, int minor)
{
    switch (major) {
    case 7: return minor < 5 ? 5 : 6;
    case 8: return minor < 9 ? 7 : 8;
    case 9: return 9;
    case 10:
    case 12: return 10;
    default: return 0xffffffffu;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *arch);
EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *arch)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    NEED(arch);
    *arch = architecture(card.device->major, card.device->minor);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand);
EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    NEED(brand);
    *brand = (unsigned int)nvml_number(card.device, "brand", 14);
    return NVML_SUCCESS;
}
