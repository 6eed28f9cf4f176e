/* The stand-in NVML: memory, processes and how busy a card is. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml_internal.h"

/* On a MIG device nothing is counted: the stand-in CUDA does not run on parts of a card. */
static void memory_of(const struct nvml_card *card, nvmlMemory_v2_t *memory)
{
    struct nvml_mig migs[NVML_MOST_MIG];
    memset(memory, 0, sizeof *memory);
    if (card->mig) {
        memory->total = memory->free = card->mig <= nvml_mig_devices(card->device, migs) ? migs[card->mig - 1].memory : 0;
        return;
    }
    memory->total = card->device->memory;
    memory->used = store_used(card->index);
    memory->reserved = fault_hidden(card->device->uuid);
    unsigned long long gone = memory->used + memory->reserved;
    memory->free = gone < memory->total ? memory->total - gone : 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct nvml_card card;
    nvmlMemory_v2_t now;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    NEED(memory);
    memory_of(&card, &now);
    *memory = (nvmlMemory_t){.total = now.total, .free = now.free, .used = now.total - now.free};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_OR_MIG, &card);
    NEED(memory);
    if (memory->version != NVML_MEMORY_V2) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    memory_of(&card, memory);
    memory->version = NVML_MEMORY_V2;
    return NVML_SUCCESS;
}

/* Processes on the card that the caller can see, with pids as it sees them. The caller frees the list; NULL with none. */
static struct fake_process *visible_processes(const struct nvml_card *card, unsigned int *count)
{
    int room = card->mig ? 0 : store_processes(card->index, NULL, 0) + 16;
    struct fake_process *list = room ? calloc((size_t)room, sizeof *list) : NULL;
    int found = list ? store_processes(card->index, list, room) : 0;
    *count = 0;
    for (int i = 0; i < found && i < room; i++) {
        if (list[i].pid > 0) {
            list[*count] = list[i];
            list[(*count)++].pid = fault_pid(list[i].pid);
        }
    }
    return list;
}

/* The second form of the list is also the third's; the first ends before the instances. */
static nvmlReturn_t list_compute(nvmlDevice_t device, const char *function, unsigned int *count, void *infos, bool first_form)
{
    struct nvml_card card;
    nvmlReturn_t refused = nvml_begin_card(function, device, NVML_CARD_OR_MIG, &card);
    if (refused) {
        return refused;
    }
    NEED(count);
    unsigned int found;
    struct fake_process *list = visible_processes(&card, &found);
    bool fits = found <= *count && (infos || found == 0);
    for (unsigned int i = 0; fits && i < found; i++) {
        if (first_form) {
            ((nvmlProcessInfo_v1_t *)infos)[i] = (nvmlProcessInfo_v1_t){.pid = (unsigned int)list[i].pid, .usedGpuMemory = list[i].bytes};
        } else {
            ((nvmlProcessInfo_v2_t *)infos)[i] = (nvmlProcessInfo_v2_t){.pid = (unsigned int)list[i].pid,
                                                                       .usedGpuMemory = list[i].bytes,
                                                                       .gpuInstanceId = NVML_NO_INSTANCE,
                                                                       .computeInstanceId = NVML_NO_INSTANCE};
        }
    }
    free(list);
    *count = found;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static nvmlReturn_t list_nothing(nvmlDevice_t device, const char *function, unsigned int *count)
{
    struct nvml_card card;
    nvmlReturn_t refused = nvml_begin_card(function, device, NVML_CARD_OR_MIG, &card);
    if (refused) {
        return refused;
    }
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

#define COMPUTE_LIST(name, first_form)                                                \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos);  \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos)   \
    {                                                                                 \
        return list_compute(device, __func__, count, infos, first_form);              \
    }
#define EMPTY_LIST(name)                                                              \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos);  \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos)   \
    {                                                                                 \
        (void)infos;                                                                  \
        return list_nothing(device, __func__, count);                                 \
    }

COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses, true)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v2, false)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v3, false)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* What was last told. An answer is about the time since then, but never about less than a tenth of a second: who asks for utilisation,
 * power and heat in one go gets one and the same. */
struct sample {
    int pid;
    uint64_t time;
    uint64_t busy;
    unsigned int percent;
};

#define SHORTEST_WINDOW 100000000u
#define SAMPLED_SLOTS 256 /* processes in higher ones are measured from the last question on */

