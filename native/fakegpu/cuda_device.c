/* The cards as CUDA shows them: ordinals after NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, names, sizes, attributes. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cuda_internal.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct fake_device *cards;
static int visible[FAKE_MAX_DEVICES];
static int visible_count;

static void find_visible(void)
{
    if (store_devices(&cards) > 0)
        visible_count = store_visible_cuda(visible);
}

int devices_count(void)
{
    pthread_once(&once, find_visible);
    return visible_count;
}

bool device_valid(CUdevice device)
{
    return device >= 0 && device < devices_count();
}

int device_card(CUdevice device)
{
    return visible[device];
}

const struct fake_device *device_info(CUdevice device)
{
    return &cards[visible[device]];
}

ENTRY(cuDeviceGet, (CUdevice *device, int ordinal))
{
    ENTER();
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetCount, (int *count))
{
    ENTER();
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = devices_count();
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetName, (char *name, int length, CUdevice device))
{
    ENTER();
    if (name == NULL || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", device_info(device)->name);
    return CUDA_SUCCESS;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* The 32 hex digits after the first dash of GPU-...; what is not one is skipped, what is missing is 0. */
static CUresult uuid_bytes(CUuuid *uuid, CUdevice device)
{
    if (uuid == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memset(uuid, 0, sizeof *uuid);
    const char *text = strchr(device_info(device)->uuid, '-');
    for (int digit = 0; text != NULL && *text != '\0' && digit < 32; text++) {
        int value = hex_digit(*text);
        if (value < 0)
            continue;
        int byte = (unsigned char)uuid->bytes[digit / 2] | (digit % 2 == 0 ? value << 4 : value);
        uuid->bytes[digit / 2] = (char)byte;
        digit++;
    }
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device))
{
    ENTER();
    return uuid_bytes(uuid, device);
}

ENTRY(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device))
{
    ENTER();
    return uuid_bytes(uuid, device);
}

ENTRY(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device))
{
    ENTER();
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = device_info(device)->memory;
    return CUDA_SUCCESS;
}

/* From before CUDA 3.2: as much as 32 bits can say. */
ENTRY(cuDeviceTotalMem, (unsigned int *bytes, CUdevice device))
{
    ENTER();
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    uint64_t memory = device_info(device)->memory;
    *bytes = memory > UINT_MAX ? UINT_MAX : (unsigned int)memory;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device))
{
    ENTER();
    if (major == NULL || minor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *major = device_info(device)->major;
    *minor = device_info(device)->minor;
    return CUDA_SUCCESS;
}

/* "0000:1a:00.0" in its parts. */
static void bus_parts(const char *bus, unsigned int parts[3])
{
    if (sscanf(bus, "%x:%x:%x", &parts[0], &parts[1], &parts[2]) != 3)
        parts[0] = parts[1] = parts[2] = 0;
}

struct attribute {
    int number, value;
};

/* What is the same for every card: values of a large data-centre card. Numbers as published; those that cuda_abi.h names are named. */
static const struct attribute fixed[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {2, 1024}, {3, 1024}, {4, 64},                 /* block dimensions */
    {5, INT_MAX}, {6, 65535}, {7, 65535},          /* grid dimensions */
    {8, 49152}, {9, 65536},                        /* shared memory per block, constant memory */
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {11, INT_MAX}, {12, 65536},                    /* pitch, registers per block */
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {14, 512}, {15, 1}, {17, 0},                   /* texture alignment, overlap, timeout */
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0}, {19, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},
    {21, 131072}, {22, 131072}, {23, 65536}, {24, 16384}, {25, 16384}, {26, 16384},
    {30, 512}, {31, 1}, {32, 1}, {35, 0},          /* surface alignment, concurrent kernels, ECC, TCC */
    {36, 3201000}, {37, 6144}, {38, 62914560},     /* memory clock, bus width, L2 */
    {40, 3}, {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1}, {51, 32},
    {78, 1}, {79, 1}, {80, 1}, {81, 233472}, {82, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1}, {84, 0}, {85, 0}, {86, 0}, {87, 2}, {88, 0},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1}, {90, 1}, {91, 1}, {95, 1}, {96, 0}, {97, 232448},
    {99, 1}, {100, 0}, {101, 0},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1}, {103, 1}, {104, 0}, {105, 0}, {106, 32}, {107, 1},
    {111, 1024}, {112, 1}, {113, 0}, {114, 0},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1}, {116, 0}, {117, 0}, {118, 0},
    {119, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}, {120, 1}, {121, 1}, {122, 1}, {123, 1}, {124, 0}, {125, 1},
    {128, 0}, {129, 1}, {132, 0}, {133, 0},
};

ENTRY(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))
{
    ENTER();
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    const struct fake_device *info = device_info(device);
    unsigned int bus[3];
    bus_parts(info->bus, bus);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = info->sms;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = info->threads;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = info->major;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = info->minor;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        *value = (int)bus[0];
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = (int)bus[1];
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *value = (int)bus[2];
        return CUDA_SUCCESS;
    case 134: /* NUMA node of the host beside the card */
        *value = info->numa;
        return CUDA_SUCCESS;
    default:
        break;
    }
    if (attribute <= 0 || attribute > 147)
        return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (fixed[i].number == attribute)
            *value = fixed[i].value;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetPCIBusId, (char *text, int length, CUdevice device))
{
    ENTER();
    if (text == NULL || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)length, "%s", device_info(device)->bus);
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetByPCIBusId, (CUdevice *device, const char *text))
{
    ENTER();
    if (device == NULL || text == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned int wanted[3], bus[3];
    if (sscanf(text, "%x:%x:%x", &wanted[0], &wanted[1], &wanted[2]) != 3) {
        wanted[0] = 0; /* the domain may be left out */
        if (sscanf(text, "%x:%x", &wanted[1], &wanted[2]) != 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < devices_count(); i++) {
        bus_parts(device_info(i)->bus, bus);
        if (memcmp(bus, wanted, sizeof bus) == 0) {
            *device = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

/* ---- places of memory ---- */

bool location_is_host(const CUmemLocation *location)
{
    return location->type >= CU_MEM_LOCATION_TYPE_HOST && location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

bool location_device(const CUmemLocation *location, CUdevice *device)
{
    int number = location->type == FAKE_LOCALITY_DOMAIN ? location->id & 0xff : location->id;
    if ((location->type != CU_MEM_LOCATION_TYPE_DEVICE && location->type != FAKE_LOCALITY_DOMAIN) || !device_valid(number))
        return false;
    *device = number;
    return true;
}

ENTRY(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))
{
    ENTER();
    if (can == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device) || !device_valid(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}
