/* What the parts of the stand-in NVML share: handles, the beginning of every entry point, and the structures of NVML's binary interface
 * that libvgpu does not need (those are in nvml_abi.h).
 *
 * Keys of a line of `devices` that only NVML reads, all optional:
 *
 *   driver, nvml, cuda    versions as text; cuda as 13000. The first card's count for the machine.
 *   brand                 NVML's number                             power       milliwatts, the limit
 *   clock, memory_clock   highest, MHz                              serial, vbios
 *   pci_device, pci_subsystem  hexadecimal                          minor_number  of /dev/nvidia<n>; else the card's place
 *   ecc                   0 or 1; without it ECC is not supported   p2p         0: cards cannot reach each other
 *   cpus                  near CPUs, as 0-15,32-47                  switch      cards with the same number share a PCIe switch
 *   nvlink                one entry per link: `switch`, or the bus address of the card at the other end
 *   mig_capable           1: MIG can be switched on                 mig         MIG devices: <profile>:<UUID>, as 1g.18gb:MIG-...
 */
#ifndef FAKEGPU_NVML_INTERNAL_H
#define FAKEGPU_NVML_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "faults.h"
#include "nvml_abi.h"
#include "store.h"

#ifndef EXPORT
#define EXPORT __attribute__((visibility("default")))
#endif
#define NVML_MOST_MIG 7
#define NVML_NO_INSTANCE 0xFFFFFFFFu

struct nvmlDevice_st {
    char unused; /* the handle's place in its table says all */
};

/* A handle taken apart. */
struct nvml_card {
    const struct fake_device *device;
    int index; /* in store_devices() */
    int mig;   /* 0: the card, 1..: its MIG device number mig - 1 */
};

enum nvml_wants { NVML_CARD_ONLY, NVML_CARD_OR_MIG };

/* At the beginning of every entry point: faults, and whether NVML was initialised. 0: go on. */
nvmlReturn_t nvml_begin(const char *function);
/* The same for a call about a card. */
nvmlReturn_t nvml_begin_card(const char *function, nvmlDevice_t device, enum nvml_wants wants, struct nvml_card *card);

#define BEGIN()                                      \
    do {                                             \
        nvmlReturn_t refused_ = nvml_begin(__func__); \
        if (refused_) {                              \
            return refused_;                         \
        }                                            \
    } while (0)
#define BEGIN_WITH(handle, wants, card)                                     \
    do {                                                                    \
        nvmlReturn_t refused_ = nvml_begin_card(__func__, handle, wants, card); \
        if (refused_) {                                                     \
            return refused_;                                                \
        }                                                                   \
    } while (0)
#define NEED(pointer)                           \
    do {                                        \
        if (!(pointer)) {                       \
            return NVML_ERROR_INVALID_ARGUMENT; \
        }                                       \
    } while (0)

/* Visible cards: how many, and the store's index of the n-th. */
int nvml_count(void);
int nvml_index_of(int place);
int nvml_place_of(int index);
nvmlDevice_t nvml_handle(int index, int mig);
/* Opens the card's device file, as NVML does when it is first asked for a card. nvmlShutdown closes them all. */
void nvml_attach(int index);

uint64_t nvml_number(const struct fake_device *device, const char *key, uint64_t otherwise);
/* Copies with NVML's rule for short buffers. */
nvmlReturn_t nvml_text(const char *text, char *buffer, unsigned int length);

struct nvml_mig {
    char profile[32];
    char uuid[96];
    int slices;
    int sms;
    uint64_t memory;
};
/* MIG devices of a card, all of them, seen or not. */
int nvml_mig_devices(const struct fake_device *device, struct nvml_mig found[NVML_MOST_MIG]);
bool nvml_mig_visible(const struct fake_device *device, int index, const struct nvml_mig *mig);

/* Percent of the time since the last question in which the card worked. Before the first: whether it works now. */
unsigned int nvml_utilisation(int index);
void nvml_start_samples(void);

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
void nvml_pci_of(const char *bus, uint64_t device_id, uint64_t subsystem, nvmlPciInfo_t *pci);

#endif
