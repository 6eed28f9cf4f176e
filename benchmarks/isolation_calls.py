"""Cost of libvgpu in single driver calls: loops in C, in fresh processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.isolation_sides import Both, Side, Sides, compare, compare_all
from tests.gpu.workers import Worker

MIB = 1 << 20
LIVE = (0, 1000, 10_000, 100_000)
LAUNCHES = ["cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch"]
#: How often a loop is run; its turns are enough to last milliseconds.
_RUNS = 5
#: How often all four processes of a comparison are started.
_ROUNDS = 2


@contextlib.contextmanager
def _started(side: Side) -> Iterator[Worker]:
    with Worker(side.environment) as worker:
        worker.ask("start")
        yield worker


def _runs(worker: Worker, loops: Path, *question: object) -> list[float]:
    worker.ask("times", str(loops), *question)  # the first turns are slower everywhere
    return [float(worker.ask("times", str(loops), *question)) for _ in range(_RUNS)]


def live(sides: Sides, loops: Path, size: int, counts: Sequence[int]) -> dict[int, Both]:
    """Give ns of cuMemAlloc + cuMemFree by how many other allocations are alive."""

    def measure(side: Side) -> dict[str, list[float]]:
        with _started(side) as worker:
            found = worker.ask("live_times", str(loops), size, counts, timeout=60)
        return {count: [ns] for count, ns in found.items()}

    return {int(count): both for count, both in compare_all(sides, measure).items()}


def pair(sides: Sides, loops: Path, size: int, turns: int, *, keep: int = 0) -> Both:
    """Give ns of cuMemAlloc + cuMemFree; `keep` bytes are allocated before and stay."""

    def measure(side: Side) -> list[float]:
        with _started(side) as worker:
            if keep:
                worker.ask("alloc", keep)
            return _runs(worker, loops, "alloc_free", size, turns)

    return compare(sides, measure, _ROUNDS)


def asynchronous(sides: Sides, loops: Path, size: int, turns: int) -> Both:
    """Give ns of cuMemAllocAsync + cuMemFreeAsync from a pool that keeps its memory."""

    def measure(side: Side) -> list[float]:
        with _started(side) as worker:
            runs = [worker.ask("pool_times", str(loops), size, turns) for _ in range(_RUNS)]
        return [run["pair"] for run in runs]

    return compare(sides, measure, _ROUNDS)


def launch(sides: Sides, loops: Path, turns: int) -> Both:
    def measure(side: Side) -> list[float]:
        with _started(side) as worker:
            return [float(ns) for ns in worker.ask("launch_times", str(loops), turns)]

    return compare(sides, measure, _ROUNDS)


def info(sides: Sides, loops: Path, turns: int) -> Both:
    def measure(side: Side) -> list[float]:
        with _started(side) as worker:
            return _runs(worker, loops, "info", turns)

    return compare(sides, measure)


def moved_launches(sides: Sides) -> list[str]:
    """Name the launch functions that lead elsewhere with libvgpu than without."""
    found = []
    for ours in (False, True):
        with _started(sides.side(ours=ours)) as worker:
            found.append(worker.ask("addresses", LAUNCHES))
    return [name for name in LAUNCHES if found[0][name] != found[1][name]]


def crowd(sides: Sides, loops: Path, processes: int, size: int, turns: int) -> Both:
    """Let processes of one container allocate and free at once; give calls a second of all."""
    return compare(sides, lambda side: rates(side, loops, processes, size, turns))


def rates(side: Side, loops: Path, processes: int, size: int, turns: int) -> list[float]:
    """Count calls by the time from the first question to the last answer.

    Not by what each process says: one that has its turns behind it before the next begins would
    count as if it had run beside it. For the same reason turns must last much longer than asking.
    """
    found = []
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_started(side)) for _ in range(processes)]
        for _ in range(_RUNS):
            begin = time.perf_counter()
            for worker in workers:
                worker.post("times", str(loops), "alloc_free", size, turns)
            for worker in workers:
                worker.answer("times", 60)
            found.append(2 * turns * processes / (time.perf_counter() - begin))
    return found
