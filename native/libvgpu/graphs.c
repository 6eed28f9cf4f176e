/* Graph memory nodes.
 *
 * A graph's allocations take memory at its first launch, in chunks of 32 MiB, and the driver keeps it until cuDeviceGraphMemTrim. Launches
 * are not ours, so an executable graph is charged when it is made, with what its allocation nodes need side by side, child graphs
 * included. Once it ran, the driver says what it has: the charge is the larger of the two.
 */
#include "graphs.h"

#include <stdbool.h>
#include <stdlib.h>

#include "books.h"
#include "cards.h"
#include "guard.h"
#include "ledger.h"
#include "overhead.h"
#include "test_points.h"

#define CHUNK (32 * MIB)
#define DEEPEST 16 /* child graphs in child graphs */

static uint64_t promised[VGPU_MAX_DEVICES]; /* sum over living executables; under the books' lock */
static uint64_t unsure[VGPU_MAX_DEVICES];   /* the same for memory of no known card, which the driver may not count as a graph's */

void graphs_forget_after_fork(void) {
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        promised[index] = 0;
        unsure[index] = 0;
    }
}

uint64_t graphs_reserved(int index) {
    uint64_t bytes = 0;
    CUdevice device = guard_device_of(index);
    if (device < 0 || real.cuDeviceGetGraphMemAttribute == NULL ||
        real.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) != CUDA_SUCCESS) {
        return 0;
    }
    return bytes;
}

/* What a graph needs of each card: whole chunks, small allocations one after the other into a chunk as long as they fit. */
struct need {
    uint64_t bytes[VGPU_MAX_DEVICES];
    uint64_t left[VGPU_MAX_DEVICES]; /* in the chunk that was opened last */
    uint64_t unsure[VGPU_MAX_DEVICES];
    bool refuse; /* some of it is on a card that was not granted */
};

static void add_node(struct need *need, int index, uint64_t size) {
    if (size <= need->left[index]) {
        need->left[index] -= size;
        return;
    }
    uint64_t chunks = round_up(size, CHUNK);
    need->bytes[index] += chunks;
    need->left[index] = chunks - size;
}

static void add_allocation(struct need *need, const CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    const CUmemLocation *location = &params->poolProps.location;
    bool pinned = params->poolProps.allocType == CU_MEM_ALLOCATION_TYPE_PINNED;
    if (pinned && location_is_host(location)) {
        return;
    }
    bool known = pinned && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct whereabouts where = known ? location_find(location) : location_unknown();
    need->refuse = need->refuse || where.refuse;
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        if ((where.cards & card_alone(index)) != 0 && known) {
            add_node(need, index, params->bytesize);
        } else if ((where.cards & card_alone(index)) != 0) {
            need->unsure[index] += round_up(params->bytesize, CHUNK);
        }
    }
}

static void add_up(CUgraph graph, struct need *need, int depth) {
    size_t count = 0;
    if (depth > DEEPEST || real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0) {
        return;
    }
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    if (nodes == NULL || real.cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS) {
        free(nodes);
        return;
    }
    for (size_t at = 0; at < count; at++) {
        int type = -1;
        CUDA_MEM_ALLOC_NODE_PARAMS params;
        CUgraph child;
        real.cuGraphNodeGetType(nodes[at], &type);
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && real.cuGraphMemAllocNodeGetParams(nodes[at], &params) == CUDA_SUCCESS) {
            add_allocation(need, &params);
        } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && real.cuGraphChildGraphNodeGetGraph(nodes[at], &child) == CUDA_SUCCESS) {
            add_up(child, need, depth + 1);
        }
    }
    free(nodes);
}

/* Charges the larger of what executables may take and what the driver has. */
static void charge(int index, uint64_t reserved) {
    books_settling();
    uint64_t has = graphs_reserved(index);
    books_lock();
    uint64_t may = promised[index];
    uint64_t besides = unsure[index];
    books_unlock();
    TEST_POINT("graphs.charge.between");
    ledger_set(index, LEDGER_GRAPH, (has > may ? has : may) + besides, reserved);
    books_settled();
}

