"""Cost of a call with the library in front of the driver, and without."""

from __future__ import annotations

import statistics
import time
from typing import Any

from tests.gpu.bench import NOTHING, Bench
from tests.gpu.driver import MIB
from tests.gpu.workers import Worker

SECTION = "cost"
LAUNCHES = ["cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch"]
LIVE = [0, 1000, 10_000, 100_000]
ORDER = (False, True, True, False)  # native, ours, ours, native: a drift falls on both


def pointers(bench: Bench) -> None:
    """Compare where launches lead to: the same place in the driver's file, so nothing is added."""
    found = []
    for ours in (False, True):
        with bench.side(ours=ours) as (worker,):
            worker.ask("start")
            found.append(worker.ask("addresses", LAUNCHES))
            bench.sampler.rest()
    native, ours_found = found
    moved = [name for name in LAUNCHES if native[name] != ours_found[name]]
    place = native[LAUNCHES[0]][0]
    mine = ours_found[LAUNCHES[0]][0]
    wrong = f"not the driver's own: {', '.join(moved)}" if moved else ""
    bench.add(SECTION, "launch pointers", (place, mine), "the driver's own", wrong)


def both(bench: Bench, question: str, *arguments: Any) -> tuple[list[Any], list[Any]]:
    """Ask fresh processes in the order native, ours, ours, native; return the answers of each."""
    answers: tuple[list[Any], list[Any]] = ([], [])
    for ours in ORDER:
        with bench.side(ours=ours) as (worker,):
            bench.sampler.rest()
            worker.ask("start")
            answers[ours].append(worker.ask(question, str(bench.loops), *arguments, timeout=60))
    return answers


def launches(bench: Bench) -> None:
    native, ours = (min(min(run) for run in side) for side in both(bench, "launch_times", 1000))
    why = "shown only: the pointer is the driver's own"
    sides = (f"{native:.0f} ns", f"{ours:.0f} ns")
    bench.note(SECTION, "cuLaunchKernel, empty", sides, "+0 ns", why)


def live(bench: Bench) -> None:
    sides = both(bench, "live_times", 4096, LIVE)
    native, ours = ({key: min(run[key] for run in side) for key in side[0]} for side in sides)
    growth = ours["100000"] / ours["1000"]
    allowed = 1.25 * max(1.0, native["100000"] / native["1000"])
    shown, mine = (
        " / ".join(f"{side[str(count)]:.0f}" for count in LIVE) + " ns" for side in (native, ours)
    )
    bad = "" if growth <= allowed else f"grows {growth:.2f} times from 1,000 to 100,000"
    case = "cuMemAlloc + cuMemFree 4 KiB at 0 / 1,000 / 10,000 / 100,000 live"
    bench.add(SECTION, case, (shown, mine), "flat", bad)


def pairs(bench: Bench) -> None:
    sides = both(bench, "pool_times", MIB, 50_000)
    native, ours = (min(run["pair"] for run in side) for side in sides)
    ratio = ours / native
    bad = "" if ratio <= 1.15 else f"{ratio:.2f} times native"
    case = "cuMemAllocAsync + cuMemFreeAsync 1 MiB"
    shown = f"{ours:.0f} ns, {ratio:.3f} times"
    bench.add(SECTION, case, (f"{native:.0f} ns", shown), "1.15 times", bad)


def plain(bench: Bench) -> None:
    for size, name in ((65536, "64 KiB"), (2 * MIB, "2 MiB")):
        sides = both(bench, "times", "alloc_free", size, 2000)
        native, ours = (min(side) for side in sides)
        shown = f"{ours:.0f} ns, {ours / native:.2f} times"
        case = f"cuMemAlloc + cuMemFree {name}, nothing else live"
        bench.note(SECTION, case, (f"{native:.0f} ns", shown), "", "shown only")


def init_times(bench: Bench, count: int, *, ours: bool) -> list[tuple[float, float]]:
    """Let `count` processes that are up and waiting call cuInit at once; return milliseconds.

    First with flags that the driver refuses at once: what that takes longer is libvgpu alone. Then
    in earnest: with the driver's own work, whose length differs by more from run to run.
    """
    with bench.container() as container:
        crew = [Worker(container.env if ours else None) for _ in range(count)]
        try:
            for worker in crew:
                worker.ask("ready")
            for worker in crew:
                worker.post("refused_init")
            refused = [worker.answer("refused_init", 60) for worker in crew]
            for worker in crew:
                worker.post("init")
            return list(zip(refused, [worker.answer("init", 60) for worker in crew], strict=True))
        finally:
            for worker in crew:
                worker.process.kill()
            for worker in crew:
                worker.kill()


def init(bench: Bench, count: int, rounds: int) -> None:
    bench.quiet()
    highest: tuple[list[float], list[float]] = ([], [])
    whole: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for ours in ORDER:
            times = init_times(bench, count, ours=ours)
            highest[ours].append(max(time for time, _ in times))
            whole[ours].append(statistics.median(time for _, time in times))
            time.sleep(0.05)
    added = statistics.median(highest[True]) - statistics.median(highest[False])
    wrong = f"{added:.1f} ms more" if added > 5 else ""
    case = f"cuInit, {count} at once" if count > 1 else "cuInit, alone"
    native, shown = (
        f"{statistics.median(all_):.0f} ms ({min(all_):.0f} to {max(all_):.0f})" for all_ in whole
    )
    told = f"{shown}; libvgpu's own part, slowest process: {added:+.2f} ms"
    bench.add(SECTION, case, (native, told), "+5 ms", wrong)


def first_context(bench: Bench) -> None:
    """Time the first context of a process, in which libvgpu also opens NVML and the state."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(4):
        for ours in ORDER:
            with bench.container() as container, Worker(container.env if ours else None) as worker:
                times[ours].append(worker.ask("start", timeout=60))
    native, ours_ms = (statistics.median(side) for side in times)
    shown = f"{ours_ms:.1f} ms ({ours_ms - native:+.1f})"
    bench.note(SECTION, "first context", (f"{native:.1f} ms", shown), "", "shown only")


def run(bench: Bench) -> None:
    bench.guard(SECTION, "launch pointers", lambda: pointers(bench))
    bench.guard(SECTION, "cuInit, alone", lambda: init(bench, 1, 8))
    bench.guard(SECTION, "cuInit, 32 at once", lambda: init(bench, 32, 4))
    bench.guard(SECTION, "first context", lambda: first_context(bench))
    if bench.loops is None:
        bench.note(SECTION, "calls", NOTHING, "", "skipped: no C compiler here")
        return
    bench.guard(SECTION, "cuLaunchKernel", lambda: launches(bench))
    bench.guard(SECTION, "cuMemAlloc + cuMemFree", lambda: plain(bench))
    bench.guard(SECTION, "live allocations", lambda: live(bench))
    bench.guard(SECTION, "cuMemAllocAsync", lambda: pairs(bench))
