"""The memory limit, one row for every way to get memory: 4096 MiB, one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.gpu.bench import BEYOND, LIMIT, MARGIN, Bench, mib
from tests.gpu.driver import MIB, OUT_OF_MEMORY, STACK_SIZE, CudaError
from tests.gpu.workers import Worker

SECTION = "memory"
FILLS = (  # name, how, bytes of one piece, bytes of the pieces that top it up (0: none)
    ("cuMemAlloc 64 MiB, then 2 MiB", "linear", 64 * MIB, 2 * MIB),
    ("cuMemAlloc 2 MiB", "linear", 2 * MIB, 0),
    ("cuMemAlloc 64 KiB", "linear", 64 * 1024, 0),
    ("pitch", "pitch", 7 * MIB, 0),
    ("async, default pool", "async", 2 * MIB, 0),
    ("async, own pool", "pool", 3 * MIB, 0),
    ("VMM", "vmm", 6 * MIB, 0),
    ("VMM created, mapped, released", "vmm_mapped", 6 * MIB, 0),
    ("2D arrays", "array2d", 9 * MIB, 0),
    ("3D arrays", "array3d", 9 * MIB, 0),
    ("small arrays", "array2d", 256 * 1024, 0),
    ("mipmaps", "mipmap", 9 * MIB, 0),
    ("graph memory", "graph", 32 * MIB, 0),
)


@dataclasses.dataclass
class Outcome:
    code: int  # of the refusal; 0 = nothing was refused
    had: int  # bytes that were asked for and given
    peak: int  # highest sum the driver counted
    end: int  # what it counted at the end
    device: int  # highest growth of the card's own count
    more: str = ""
    managed: int = 0  # of `had`, what no process list shows

    def text(self) -> str:
        error = f"error {self.code}" if self.code else "no error"
        return f"{mib(self.peak)} MiB at most, {mib(self.had)} usable, {error}{self.more}"


Action = Callable[[Worker, int], dict[str, Any]]


def outcome(bench: Bench, action: Action, *, ours: bool) -> Outcome:
    with bench.side(ours=ours) as (worker,):
        worker.ask("start")
        found = action(worker, BEYOND if ours else LIMIT)
        peaks = bench.sampler.rest()
    return Outcome(
        code=found["code"],
        had=found["bytes"],
        peak=int(peaks["sum"]),
        end=int(peaks["last"]),
        device=int(peaks["device"]),
        more=found.get("more", ""),
    )


def judge(bench: Bench, ours: Outcome, *, full: bool = True) -> str:
    """Return what is wrong with an outcome under the limit; empty if nothing."""
    wrong = []
    if ours.peak > LIMIT:
        wrong.append(f"{(ours.peak - LIMIT) / MIB:.1f} MiB over")
    if ours.code != OUT_OF_MEMORY:
        wrong.append(f"error {ours.code} instead of 2")
    usable = max(ours.had, ours.end - bench.context)
    least = LIMIT - bench.context - MARGIN
    if full and usable < least:
        wrong.append(f"{mib(usable)} MiB usable, {mib(least)} expected")
    return ", ".join(wrong)


def compare(bench: Bench, case: str, action: Action, *, full: bool = True) -> None:
    def both() -> None:
        native = outcome(bench, action, ours=False)
        ours = outcome(bench, action, ours=True)
        bad = judge(bench, ours, full=full)
        bench.add(SECTION, case, (native.text(), ours.text()), f"{mib(LIMIT)} MiB", bad)

    bench.guard(SECTION, case, both)


def measure_context(bench: Bench) -> None:
    """Measure first what a context costs: the policy states it, what is left is usable."""
    with bench.side(ours=False) as (worker,):
        worker.ask("start")
        bench.context = int(bench.sampler.rest()["last"])
    with bench.side(ours=True) as (worker,):
        worker.ask("start")
        ours = int(bench.sampler.rest()["last"])
        free, total = worker.ask("info")
    bad = "" if total == LIMIT and ours == bench.context else f"total {mib(total)} MiB"
    shown = f"{mib(ours)} MiB, cuMemGetInfo free {mib(free)} of {mib(total)}"
    sides = (f"{mib(bench.context)} MiB", shown)
    bench.add(SECTION, "context", sides, f"{mib(LIMIT)} MiB", bad)


def fill(api: str, size: int, top_up: int) -> Action:
    def action(worker: Worker, most: int) -> dict[str, Any]:
        found: dict[str, Any] = worker.ask("fill", api, size, most=most, timeout=60)
        if top_up and found["code"]:
            more = worker.ask("fill", "linear", top_up, most=BEYOND, timeout=60)
            found["bytes"] += more["bytes"]
        return found

    return action


def refill(worker: Worker, most: int) -> dict[str, Any]:
    """Fill, give all back, and fill again: nothing may have been lost."""
    worker.ask("fill", "linear", 2 * MIB, most=most)
    worker.ask("empty")
    worker.ask("fill", "vmm", 2 * MIB, most=most)
    worker.ask("empty")
    worker.ask("fill", "async", 2 * MIB, most=most)
    worker.ask("empty")
    found: dict[str, Any] = worker.ask("fill", "linear", 2 * MIB, most=most)
    return found


def mix(seed: int) -> Action:
    def action(worker: Worker, most: int) -> dict[str, Any]:
        found: dict[str, Any] = worker.ask("mix", seed, 6000, most, timeout=60)
        return found

    return action


def then_fill(worker: Worker, most: int, start: dict[str, Any], done: str) -> dict[str, Any]:
    """After something that takes memory by itself, fill what is left."""
    found: dict[str, Any] = worker.ask("fill", "linear", 2 * MIB, most=most)
    found["more"] = f"; {done}"
    found["code"] = found["code"] or start.get("code", 0)
    return found


def attempt(worker: Worker, action: str, *arguments: Any) -> int:
    try:
        worker.ask(action, *arguments)
    except CudaError as error:
        return error.code
    return 0


def local_kernel(size: int) -> Action:
    def action(worker: Worker, most: int) -> dict[str, Any]:
        worker.ask("prepare_scratch")
        code = attempt(worker, "load", "k", "local", size) or attempt(worker, "run", "k")
        done = f"kernel refused with {code}" if code else "kernel ran"
        return then_fill(worker, most, {"code": code}, done)

    return action


def local_kernel_when_full(worker: Worker, most: int) -> dict[str, Any]:
    worker.ask("prepare_scratch")
    found: dict[str, Any] = worker.ask("fill", "linear", 2 * MIB, most=most)
    code = attempt(worker, "load", "k", "local", 4096) or attempt(worker, "run", "k")
    found["more"] = f"; kernel of 4 KiB: {code}"
    found["code"] = code if found["code"] == OUT_OF_MEMORY else found["code"]
    return found


def stack(worker: Worker, most: int) -> dict[str, Any]:
    code = attempt(worker, "set_limit", STACK_SIZE, 16384)
    if not code:
        worker.ask("prepare_scratch")
        attempt(worker, "load", "k", "empty")
        code = attempt(worker, "run", "k")
    return then_fill(worker, most, {"code": code}, f"limit: {code}")


def contexts(worker: Worker, most: int) -> dict[str, Any]:
    made: dict[str, Any] = worker.ask("fill", "context", 1, count=9 if most > LIMIT else 7)
    return then_fill(worker, most, made, f"{made['count']} contexts more")


def streams(worker: Worker, most: int) -> dict[str, Any]:
    made: dict[str, Any] = worker.ask("fill", "stream", 1, count=512)
    return then_fill(worker, most, made, f"{made['count']} streams")


def streams_when_full(worker: Worker, most: int) -> dict[str, Any]:
    found: dict[str, Any] = worker.ask("fill", "linear", 2 * MIB, most=most)
    made = worker.ask("fill", "stream", 1, count=512)
    found["more"] = f"; then {made['count']} streams, error {made['code']}"
    if made["code"] not in {0, OUT_OF_MEMORY}:
        found["code"] = made["code"]
    return found


def module_growth(bench: Bench) -> None:
    """Load a module with 96 MiB of its own when 20 MiB are left: the next is refused."""

    def action(worker: Worker, most: int) -> dict[str, Any]:
        filled = worker.ask("fill", "linear", 2 * MIB, most=min(most, LIMIT - bench.context))
        for _ in range(10):
            worker.ask("undo_last")
        load = attempt(worker, "load", "m", "static", 96 * MIB) or attempt(worker, "run", "m")
        after = attempt(worker, "alloc", 2 * MIB)
        free = worker.ask("info")[0]
        told = f"; module {load}, next allocation {after}, free then {mib(free)} MiB"
        return {"bytes": filled["bytes"], "code": after, "more": told}

    native = outcome(bench, action, ours=False)
    ours = outcome(bench, action, ours=True)
    wrong = []
    if ours.code != OUT_OF_MEMORY:
        wrong.append(f"the allocation after it returned {ours.code}")
    if ours.peak > LIMIT + 96 * MIB:
        wrong.append("more than one step over")
    limit = f"{mib(LIMIT)} MiB + one step"
    sides = (native.text(), ours.text())
    bench.add(SECTION, "module growth", sides, limit, ", ".join(wrong))


def run(bench: Bench) -> None:
    bench.guard(SECTION, "context", lambda: measure_context(bench))
    for case, api, size, top_up in FILLS:
        compare(bench, case, fill(api, size, top_up))
    compare(bench, "fill, free all, other ways, fill", refill)
    for seed in (1, 2, 3):
        compare(bench, f"random mix, seed {seed}", mix(seed), full=False)
    compare(bench, "kernel, 4 KiB local memory", local_kernel(4096))
    compare(bench, "kernel, 16 KiB local memory", local_kernel(16384))
    compare(bench, "kernel, 4 KiB local, when full", local_kernel_when_full)
    compare(bench, "stack limit 16 KiB", stack)
    compare(bench, "second contexts", contexts)
    compare(bench, "512 streams", streams)
    compare(bench, "512 streams when full", streams_when_full)
    bench.guard(SECTION, "module growth", lambda: module_growth(bench))