static uint64_t total(const struct need *need, int index) { return need->bytes[index] + need->unsure[index]; }

/* Budget for a graph's memory on each card. False: nothing was taken. */
static bool reserve(const struct need *need) {
    for (int index = 0; index < VGPU_MAX_DEVICES && !need->refuse; index++) {
        if (total(need, index) > 0 && !ledger_reserve(index, total(need, index))) {
            while (--index >= 0) {
                if (total(need, index) > 0) {
                    ledger_return(index, LEDGER_PENDING, total(need, index));
                }
            }
            return false;
        }
    }
    return !need->refuse;
}

/* books.graphs: key = executable + card (executables are pointers, aligned to more than 16 bytes), size = bytes, owner = unsure bytes. */
static uint64_t key_of(CUgraphExec exec, int index) { return (uint64_t)(uintptr_t)exec + (uint64_t)index; }

static CUresult instantiated(CUgraphExec *exec, const struct need *need, CUresult result) {
    TEST_POINT("graphs.instantiated");
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        if (total(need, index) == 0) {
            continue;
        }
        if (result != CUDA_SUCCESS) {
            ledger_return(index, LEDGER_PENDING, total(need, index));
            continue;
        }
        struct record record = {
            .key = key_of(*exec, index), .size = need->bytes[index], .owner = need->unsure[index], .index = index};
        books_lock();
        table_put(&books.graphs, &record);
        promised[index] += record.size;
        unsure[index] += record.owner;
        books_unlock();
        charge(index, total(need, index));
    }
    return result;
}

#define INSTANTIATE(call)                       \
    if (!guard_on()) {                          \
        return call;                            \
    }                                           \
    struct need need = {0};                     \
    add_up(graph, &need, 0);                    \
    if (!reserve(&need)) {                      \
        return CUDA_ERROR_OUT_OF_MEMORY;        \
    }                                           \
    CUresult result = call;                     \
    return instantiated(exec, &need, result)

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size) {
    INSTANTIATE(real.cuGraphInstantiate(exec, graph, error_node, log, log_size));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size) {
    INSTANTIATE(real.cuGraphInstantiate_v2(exec, graph, error_node, log, log_size));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    INSTANTIATE(real.cuGraphInstantiateWithFlags(exec, graph, flags));
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    INSTANTIATE(real.cuGraphInstantiateWithParams(exec, graph, params));
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    INSTANTIATE(real.cuGraphInstantiateWithParams_ptsz(exec, graph, params));
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    if (!guard_on()) {
        return real.cuGraphExecDestroy(exec);
    }
    struct record gone[VGPU_MAX_DEVICES];
    int count = 0;
    books_lock();
    for (int index = 0; index < VGPU_MAX_DEVICES && books.graphs.live > 0; index++) {
        count += table_take(&books.graphs, key_of(exec, index), &gone[count]);
    }
    books_unlock();
    CUresult result = real.cuGraphExecDestroy(exec);
    for (int at = 0; at < count; at++) {
        if (result != CUDA_SUCCESS) {
            books_lock();
            table_put(&books.graphs, &gone[at]);
            books_unlock();
        } else {
            books_lock();
            promised[gone[at].index] -= gone[at].size;
            unsure[gone[at].index] -= gone[at].owner;
            books_unlock();
            charge(gone[at].index, 0);
        }
    }
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    if (!guard_on()) {
        return real.cuDeviceGraphMemTrim(device);
    }
    int index = guard_index_of(device);
    overhead_operation_begins();
    CUresult result = real.cuDeviceGraphMemTrim(device);
    if (index >= 0) {
        charge(index, 0);
    }
    overhead_operation_ends();
    return result;
}
