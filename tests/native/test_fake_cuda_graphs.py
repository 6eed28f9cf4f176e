"""The stand-in driver's graphs: memory, stream capture, contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import partial
from pathlib import Path

import pytest

from tests.native.fake_cuda import (
    INVALID_HANDLE,
    INVALID_VALUE,
    MIB,
    MILLISECOND,
    OUT_OF_MEMORY,
    AllocNode,
    ArrayDescriptor,
    Driver,
    Process,
    Resource,
    VolumeDescriptor,
    make_node,
    process,
)

CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_IMPLICIT = 900, 901, 904, 906
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
KERNEL, MEM_ALLOC, MEM_FREE = 0, 10, 11


@pytest.fixture(scope="module")
def run(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with process(built, make_node(tmp_path_factory.mktemp("node"))) as running:
        yield running


def graph_of(driver: Driver, *sizes: int, freed: bool) -> tuple[c_void_p, int]:
    """Make a graph that has all of these at once; give the last pointer too."""
    graph = driver.new("cuGraphCreate", 0)
    all_params = [AllocNode(type=1, place=1, device=0, size=size) for size in sizes]
    nodes = [
        driver.new("cuGraphAddMemAllocNode", graph, None, c_size_t(0), byref(params))
        for params in all_params
    ]
    before = (c_void_p * len(nodes))(*(node.value for node in nodes))
    for params in all_params if freed else ():
        pointer = c_uint64(params.pointer)
        driver.new("cuGraphAddMemFreeNode", graph, before, c_size_t(len(nodes)), pointer)
    return graph, all_params[-1].pointer


def node_types(driver: Driver, graph: c_void_p) -> list[int]:
    count = c_size_t()
    driver.ok("cuGraphGetNodes", graph, None, byref(count))
    nodes, kind = (c_void_p * count.value)(), c_int()
    driver.ok("cuGraphGetNodes", graph, nodes, byref(count))
    types = []
    for node in nodes:
        driver.ok("cuGraphNodeGetType", c_void_p(node), byref(kind))
        types.append(kind.value)
    return types


# ---- graphs ----


def graph_memory(driver: Driver) -> dict[str, list[int]]:
    stream = driver.new("cuStreamCreate", 0)
    before = driver.used()
    used, reserved = [], []

    def note() -> None:
        used.append((driver.used() - before) // MIB)
        reserved.append(driver.graph_amount(2) // MIB)

    for size in (40 * MIB, 30 * MIB, 70 * MIB):
        graph, _ = graph_of(driver, size, freed=True)
        ready = driver.new("cuGraphInstantiateWithFlags", graph, c_uint64(0))
        note()
        for _ in range(2):
            driver.ok("cuGraphLaunch", ready, stream)
            note()
        driver.ok("cuGraphExecDestroy", ready)
    driver.ok("cuDeviceGraphMemTrim", 0)
    note()
    return {"card": used, "attribute": reserved}


def test_graph_memory_comes_at_the_first_launch_and_is_kept_until_trimmed(run: Process) -> None:
    expected = [0, 64, 64, 64, 64, 64, 64, 96, 96, 0]
    assert run(graph_memory) == {"card": expected, "attribute": expected}


def reserved_after(driver: Driver, graphs: list[tuple[int, ...]], *, freed: bool) -> list[int]:
    stream = driver.new("cuStreamCreate", 0)
    before, reserved = driver.used(), []
    for sizes in graphs:
        graph, _ = graph_of(driver, *(size * MIB for size in sizes), freed=freed)
        ready = driver.new("cuGraphInstantiateWithFlags", graph, c_uint64(0))
        driver.ok("cuGraphLaunch", ready, stream)
        reserved.append(driver.graph_amount(2) // MIB)
        assert driver.used() - before == reserved[-1] * MIB
    return reserved


@pytest.mark.parametrize(
    ("graphs", "reserved"),
    [
        ([(1,) * 8], [32]),
        ([(1,) * 33], [64]),
        ([(20, 20, 12)], [64]),
        ([(100,), (100,), (40, 40), (100,)], [128] * 4),
    ],
)
def test_allocations_of_a_graph_are_packed_and_graphs_take_turns(
    run: Process, graphs: list[tuple[int, ...]], reserved: list[int]
) -> None:
    assert run(reserved_after, graphs, freed=True) == reserved


def test_graphs_that_keep_their_memory_do_not_share_it(run: Process) -> None:
    assert run(reserved_after, [(1, 1), (1,), (40,)], freed=False) == [32, 64, 128]


def kept_allocation(driver: Driver, flags: int) -> list[int]:
    graph, pointer = graph_of(driver, MIB, freed=False)
    ready = driver.new("cuGraphInstantiateWithFlags", graph, c_uint64(flags))
    results = [driver.call("cuGraphLaunch", ready, None) for _ in range(2)]
    results.append(driver.graph_amount(0) // MIB)
    results.append(driver.call("cuMemFreeAsync", c_uint64(pointer), None))
    results.append(driver.graph_amount(0) // MIB)
    results.append(driver.call("cuGraphLaunch", ready, None))
    return results


@pytest.mark.parametrize(("flags", "again"), [(0, INVALID_VALUE), (1, 0)])
def test_a_graph_that_keeps_its_memory_cannot_run_again_unless_it_frees_it(
    run: Process, flags: int, again: int
) -> None:
    assert run(kept_allocation, flags) == [0, again, 32, 0, 0, 0]


def graph_without_room(driver: Driver) -> tuple[int, int, int]:
    free, total = c_size_t(), c_size_t()
    driver.ok("cuMemGetInfo_v2", byref(free), byref(total))
    driver.ok("cuMemAlloc_v2", byref(c_uint64()), c_size_t(free.value - 40 * MIB))
    before = driver.used()
    graph = driver.new("cuGraphCreate", 0)
    for size in (32 * MIB, 32 * MIB):
        params = AllocNode(type=1, place=1, device=0, size=size)
        driver.new("cuGraphAddMemAllocNode", graph, None, c_size_t(0), byref(params))
    ready = driver.new("cuGraphInstantiateWithFlags", graph, c_uint64(0))
    result = driver.call("cuGraphLaunch", ready, None)
    return result, driver.used() - before, driver.graph_amount(2)


def test_a_graph_whose_memory_does_not_fit_is_refused_and_keeps_nothing(run: Process) -> None:
    assert run(graph_without_room) == (OUT_OF_MEMORY, 0, 0)


def memory_has_one_owner(driver: Driver) -> list[int]:
    graph, _ = graph_of(driver, MIB, freed=True)
    first = driver.new("cuGraphInstantiateWithFlags", graph, c_uint64(0))
    again = partial(driver.call, "cuGraphInstantiateWithFlags", byref(c_void_p()), graph)
    results = [driver.call("cuGraphClone", byref(c_void_p()), graph), again(c_uint64(0))]
    driver.ok("cuGraphExecDestroy", first)
    return [*results, again(c_uint64(0))]


def test_a_graph_with_memory_has_no_second_copy(run: Process) -> None:
    clone, second, after = run(memory_has_one_owner)
    assert clone != 0
    assert second != 0
    assert after == 0


# ---- capture ----


@contextmanager
def capturing(
    driver: Driver, stream: c_void_p, mode: int = GLOBAL
) -> Iterator[list[tuple[int, c_void_p]]]:
    """Capture what is done in the block; its end is put into the list."""
    ends: list[tuple[int, c_void_p]] = []
    driver.ok("cuStreamBeginCapture_v2", stream, mode)
    yield ends
    graph = c_void_p()
    ends.append((driver.call("cuStreamEndCapture", stream, byref(graph)), graph))


def captured(driver: Driver) -> dict[str, object]:
    stream, pointer, status = driver.new("cuStreamCreate", 0), c_uint64(), c_int()
    function = driver.function(b"k_1000000")
    before = driver.used()
    with capturing(driver, stream) as ends:
        driver.ok("cuMemAllocAsync", byref(pointer), c_size_t(MIB), stream)
        assert driver.launch(function, stream) == 0
        assert driver.launch(function, stream) == 0
        driver.ok("cuMemFreeAsync", pointer, stream)
        driver.ok("cuStreamIsCapturing", stream, byref(status))
    [(result, graph)] = ends
    quiet = driver.call("cuStreamQuery", stream), driver.used() - before
    ready = driver.new("cuGraphInstantiateWithFlags", graph, c_uint64(0))
    start = driver.event(stream)
    driver.ok("cuGraphLaunch", ready, stream)
    end = driver.event(stream)
    driver.advance(2 * MILLISECOND)
    return {
        "result": result,
        "status": status.value,
        "nodes": node_types(driver, graph),
        "work and memory while capturing": quiet,
        "launched": driver.elapsed(start, end),
        "memory of the launch": driver.graph_amount(2),
    }


def test_capture_makes_a_graph_of_launches_and_allocations_and_runs_nothing(run: Process) -> None:
    assert run(captured) == {
        "result": 0,
        "status": 1,
        "nodes": [MEM_ALLOC, KERNEL, KERNEL, MEM_FREE],
        "work and memory while capturing": (0, 0),
        "launched": 2.0,
        "memory of the launch": 32 * MIB,
    }


def launched_elsewhere(driver: Driver) -> list[int]:
    one, other = driver.new("cuStreamCreate", 1), driver.new("cuStreamCreate", 1)
    function, pointer, reserved = driver.function(b"k_1000000"), c_uint64(), []

    def ready() -> c_void_p:
        with capturing(driver, one) as ends:
            driver.ok("cuMemAllocAsync", byref(pointer), c_size_t(MIB), one)
            assert driver.launch(function, one) == 0
            driver.ok("cuMemFreeAsync", pointer, one)
        return driver.new("cuGraphInstantiateWithFlags", ends[0][1], c_uint64(0))

    first, second = ready(), ready()
    for graph, stream in ((first, one), (first, other), (second, one), (second, other)):
        driver.ok("cuGraphLaunch", graph, stream)
        reserved.append(driver.graph_amount(2) // MIB)
    return reserved


def test_graphs_share_memory_unless_they_may_run_at_the_same_time(run: Process) -> None:
    assert run(launched_elsewhere) == [32, 32, 64, 64]


def forked(driver: Driver, *, join: bool) -> tuple[int, list[int]]:
    one, other = driver.new("cuStreamCreate", 1), driver.new("cuStreamCreate", 1)
    function = driver.function(b"plain")
    fork, back = driver.new("cuEventCreate", 2), driver.new("cuEventCreate", 2)
    with capturing(driver, one) as ends:
        driver.launch(function, one)
        driver.ok("cuEventRecord", fork, one)
        driver.ok("cuStreamWaitEvent", other, fork, 0)
        driver.launch(function, other)
        driver.ok("cuEventRecord", back, other)
        if join:
            driver.ok("cuStreamWaitEvent", one, back, 0)
        driver.launch(function, one)
    [(result, graph)] = ends
    return result, node_types(driver, graph) if result == 0 else []


def test_a_capture_spreads_to_other_streams_by_events_and_must_come_back(run: Process) -> None:
    assert run(forked, join=True) == (0, [KERNEL] * 3)
    assert run(forked, join=False) == (CAPTURE_UNJOINED, [])


def spoilt(driver: Driver) -> list[int]:
    stream, results = driver.new("cuStreamCreate", 0), []
    function = driver.function(b"plain")
    spoils: list[Callable[[], int]] = [
        partial(driver.call, "cuStreamSynchronize", stream),
        partial(driver.call, "cuEventQuery", driver.event()),
        partial(driver.launch, function, None),
    ]
    for spoil in spoils:
        with capturing(driver, stream) as ends:
            results.append(spoil())
        results.append(ends[0][0])
    return [*results, driver.launch(function, None)]


def test_what_cannot_be_captured_spoils_the_capture(run: Process) -> None:
    assert run(spoilt) == [
        *(CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED),
        *(CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED),
        *(CAPTURE_IMPLICIT, CAPTURE_INVALIDATED),
        0,
    ]


def allocations(driver: Driver) -> dict[str, Callable[[], int]]:
    size, one, array = c_size_t(MIB), c_size_t(1), ArrayDescriptor(16, 16, 32, 1)
    volume = VolumeDescriptor(16, 16, 0, 32, 1, 0)
    return {
        "linear": partial(driver.call, "cuMemAlloc_v2", byref(c_uint64()), size),
        "pitch": partial(
            driver.call, "cuMemAllocPitch_v2", byref(c_uint64()), byref(c_size_t()), size, one, 4
        ),
        "managed": partial(driver.call, "cuMemAllocManaged", byref(c_uint64()), size, 1),
        "host": partial(driver.call, "cuMemHostAlloc", byref(c_void_p()), size, 0),
        "array": partial(driver.call, "cuArrayCreate_v2", byref(c_void_p()), byref(array)),
        "mipmap": partial(
            driver.call, "cuMipmappedArrayCreate", byref(c_void_p()), byref(volume), 1
        ),
    }


def allocated_while_capturing(driver: Driver, kind: str, mode: int) -> tuple[int, int, int]:
    stream, before = driver.new("cuStreamCreate", 0), driver.used()
    with capturing(driver, stream, mode) as ends:
        result = allocations(driver)[kind]()
    return result, ends[0][0], (driver.used() - before) // MIB


@pytest.mark.parametrize("kind", ["linear", "pitch", "managed", "host", "array", "mipmap"])
def test_allocating_spoils_a_capture_that_is_not_relaxed(run: Process, kind: str) -> None:
    spoils = CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, 0
    assert run(allocated_while_capturing, kind, GLOBAL) == spoils
    assert run(allocated_while_capturing, kind, THREAD_LOCAL) == spoils
    assert run(allocated_while_capturing, kind, RELAXED)[:2] == (0, 0)


# ---- contexts ----


def green(driver: Driver) -> tuple[list[int], int]:
    whole, part, left, groups = Resource(), Resource(), Resource(), c_uint(1)
    driver.ok("cuDeviceGetDevResource", 0, byref(whole), 1)
    split = byref(part), byref(groups), byref(whole), byref(left), 0, 20
    driver.ok("cuDevSmResourceSplitByCount", *split)
    description = driver.new("cuDevResourceGenerateDesc", byref(part), 1)
    context = driver.new("cuGreenCtxCreate", description, 0, 1)
    stream = driver.new("cuGreenCtxStreamCreate", context, 1, 0)
    driver.ok("cuCtxSetCurrent", driver.new("cuCtxFromGreenCtx", context))
    launched = driver.launch(driver.function(b"plain"), stream)
    driver.ok("cuCtxSetCurrent", driver.context)
    driver.ok("cuGreenCtxDestroy", context)
    return [whole.sms, part.sms, left.sms], launched


def test_a_green_context_has_a_part_of_the_card_and_streams(run: Process) -> None:
    assert run(green) == ([132, 24, 108], 0)


def context_ends(driver: Driver) -> tuple[int, int]:
    before = driver.used()
    context = driver.new("cuCtxCreate_v2", 0, 0)
    stream = driver.new("cuStreamCreate", 0)
    driver.launch(driver.function(b"deep"), stream)
    graph, _ = graph_of(driver, MIB, freed=False)
    ready = driver.new("cuGraphInstantiateWithFlags", graph, c_uint64(0))
    driver.ok("cuGraphLaunch", ready, stream)
    driver.ok("cuCtxDestroy_v2", context)
    return driver.used() - before, driver.call("cuStreamQuery", stream)


def test_streams_code_and_graph_memory_go_with_their_context(run: Process) -> None:
    assert run(context_ends) == (0, INVALID_HANDLE)
