/* Memory opened from another process: charged to the one that allocated it. The measurement does not take it for ours. */
#include "guard.h"
#include "overhead.h"

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    if (guard_on()) {
        overhead_suspect();
    }
    return real.cuIpcOpenMemHandle(pointer, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    if (guard_on()) {
        overhead_suspect();
    }
    return real.cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    if (guard_on()) {
        overhead_suspect();
    }
    return real.cuIpcCloseMemHandle(pointer);
}
