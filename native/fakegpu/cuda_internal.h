/* What the parts of the stand-in libcuda.so.1 share: how an entry point is written, the lock, contexts, device address space.
 *
 * An entry point:
 *
 *     ENTRY(cuMemGetInfo_v2, (size_t *available, size_t *total))
 *     {
 *         ENTER();                    // fault injection, then cuInit and fork: returns from here if there is something to say
 *         ...
 *     }
 *
 * ENTRY defines a hidden function `fake_<name>`, exports it as <name>, and lists it for cuGetProcAddress. Inside the library call
 * `fake_<name>` (or, better, a plain static function), never <name>: a preloaded library has that name too and would come first.
 * Declare with DECLARE_ENTRY(name, params) what another file has. For _ptsz/_ptds twins write a second ENTRY that calls the same
 * static function. Versions of a name (cuCtxCreate at 13000 is cuCtxCreate_v4) are in cuda_entry_versions.def; _ptsz and _ptds twins need
 * no line there.
 *
 * One mutex for the process: driver_lock(). "(locked)" below: the caller holds it. Never sleep with it held, never take it twice.
 * Functions that are not marked take it themselves if they need it.
 */
#ifndef FAKEGPU_CUDA_INTERNAL_H
#define FAKEGPU_CUDA_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "faults.h"
#include "store.h"

/* ---- entry points ---- */

struct driver_entry {
    const char *name;
    void (*function)(void); /* never called through this type */
};

#ifndef __has_attribute
#define __has_attribute(x) 0
#endif
#if __has_attribute(retain)
#define ENTRY_LISTED __attribute__((used, retain, section("driver_entries")))
#else
#define ENTRY_LISTED __attribute__((used, section("driver_entries")))
#endif

