/* How a process comes to the stand-in driver: cuInit, the state of "initialised", the lock, what fork does to it.
 *
 * As with the real driver a child of an initialised process cannot use CUDA at all: every call, cuInit too, says "not initialised".
 * That is decided by comparing pids, not by a fork handler, so that it holds for a bare clone() too. The fork handler only lets go
 * what the child must not keep: locks on shared memory.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cuda_internal.h"
#include "cuda_ipc_share.h"

#define DRIVER_VERSION 13000

extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);
extern void *__dso_handle __attribute__((visibility("hidden")));

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int initialised_by; /* pid; 0: not yet */

void driver_lock(void)
{
    pthread_mutex_lock(&process_lock);
}

void driver_unlock(void)
{
    pthread_mutex_unlock(&process_lock);
}

CUresult driver_enter(const char *name)
{
    int code = fault(name);
    if (code != CUDA_SUCCESS)
        return code;
    if (atomic_load_explicit(&initialised_by, memory_order_acquire) != getpid())
        return CUDA_ERROR_NOT_INITIALIZED;
    return CUDA_SUCCESS;
}

static void after_fork_in_child(void)
{
    shares_forget();
    store_after_fork();
}

ENTRY(cuInit, (unsigned int flags))
{
    ENTER_EARLY();
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    int me = getpid();
    int before = atomic_load_explicit(&initialised_by, memory_order_acquire);
    if (before != 0) /* and not the lock: another thread of the parent may have held it */
        return before == me ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    driver_lock();
    CUresult result = CUDA_SUCCESS;
    if (atomic_load_explicit(&initialised_by, memory_order_acquire) == 0) {
        if (devices_count() == 0) {
            result = CUDA_ERROR_NO_DEVICE;
        } else {
            __register_atfork(NULL, NULL, after_fork_in_child, __dso_handle);
            atomic_store_explicit(&initialised_by, me, memory_order_release);
        }
    }
    driver_unlock();
    return result;
}

ENTRY(cuDriverGetVersion, (int *version))
{
    ENTER_EARLY();
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

/* Undocumented tables of functions that NVIDIA's own libraries ask for: we have none. */
ENTRY(cuGetExportTable, (const void **table, const CUuuid *id))
{
    ENTER_EARLY();
    if (table == NULL || id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
