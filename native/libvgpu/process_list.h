/* NVML's list of the processes on a card, in one shape whichever function of the driver gives it. */
#ifndef HAMI_VGPU_PROCESS_LIST_H
#define HAMI_VGPU_PROCESS_LIST_H

#include "intercept.h"

/* nvmlDeviceGetComputeRunningProcesses without suffix, _v2 and _v3. The first has shorter entries, without instances; drivers before R510
 * lack the third, the oldest also the second. */
enum list_kind { LIST_V1, LIST_V2, LIST_V3 };

/* `infos` has room for *count entries of the longer shape, whatever the kind. */
nvmlReturn_t process_list(enum list_kind kind, nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos);

/* By the newest kind that the driver has. */
nvmlReturn_t process_list_newest(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos);

#endif
