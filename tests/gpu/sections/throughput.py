"""Training and decoding with a memory limit beside the same without, in one stretch of time.

Two native processes and two of ours stay alive and work one after the other in short turns, in the
order native, ours, ours, native and back: clocks and the machine's moods fall on both. How far the
two native ones differ says what the comparison can tell.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from tests.gpu.bench import NOTHING, Bench
from tests.gpu.workers import Worker

SECTION = "throughput"
ROUNDS = 24
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
    first, ours_first, ours_second, second = rates(crew, what)
    turns = range(ROUNDS)
    ratio = statistics.median(
        (ours_first[turn] + ours_second[turn]) / (first[turn] + second[turn]) for turn in turns
    )
    apart = abs(1 - statistics.median(first[turn] / second[turn] for turn in turns))
    native = statistics.median(first + second)
    ours = statistics.median(ours_first + ours_second)
    shown = f"{native:.1f} {UNITS[what]} (two processes {apart:.1%} apart)"
    mine = f"{ours:.1f} {UNITS[what]}, {ratio:.2%} of native"
    lost = 1 - ratio
    if ALLOWED < lost <= apart:
        bench.note(SECTION, what, (shown, mine), "99 %", "not resolved: native differs as much")
    else:
        bad = f"{lost:.1%} lost" if lost > ALLOWED else ""
        bench.add(SECTION, what, (shown, mine), "99 %", bad)


def both(bench: Bench) -> None:
    bench.quiet()
    with ExitStack() as stack:
        one = stack.enter_context(bench.container())
        other = stack.enter_context(bench.container())
        crew = []
        for env in ({}, one.env, other.env, {}):
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
