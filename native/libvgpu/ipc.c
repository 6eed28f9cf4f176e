/* Memory shared by cuIpc handles: charged to the process that allocated it. Measured: the driver counts it there too, and for the one that
 * opened it only after the maker is gone or freed it. That moment is seen from outside only, so it makes everybody look again.
 * Opening is in doors.c.
 */
#include "books.h"
#include "guard.h"
#include "overhead.h"

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    bool on = guard_on();
    CUresult result = real.cuIpcGetMemHandle(handle, pointer);
    if (on && result == CUDA_SUCCESS) {
        books_lock();
        table_put(&books.shared, &(struct record){.key = pointer});
        books_unlock();
    }
    return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    if (guard_on()) {
        overhead_suspect();
    }
    return real.cuIpcCloseMemHandle(pointer);
}