static pthread_mutex_t sample_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sample card_samples[FAKE_MAX_DEVICES];
static struct sample process_samples[FAKE_MAX_DEVICES][SAMPLED_SLOTS];
static uint64_t processes_asked[FAKE_MAX_DEVICES]; /* when: a process that was not there then has done all its work since */

static void start_process_samples(int index, uint64_t now)
{
    struct fake_process present[SAMPLED_SLOTS];
    int count = store_processes(index, present, SAMPLED_SLOTS);
    processes_asked[index] = now;
    memset(process_samples[index], 0, sizeof process_samples[index]);
    for (int i = 0; i < count && i < SAMPLED_SLOTS; i++) {
        if (present[i].slot < SAMPLED_SLOTS) {
            process_samples[index][present[i].slot] = (struct sample){.pid = present[i].inner_pid, .time = now, .busy = present[i].busy};
        }
    }
}

void nvml_start_samples(void)
{
    const struct fake_device *devices;
    int count = store_devices(&devices);
    pthread_mutex_lock(&sample_mutex);
    uint64_t now = store_now();
    for (int i = 0; i < count; i++) {
        card_samples[i] = (struct sample){.time = now, .busy = store_busy(i, NULL), .percent = store_working(i) ? 100 : 0};
        start_process_samples(i, now);
    }
    pthread_mutex_unlock(&sample_mutex);
}

static unsigned int measure(struct sample *sample, uint64_t now, uint64_t busy)
{
    if (now >= sample->time + SHORTEST_WINDOW) {
        uint64_t worked = busy > sample->busy ? busy - sample->busy : 0;
        uint64_t percent = worked * 100 / (now - sample->time);
        sample->percent = percent > 100 ? 100 : (unsigned int)percent;
        sample->time = now;
        sample->busy = busy;
    }
    return sample->percent;
}

unsigned int nvml_utilisation(int index)
{
    pthread_mutex_lock(&sample_mutex);
    unsigned int percent = measure(&card_samples[index], store_now(), store_busy(index, NULL));
    pthread_mutex_unlock(&sample_mutex);
    return percent;
}

struct rates {
    unsigned int gpu, memory;
};

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct rates *rates);
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct rates *rates)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(rates);
    rates->gpu = nvml_utilisation(card.index);
    rates->memory = rates->gpu / 2;
    return NVML_SUCCESS;
}

struct process_sample {
    unsigned int pid;
    unsigned long long microseconds;
    unsigned int sm, memory, encoder, decoder;
};

static unsigned long long microseconds_now(void)
{
    const char *kind = getenv("FAKEGPU_CLOCK");
    struct timespec now;
    if (kind && strcmp(kind, "virtual") == 0) {
        return store_now() / 1000;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
}

static unsigned int process_percent(int index, const struct fake_process *process)
{
    struct sample fresh = {.pid = process->inner_pid, .time = processes_asked[index]};
    struct sample *sample = process->slot < SAMPLED_SLOTS ? &process_samples[index][process->slot] : &fresh;
    if (sample->pid != process->inner_pid) {
        *sample = fresh;
    }
    return measure(sample, store_now(), process->busy);
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, struct process_sample *samples, unsigned int *count,
                                                    unsigned long long last_seen);
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, struct process_sample *samples, unsigned int *count,
                                                    unsigned long long last_seen)
{
    struct nvml_card card;
    BEGIN_WITH(device, NVML_CARD_ONLY, &card);
    NEED(count);
    unsigned int found;
    unsigned long long now = microseconds_now();
    struct fake_process *list = visible_processes(&card, &found);
    nvmlReturn_t result = NVML_SUCCESS;
    if (found == 0 || last_seen >= now) {
        found = 0;
        result = NVML_ERROR_NOT_FOUND;
    } else if (!samples || *count < found) {
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    } else {
        pthread_mutex_lock(&sample_mutex);
        for (unsigned int i = 0; i < found; i++) {
            unsigned int percent = process_percent(card.index, &list[i]);
            samples[i] =
                (struct process_sample){.pid = (unsigned int)list[i].pid, .microseconds = now, .sm = percent, .memory = percent / 2};
        }
        processes_asked[card.index] = store_now();
        pthread_mutex_unlock(&sample_mutex);
    }
    *count = found;
    free(list);
    return result;
}
