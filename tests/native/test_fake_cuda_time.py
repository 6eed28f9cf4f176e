"""The stand-in driver's card as a timeline: streams, events, kernels.

Time is virtual wherever it is compared: the card is as far as somebody has advanced it, so no
machine is too slow for a test.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import partial
from pathlib import Path

import pytest

from tests.native.fake_cuda import (
    INVALID_HANDLE,
    MIB,
    MILLISECOND,
    NOT_FOUND,
    NOT_READY,
    OUT_OF_MEMORY,
    PATIENCE,
    PTX,
    Driver,
    Process,
    make_node,
    process,
)

#: What `deep` takes of the card: all but the first 1024 bytes, for every thread that it can run.
DEEP = (16384 - 1024) * 132 * 2048


@pytest.fixture(scope="module")
def run(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with process(built, make_node(tmp_path_factory.mktemp("node"))) as running:
        yield running


# ---- streams and events ----


def two_streams(driver: Driver) -> list[tuple[int, int]]:
    function = driver.function(b"k_1000000")
    first, second = driver.new("cuStreamCreate", 0), driver.new("cuStreamCreate", 1)
    driver.launch(function, first)
    driver.launch(function, second)
    seen = []
    for _ in range(3):
        seen.append((driver.call("cuStreamQuery", first), driver.call("cuStreamQuery", second)))
        driver.advance(MILLISECOND)
    return seen


def test_two_streams_share_the_card_and_finish_one_after_the_other(run: Process) -> None:
    assert run(two_streams) == [(NOT_READY, NOT_READY), (0, NOT_READY), (0, 0)]


def measured(driver: Driver) -> tuple[int, float]:
    function, stream = driver.function(b"deep"), driver.new("cuStreamCreate", 0)
    start = driver.event(stream)
    driver.launch(function, stream)
    driver.launch(driver.function(b"k_1000000"), stream)
    end = driver.event(stream)
    early = driver.call("cuEventElapsedTime", byref(c_float()), start, end)
    driver.advance(5 * MILLISECOND)
    driver.ok("cuEventSynchronize", end)
    return early, driver.elapsed(start, end)


def test_events_measure_what_kernels_cost(run: Process) -> None:
    assert run(measured) == (NOT_READY, 5.0)


def waited_event(driver: Driver) -> float:
    function = driver.function(b"k_1000000")
    first, second = driver.new("cuStreamCreate", 1), driver.new("cuStreamCreate", 1)
    start = driver.event(first)
    driver.launch(function, first)
    driver.ok("cuStreamWaitEvent", second, driver.event(first), 0)
    end = driver.event(second)
    driver.advance(MILLISECOND)
    return driver.elapsed(start, end)


def test_a_stream_that_waits_for_an_event_goes_on_after_it(run: Process) -> None:
    assert run(waited_event) == 1.0


def default_streams(driver: Driver) -> dict[str, float]:
    function, blocking = driver.function(b"k_1000000"), driver.new("cuStreamCreate", 0)
    free = driver.new("cuStreamCreate", 1)
    start = driver.event(free)
    driver.launch(function, blocking)
    events = {
        "legacy waits for blocking": driver.event(None),
        "legacy does not hold up non-blocking": driver.event(free),
    }
    driver.launch(function, None)
    events["blocking waits for legacy"] = driver.event(blocking)
    events["non-blocking still free"] = driver.event(free)
    driver.launch(function, None, suffix="_ptsz")
    events["the thread's stream is blocking too"] = driver.event(None)
    driver.advance(10 * MILLISECOND)
    return {what: driver.elapsed(start, event) for what, event in events.items()}


def test_default_streams_wait_for_blocking_streams_and_these_for_them(run: Process) -> None:
    assert run(default_streams) == {
        "legacy waits for blocking": 1.0,
        "legacy does not hold up non-blocking": 0.0,
        "blocking waits for legacy": 2.0,
        "non-blocking still free": 0.0,
        "the thread's stream is blocking too": 3.0,
    }


def synchronised(driver: Driver, wait: str) -> bool:
    """Tell whether the wait ended only after the card was done."""
    stream = driver.new("cuStreamCreate", 0)
    driver.launch(driver.function(b"k_1000000"), stream)
    event, done, seen = driver.event(stream), threading.Event(), []
    waits: dict[str, Callable[[], None]] = {
        "stream": partial(driver.ok, "cuStreamSynchronize", stream),
        "event": partial(driver.ok, "cuEventSynchronize", event),
        "context": partial(driver.ok, "cuCtxSynchronize"),
    }

    def waiter() -> None:
        driver.ok("cuCtxSetCurrent", driver.context)
        waits[wait]()
        seen.append(done.is_set())

    thread = threading.Thread(target=waiter)
    thread.start()
    driver.advance(MILLISECOND - 1)
    thread.join(0.1)
    done.set()
    driver.advance(1)
    thread.join(PATIENCE)
    return seen == [True]


@pytest.mark.parametrize("wait", ["stream", "event", "context"])
def test_to_synchronise_is_to_wait_for_the_clock(run: Process, wait: str) -> None:
    assert run(synchronised, wait)


def work(driver: Driver, kernel: bytes) -> tuple[c_void_p, c_void_p]:
    stream = driver.new("cuStreamCreate", 0)
    start = driver.event(stream)
    assert driver.launch(driver.function(kernel), stream) == 0
    return start, driver.event(stream)


def only_work(driver: Driver) -> None:
    work(driver, b"deep")


def work_behind(driver: Driver) -> float:
    start, end = work(driver, b"k_1000000")
    driver.advance(10 * MILLISECOND)
    return driver.elapsed(start, end)


@pytest.fixture
def two(built: Path, tmp_path: Path) -> Iterator[tuple[Process, Process]]:
    folder = make_node(tmp_path)
    with process(built, folder) as one, process(built, folder) as other:
        yield one, other


def test_two_processes_share_the_timeline(two: tuple[Process, Process]) -> None:
    one, other = two
    one.leave(only_work)
    assert other(work_behind) == 5.0


def work_and_wait(driver: Driver) -> float:
    start, end = work(driver, b"deep")
    driver.ok("cuCtxSynchronize")
    return driver.elapsed(start, end)


def test_another_process_can_move_the_clock(two: tuple[Process, Process]) -> None:
    one, other = two
    waiting = one.submit(work_and_wait)
    while not waiting.done():
        other(Driver.advance, MILLISECOND)
    assert waiting.result() >= 4.0


def on_real_clock(driver: Driver) -> float:
    start, end = work(driver, b"k_1000000")
    driver.ok("cuEventSynchronize", end)
    return driver.elapsed(start, end)


def test_on_the_real_clock_work_takes_its_time_too(built: Path, tmp_path: Path) -> None:
    with process(built, make_node(tmp_path), FAKEGPU_CLOCK="real") as run:
        assert run(on_real_clock) >= 1.0


def host_function(driver: Driver) -> list[str]:
    order: list[str] = []
    stream = driver.new("cuStreamCreate", 0)
    note = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: order.append("host function"))
    driver.launch(driver.function(b"k_1000000"), stream)
    driver.ok("cuLaunchHostFunc", stream, note, None)
    order.append("enqueued")
    driver.advance(MILLISECOND)
    driver.ok("cuStreamSynchronize", stream)
    order.append("synchronised")
    return order


def test_a_host_function_runs_when_the_work_before_it_is_done(run: Process) -> None:
    assert run(host_function) == ["enqueued", "host function", "synchronised"]


def events_without_time(driver: Driver) -> list[int]:
    untimed, unused = driver.new("cuEventCreate", 2), driver.new("cuEventCreate", 0)
    driver.ok("cuEventRecord", untimed, None)
    recorded = driver.event()
    return [
        driver.call("cuEventElapsedTime", byref(c_float()), untimed, recorded),
        driver.call("cuEventElapsedTime", byref(c_float()), unused, recorded),
        driver.call("cuEventQuery", unused),
    ]


def test_only_recorded_events_with_timing_measure(run: Process) -> None:
    assert run(events_without_time) == [INVALID_HANDLE, INVALID_HANDLE, 0]


def destroyed_handles(driver: Driver) -> list[int]:
    stream, event = driver.new("cuStreamCreate", 0), driver.new("cuEventCreate", 0)
    driver.ok("cuStreamDestroy_v2", stream)
    driver.ok("cuEventDestroy_v2", event)
    return [
        driver.call("cuStreamSynchronize", stream),
        driver.call("cuStreamDestroy_v2", stream),
        driver.call("cuEventQuery", event),
    ]


def test_destroyed_streams_and_events_are_refused(run: Process) -> None:
    assert run(destroyed_handles) == [INVALID_HANDLE] * 3


def stream_costs(driver: Driver) -> dict[str, int]:
    before = driver.used()
    streams: list[c_void_p] = []
    costs = {}
    for count in (1, 2, 8, 32, 128, 512):
        streams += [driver.new("cuStreamCreate", 1) for _ in range(count - len(streams))]
        costs[str(count)] = (driver.used() - before) // MIB
    for stream in streams:
        driver.ok("cuStreamDestroy_v2", stream)
    costs["destroyed"] = (driver.used() - before) // MIB
    streams = [driver.new("cuStreamCreate", 1) for _ in range(512)]
    costs["512 again"] = (driver.used() - before) // MIB
    streams += [driver.new("cuStreamCreate", 1) for _ in range(4)]
    costs["516"] = (driver.used() - before) // MIB
    return costs


def test_streams_cost_memory_that_only_streams_have_again(run: Process) -> None:
    measured = {"1": 0, "2": 2, "8": 4, "32": 16, "128": 70, "512": 280}
    assert run(stream_costs) == measured | {"destroyed": 280, "512 again": 280, "516": 282}


# ---- modules and kernels ----


def module_costs(driver: Driver, way: str) -> list[int]:
    before = driver.used()
    module = driver.new("cuModuleLoadData", PTX)
    loaded = driver.used() - before
    function = driver.function(b"plain", module)
    if way == "launch":
        assert driver.launch(function) == 0
    else:
        driver.ok("cuFuncLoad", function)
    used = driver.used() - before
    driver.ok("cuModuleUnload", module)
    return [loaded, used, driver.used() - before]


@pytest.mark.parametrize("way", ["launch", "load"])
def test_code_is_loaded_when_it_is_used_and_goes_with_its_module(run: Process, way: str) -> None:
    assert run(module_costs, way) == [0, 3 * MIB, 0]


def test_eager_loading_takes_the_memory_at_once(built: Path, tmp_path: Path) -> None:
    with process(built, make_node(tmp_path), CUDA_MODULE_LOADING="EAGER") as run:
        assert run(module_costs, "launch") == [3 * MIB, 3 * MIB, 0]


def function_facts(driver: Driver) -> dict[str, object]:
    module, value, name = driver.new("cuModuleLoadData", PTX), c_int(), c_char_p()
    address, size = c_uint64(), c_size_t()
    deep = driver.function(b"deep", module)
    driver.ok("cuFuncGetAttribute", byref(value), 3, deep)
    driver.ok("cuFuncGetName", byref(name), deep)
    driver.ok("cuModuleGetGlobal_v2", byref(address), byref(size), module, b"table")
    return {
        "local": value.value,
        "name": name.value,
        "table": size.value,
        "missing": driver.call("cuModuleGetFunction", byref(c_void_p()), module, b"missing"),
        "no image": driver.call("cuModuleLoadData", byref(c_void_p()), b"\x7fELF\0"),
    }


def test_functions_and_variables_are_read_from_the_image(run: Process) -> None:
    assert run(function_facts) == {
        "local": 16384,
        "name": b"deep",
        "table": 1000,
        "missing": NOT_FOUND,
        "no image": 200,
    }


def library_kernel(driver: Driver) -> tuple[int, float]:
    library = driver.new("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
    count = c_uint()
    driver.ok("cuLibraryGetKernelCount", byref(count), library)
    kernel = driver.new("cuLibraryGetKernel", library, b"k_1000000")
    start = driver.event()
    assert driver.launch(kernel) == 0
    assert driver.launch(driver.new("cuKernelGetFunction", kernel)) == 0
    end = driver.event()
    driver.advance(2 * MILLISECOND)
    driver.ok("cuLibraryUnload", library)
    return count.value, driver.elapsed(start, end)


def test_a_kernel_of_a_library_is_launched_like_a_function(run: Process) -> None:
    assert run(library_kernel) == (3, 2.0)


def local_memory(driver: Driver) -> list[int]:
    module = driver.new("cuModuleLoadData", PTX)
    assert driver.launch(driver.function(b"plain", module)) == 0
    before, amounts = driver.used(), []
    for _ in range(2):
        assert driver.launch(driver.function(b"deep", module)) == 0
        amounts.append(driver.used() - before)
    return amounts


def test_local_memory_is_taken_at_the_first_launch_for_all_threads(run: Process) -> None:
    assert run(local_memory) == [DEEP, DEEP]


def stack_limits(driver: Driver) -> list[tuple[int, int]]:
    module, limit = driver.new("cuModuleLoadData", PTX), c_size_t()
    plain, deep = driver.function(b"plain", module), driver.function(b"deep", module)
    assert driver.launch(plain) == 0
    before, seen = driver.used(), []
    steps: list[Callable[[], int]] = [
        partial(driver.launch, deep),
        partial(driver.launch, plain),
        partial(driver.call, "cuCtxSetLimit", 0, c_size_t(2048)),
        partial(driver.launch, deep),
        partial(driver.call, "cuCtxSetLimit", 0, c_size_t(1024)),
    ]
    for step in steps:
        assert step() == 0
        driver.ok("cuCtxGetLimit", byref(limit), 0)
        seen.append((limit.value, driver.used() - before))
    return seen


def test_a_kernel_with_local_memory_raises_the_stack_limit(run: Process) -> None:
    high = (16384, DEEP)
    assert run(stack_limits) == [high, high, (2048, 264 * MIB), high, (1024, 0)]


def no_room_for_local_memory(driver: Driver) -> tuple[int, int]:
    module = driver.new("cuModuleLoadData", PTX)
    free, total = c_size_t(), c_size_t()
    driver.ok("cuMemGetInfo_v2", byref(free), byref(total))
    driver.ok("cuMemAlloc_v2", byref(c_uint64()), c_size_t(free.value - DEEP))
    refused = driver.launch(driver.function(b"deep", module))
    return refused, driver.launch(driver.function(b"plain", module))


def test_a_kernel_whose_local_memory_does_not_fit_is_refused(run: Process) -> None:
    assert run(no_room_for_local_memory) == (OUT_OF_MEMORY, 0)
