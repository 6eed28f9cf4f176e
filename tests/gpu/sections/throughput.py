"""Training and decoding with a memory limit and without, in one run.

Four native processes and four of ours stay alive and work one after the other in short turns, in
the order native, ours, ours, native, native, ... and back: clocks and the machine's moods fall on
both. One process of a program is a few per cent faster than the next, so several are compared; how
far the two halves of the native ones differ says what the comparison can tell.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from tests.gpu.bench import NOTHING, Bench
from tests.gpu.workers import Worker

SECTION = "throughput"
ROUNDS = 14
OURS = (False, True, True, False, False, True, True, False)  # each worker of the crew
TURN = {"train": 0.25, "decode": 0.25}  # seconds
UNITS = {"train": "steps/s", "decode": "tokens/s"}
ALLOWED = 0.01


def rates(crew: list[Worker], what: str) -> list[list[float]]:
    """Return each worker's rates, turn by turn."""
    found: list[list[float]] = [[] for _ in crew]
    for turn in range(ROUNDS):
        order = range(len(crew)) if turn % 2 == 0 else range(len(crew) - 1, -1, -1)
        for index in order:
            found[index].append(crew[index].ask(what, TURN[what]))
    return found


def compare(bench: Bench, crew: list[Worker], what: str) -> None:
    found = rates(crew, what)
    native_rates = [found[index] for index, ours in enumerate(OURS) if not ours]
    ours_rates = [found[index] for index, ours in enumerate(OURS) if ours]
    sums = [sum(turn) for turn in zip(*native_rates, strict=True)]
    ratio = statistics.median(
        sum(turn) / whole for turn, whole in zip(zip(*ours_rates, strict=True), sums, strict=True)
    )
    half = [sum(turn) for turn in zip(*native_rates[::3], strict=True)]
    apart = abs(
        1 - statistics.median(2 * one / whole for one, whole in zip(half, sums, strict=True))
    )
    native = statistics.median(rate for side in native_rates for rate in side)
    ours = statistics.median(rate for side in ours_rates for rate in side)
    shown = f"{native:.1f} {UNITS[what]} (its halves {2 * apart:.1%} apart)"
    mine = f"{ours:.1f} {UNITS[what]}, {ratio:.2%} of native"
    lost = 1 - ratio
    if ALLOWED < lost <= 2 * apart:
        bench.note(SECTION, what, (shown, mine), "99 %", "not resolved: native differs as much")
    else:
        bad = f"{lost:.1%} lost" if lost > ALLOWED else ""
        bench.add(SECTION, what, (shown, mine), "99 %", bad)


def both(bench: Bench) -> None:
    bench.quiet()
    with ExitStack() as stack:
        crew = []
        for ours in OURS:
            env = stack.enter_context(bench.container()).env if ours else {}
            worker = Worker(env, bench.torch_python)
            stack.callback(worker.kill)
            crew.append(worker)
        for worker in crew:
            worker.post("start")
        for worker in crew:
            worker.answer("start", 120)
        for worker in crew:
            worker.ask("prepare", timeout=60)
        for what in TURN:
            bench.guard(SECTION, what, lambda what=what: compare(bench, crew, what))  # type: ignore[misc]


def run(bench: Bench) -> None:
    if bench.torch_python is None:
        why = "skipped: no Python with torch (set GPU_PYTHON)"
        bench.note(SECTION, "all", NOTHING, "", why)
        return
    bench.guard(SECTION, "train, decode", lambda: both(bench))
