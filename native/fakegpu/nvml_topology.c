/* The stand-in NVML: how cards are connected, with each other and with the CPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_internal.h"

#define MOST_LINKS 18
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };
enum { TOPOLOGY_INTERNAL = 0, TOPOLOGY_SINGLE = 10, TOPOLOGY_NODE = 40, TOPOLOGY_SYSTEM = 50 };
enum { P2P_OK = 0, P2P_CHIPSET_NOT_SUPPORTED = 1, P2P_NOT_SUPPORTED = 5 };
enum { P2P_CAPS_NVLINK = 2, P2P_CAPS_COUNT = 6 };

/* The far end of a link: `switch` or a bus address. 0: there is one; else what NVML answers. */
static nvmlReturn_t far_end(const struct nvml_card *card, unsigned int link, char *name, size_t size)
{
    char list[sizeof card->device->line];
    if (!store_field(card->device, "nvlink", list, sizeof list) || !*list) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (link >= MOST_LINKS) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    char *rest = list;
    char *entry = NULL;
    for (unsigned int i = 0; i <= link; i++) {
        entry = strsep(&rest, ",");
    }
    snprintf(name, size, "%s", entry ? entry : "");
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active);
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    struct nvml_card card;
    char name[64];
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(active);
    nvmlReturn_t result = far_end(&card, link, name, sizeof name);
    if (result == NVML_SUCCESS) {
        *active = *name != 0;
    }
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *type);
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *type)
{
    struct nvml_card card;
    char name[64];
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(type);
    nvmlReturn_t result = far_end(&card, link, name, sizeof name);
    if (result == NVML_SUCCESS && !*name) {
        return NVML_ERROR_NOT_SUPPORTED; /* nothing is plugged in */
    }
    if (result == NVML_SUCCESS) {
        *type = strcmp(name, "switch") == 0 ? REMOTE_SWITCH : REMOTE_GPU;
    }
    return result;
}

static nvmlReturn_t remote_pci(nvmlDevice_t device, const char *function, unsigned int link, nvmlPciInfo_t *pci)
{
    struct nvml_card card;
    char name[64];
    nvmlReturn_t result = nvml_begin_card(function, device, NVML_CARD_ONLY, &card);
    if (result) {
        return result;
    }
    NEED(pci);
    result = far_end(&card, link, name, sizeof name);
    if (result == NVML_SUCCESS && !*name) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (result == NVML_SUCCESS && strcmp(name, "switch") == 0) {
        nvml_pci_of("0000:c0:00.0", 0x22a310de, 0, pci);
    } else if (result == NVML_SUCCESS) {
        nvml_pci_of(name, nvml_number(card.device, "pci_device", 0x233510de), 0, pci);
    }
    return result;
}

/* Only the newer form has the long address; both structures are of the same length. */
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci);
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t whole;
    nvmlReturn_t result = remote_pci(device, __func__, link, pci ? &whole : NULL);
    if (result == NVML_SUCCESS) {
        memcpy(pci, &whole, 36);
        memset((char *)pci + 36, 0, 16);
    }
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci);
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    return remote_pci(device, __func__, link, pci);
}

static unsigned int distance(const struct nvml_card *one, const struct nvml_card *other)
{
    uint64_t none = ~0ull;
    uint64_t upstream = nvml_number(one->device, "switch", none);
    if (one->index == other->index) {
        return TOPOLOGY_INTERNAL;
    }
    if (one->device->numa != other->device->numa) {
        return TOPOLOGY_SYSTEM;
    }
    return upstream != none && upstream == nvml_number(other->device, "switch", none) ? TOPOLOGY_SINGLE : TOPOLOGY_NODE;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned int *level);
EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned int *level)
{
    struct nvml_card first;
    struct nvml_card second;
    BEGIN_WITH(one, NVML_CARD_ONLY, &first);
    nvmlReturn_t refused = nvml_begin_card("", other, NVML_CARD_ONLY, &second);
    if (refused) {
        return refused;
    }
    NEED(level);
    *level = distance(&first, &second);
    return NVML_SUCCESS;
}

/* A link goes to the other card, or both go to the switch. */
static bool are_linked(const struct nvml_card *one, const struct nvml_card *other)
{
    char end[64];
    char back[64];
    for (unsigned int link = 0; far_end(one, link, end, sizeof end) == NVML_SUCCESS && *end; link++) {
        if (strcmp(end, other->device->bus) == 0) {
            return true;
        }
        if (strcmp(end, "switch") == 0 && far_end(other, 0, back, sizeof back) == NVML_SUCCESS && strcmp(back, "switch") == 0) {
            return true;
        }
    }
    return false;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned int what, unsigned int *status);
EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned int what, unsigned int *status)
{
    struct nvml_card first;
    struct nvml_card second;
    BEGIN_WITH(one, NVML_CARD_ONLY, &first);
    nvmlReturn_t refused = nvml_begin_card("", other, NVML_CARD_ONLY, &second);
    if (refused) {
        return refused;
    }
    NEED(status && what < P2P_CAPS_COUNT && first.index != second.index);
    bool linked = are_linked(&first, &second);
    bool reachable = linked || (nvml_number(first.device, "p2p", 1) && nvml_number(second.device, "p2p", 1));
    if (what == P2P_CAPS_NVLINK) {
        *status = linked ? P2P_OK : P2P_NOT_SUPPORTED;
    } else {
        *status = reachable ? P2P_OK : P2P_CHIPSET_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

/* Only where the card's own memory is a node of the machine; on our machines it never is. */
EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node);
EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(node);
    return NVML_ERROR_NOT_SUPPORTED;
}

static void set_bit(unsigned long *set, unsigned int words, unsigned long bit)
{
    unsigned long width = 8 * sizeof *set;
    if (bit / width < words) {
        set[bit / width] |= 1ul << bit % width;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *nodes, unsigned int scope);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *nodes, unsigned int scope)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(nodes && words > 0 && scope <= 1);
    memset(nodes, 0, words * sizeof *nodes);
    set_bit(nodes, words, (unsigned long)card.device->numa);
    return NVML_SUCCESS;
}

static nvmlReturn_t near_cpus(nvmlDevice_t device, const char *function, unsigned int words, unsigned long *cpus)
{
    struct nvml_card card;
    char list[256];
    nvmlReturn_t refused = nvml_begin_card(function, device, NVML_CARD_ONLY, &card);
    if (refused) {
        return refused;
    }
    NEED(cpus && words > 0);
    if (!store_field(card.device, "cpus", list, sizeof list)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    memset(cpus, 0, words * sizeof *cpus);
    char *rest = list;
    for (char *range; (range = strsep(&rest, ",")) != NULL;) {
        unsigned long first;
        unsigned long last;
        int read = sscanf(range, "%lu-%lu", &first, &last);
        for (unsigned long cpu = first; read >= 1 && cpu <= (read == 2 ? last : first) && cpu < 65536; cpu++) {
            set_bit(cpus, words, cpu);
        }
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *cpus);
EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *cpus)
{
    return near_cpus(device, __func__, words, cpus);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *cpus, unsigned int scope);
EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *cpus, unsigned int scope)
{
    NEED(scope <= 1);
    return near_cpus(device, __func__, words, cpus);
}