#define DECLARE_ENTRY(name, params) CUresult fake_##name params __attribute__((visibility("hidden")));
#define ENTRY(name, params)                                                                                \
    DECLARE_ENTRY(name, params)                                                                            \
    __attribute__((visibility("default"))) CUresult name params __attribute__((alias("fake_" #name)));     \
    static const struct driver_entry entry_of_##name ENTRY_LISTED = {#name, (void (*)(void))fake_##name}; \
    CUresult fake_##name params

/* First line of a body. ENTER needs cuInit before; ENTER_EARLY does not (cuInit, cuDriverGetVersion, cuGetProcAddress, ...). */
#define ENTER()                                                  \
    do {                                                         \
        int refused_ = driver_enter(__func__ + sizeof "fake");   \
        if (refused_ != CUDA_SUCCESS)                            \
            return refused_;                                     \
    } while (0)
#define ENTER_EARLY()                                            \
    do {                                                         \
        int refused_ = fault(__func__ + sizeof "fake");          \
        if (refused_ != CUDA_SUCCESS)                            \
            return refused_;                                     \
    } while (0)

CUresult driver_enter(const char *name);
void driver_lock(void);
void driver_unlock(void);

/* ---- devices: a CUdevice is an ordinal of what the process sees ---- */

int devices_count(void);
bool device_valid(CUdevice device);
int device_card(CUdevice device); /* index for store_*() */
const struct fake_device *device_info(CUdevice device);

/* A number for part of a card's memory that no published header of before has: what a newer driver may add. */
#define FAKE_LOCALITY_DOMAIN 6
bool location_is_host(const CUmemLocation *location);
/* The device that a location means, also by FAKE_LOCALITY_DOMAIN (its number is the lowest byte of the id); false: none that there is. */
bool location_device(const CUmemLocation *location, CUdevice *device);

/* ---- contexts ---- */

struct region;
struct small_page;

struct CUctx_st {
    struct CUctx_st *next; /* all that ever were: handles of destroyed ones must still be told apart */
    bool alive, primary;
    CUcontext inside; /* of a green context: the primary context, whose everything is; else NULL */
    unsigned int references; /* primary: retains. others: 1 */
    unsigned int flags;
    unsigned int api_version;
    CUdevice device;
    int card; /* store_*() index of the device */
    uint64_t id;
    uint64_t overhead;          /* bytes charged by context_overhead() and for the context itself */
    uint64_t local_charged;     /* bytes now charged for the stack limit */
    size_t limits[16];          /* by CU_LIMIT_* */
    struct region *regions;     /* all device memory that goes with the context */
    struct small_page *small;   /* pages for allocations of at most 1 MiB that have room */
    struct array_page *array_pages;
    struct CUarray_st *arrays;
    struct CUmipmappedArray_st *mipmaps;
    void *streams; /* what cuda_stream*.c, cuda_module*.c and cuda_graph*.c keep; NULL at first */
    void *modules;
    void *graphs;
};

/* The calling thread's context. CUDA_ERROR_INVALID_CONTEXT if there is none, CONTEXT_IS_DESTROYED, or UNKNOWN for a lost card. */
CUresult context_current(CUcontext *context);
/* Checks a handle from the caller; NULL means the current one. */
CUresult context_check(CUcontext *context);

/* (locked) Takes memory of the context's card for the process, gives it back. OUT_OF_MEMORY if the card has not that much. */
CUresult context_take(CUcontext context, uint64_t bytes);
void context_give(CUcontext context, uint64_t bytes);
/* (locked) Takes what stays until the context goes: streams, loaded code. */
CUresult context_overhead(CUcontext context, uint64_t bytes);
/* (locked) A kernel with that much local memory per thread is about to be launched: raises the stack limit to it. OUT_OF_MEMORY if it
 * does not fit. */
CUresult context_local_memory(CUcontext context, uint64_t bytes_per_thread);

/* ---- memory of a card by number, for what has no context (VMM, pools) ---- */

CUresult card_take(int card, enum fake_kind kind, uint64_t bytes);

/* ---- device address space: real, 2 MiB aligned host addresses, so that small memory can hold bytes ---- */

enum region_kind {
    REGION_SMALL,    /* a page of allocations of at most 1 MiB */
    REGION_LARGE,    /* one allocation */
    REGION_MANAGED,
    REGION_POOL,     /* a span of chunks of a pool */
    REGION_RESERVED, /* cuMemAddressReserve */
    REGION_IPC,      /* another process's memory */
    REGION_GRAPH,    /* memory of graph nodes */
};

struct share; /* of cuda_ipc_share.c: memory that other processes may hold too */

struct region {
    struct region *next, **link; /* in context->regions; link is NULL if in no list */
    enum region_kind kind;
    CUcontext context; /* NULL: belongs to no context */
    CUdevice device;
    CUdeviceptr start;
    size_t length; /* a multiple of FAKE_PAGE */
    size_t size;   /* as asked for */
    uint64_t charged; /* bytes on the card to be given back when it goes */
    uint64_t buffer_id;
    unsigned int openings; /* of REGION_IPC: how often it was opened */
    struct share *share; /* not NULL once exported or when imported */
    bool shown;    /* other processes' bytes may be at its addresses: share_show() */
    void *detail;  /* by kind */
};

/* (locked) Makes a region of addresses, without memory: NULL if there is no room. `context` may be NULL. Unmaking frees the addresses,
 * not what was charged. */
struct region *region_make(enum region_kind kind, CUcontext context, CUdevice device, size_t size);
void region_unmake(struct region *region);
/* (locked) Same below 4 GiB, for the old entry points with 32-bit pointers. */
struct region *region_make_low(enum region_kind kind, CUcontext context, CUdevice device, size_t size);
/* (locked) Empties addresses; `shown`: they had a share's bytes. */
void addresses_clear(CUdeviceptr start, size_t length, bool shown);
/* (locked) The region around an address, or NULL. */
struct region *region_find(CUdeviceptr address);

static inline uint64_t round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

/* (locked) Managed memory, of a pool or not, goes to where it is used: to another card, or with device -1 to the host. What the card has not
 * room for stays where it is. Other memory does not move. */
void managed_move(struct region *region, CUdevice device);

/* ---- what memory tells streams: implemented in cuda_stream*.c, cuda_capture*.c, cuda_graph*.c ---- */

/* A stream as the caller wrote it: NULL and CU_STREAM_LEGACY mean the legacy default stream, or with `per_thread` (the _ptsz/_ptds
 * entry points) NULL means the thread's. (locked) Gives its context and a key that is equal for the same stream. INVALID_HANDLE. */
CUresult stream_resolve(CUstream stream, bool per_thread, CUcontext *context, const void **key);
/* Puts work of `cost` ns on a stream; (not locked) waits for all of its work; for all streams of a context. */
CUresult stream_add_work(CUstream stream, bool per_thread, uint64_t cost);
CUresult stream_wait(CUstream stream, bool per_thread);
CUresult streams_synchronize_context(CUcontext context);
/* (locked) The context is being destroyed: forget its streams, events, modules, graphs; give back graph memory (not overhead: the context
 * does that). */
void streams_context_gone(CUcontext context);

/* Whether the stream captures a graph; then these make nodes instead of allocating. (not locked) */
bool capture_active(CUstream stream, bool per_thread);
CUresult capture_alloc(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream, bool per_thread);
CUresult capture_free(CUdeviceptr pointer, CUstream stream, bool per_thread);
/* Calls that allocate at once may not be made by a thread while captures are under way that are not relaxed: the error to return, and
 * the captures are spoilt. */
CUresult capture_unsafe(void);
/* An asynchronous copy or fill on a capturing stream: one node of that kind (CU_GRAPH_NODE_TYPE_MEMCPY or _MEMSET). */
CUresult capture_work(int node_type, CUstream stream, bool per_thread);
/* cuMemFree or cuMemFreeAsync of memory that a graph allocated and did not free. (locked) INVALID_VALUE if it is not such memory. */
CUresult graph_memory_free(CUdeviceptr pointer);

/* ---- what streams tell memory: implemented in cuda_pool*.c ---- */

/* (locked) All work of the stream with that key (from stream_resolve) is done, or of all of the context with key NULL: freed blocks may be
 * reused by every stream, pools above their threshold shrink. Call after stream, event and context synchronisation has waited. */
void pools_synchronized(CUcontext context, const void *key);

#endif
