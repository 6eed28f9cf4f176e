"""Several processes in a container: filling at once, killed in the middle."""

from __future__ import annotations

import random
import tempfile
import time

from tests.gpu.bench import BEYOND, LIMIT, MARGIN, Bench, mib
from tests.gpu.driver import MIB, OUT_OF_MEMORY, CudaError
from tests.gpu.workers import Worker, WorkerError

SECTION = "processes"
KILLS = 50
SIBLINGS = 4
HELD = 600 * MIB  # by one of them: four contexts and this are more than the limit


def four_at_once(bench: Bench) -> None:
    shown = []
    bad = ""
    for ours in (False, True):
        with bench.side(ours=ours, workers=SIBLINGS) as crew:
            for worker in crew:
                worker.post("start")
            for worker in crew:
                worker.answer("start")
            most = BEYOND if ours else (LIMIT - SIBLINGS * bench.context) // SIBLINGS
            for worker in crew:
                worker.post("fill", "linear", 2 * MIB, most=most)
            found = [worker.answer("fill", 60) for worker in crew]
            peaks = bench.sampler.rest()
        got = " + ".join(mib(one["bytes"]) for one in found)
        codes = {one["code"] for one in found}
        shown.append(f"{mib(peaks['sum'])} MiB at most, {got} usable, errors {sorted(codes)}")
        if ours:
            total = sum(one["bytes"] for one in found)
            least = LIMIT - SIBLINGS * bench.context - MARGIN
            wrong = []
            if peaks["sum"] > LIMIT:
                wrong.append(f"{(peaks['sum'] - LIMIT) / MIB:.1f} MiB over")
            if codes != {OUT_OF_MEMORY}:
                wrong.append(f"errors {sorted(codes)}")
            if total < least:
                wrong.append(f"{mib(total)} MiB usable, {mib(least)} expected")
            if not all(one["bytes"] for one in found):
                wrong.append("one got nothing")
            bad = ", ".join(wrong)
    sides = (shown[0], shown[1])
    bench.add(SECTION, "four filling at once", sides, f"{mib(LIMIT)} MiB", bad)


def judge_itself(bench: Bench) -> bool:
    """Measure whether the sum over processes can be too high: four hand the same 64 MiB round.

    One gives them back before the next takes them, so the sum is known at every moment. Returns
    True where the judge saw more than there was, and never so in two samples in a row.
    """
    size = 64 * MIB
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(8))
        file.flush()
        with bench.side(ours=False, workers=SIBLINGS) as crew:
            for worker in crew:
                worker.ask("start")
            for place, worker in enumerate(crew):
                worker.post("rotate", file.name, place, SIBLINGS, size, 2.0)
            turns = sum(worker.answer("rotate") for worker in crew)
            peaks = bench.sampler.rest()
    there = SIBLINGS * bench.context + size
    shown = (
        f"{mib(there)} MiB there, read {mib(peaks['sum'])} at most, {mib(peaks['lasting'])} in two"
        f" samples in a row ({turns} turns)"
    )
    why = "shown only: what the judge of the next case can tell"
    bench.note(SECTION, "64 MiB handed round by four", (shown, ""), "", why)
    return bool(peaks["sum"] > there >= peaks["lasting"])


def churning(env: dict[str, str], seed: int) -> Worker:
    worker = Worker(env)
    worker.post("churn", seed, HELD)
    return worker


def restarted(worker: Worker, began: float, wanted: int) -> float:
    """Make a context and take the whole budget, again while it is refused; return seconds."""
    while True:
        try:
            worker.ask("start")
            break
        except CudaError as error:
            if error.code != OUT_OF_MEMORY or time.perf_counter() - began > 10:
                raise
            time.sleep(0.002)
    found = worker.ask("fill_within", 2 * MIB, wanted, 10.0)
    if found["seconds"] < 0:
        raise TimeoutError(f"only {mib(found['bytes'])} of {mib(wanted)} MiB after 10 s")
    return time.perf_counter() - began


def kills(bench: Bench) -> None:
    """Kill a sibling that allocates and frees, 50 times; the oldest each time, so it is at work."""
    wanted = LIMIT - bench.context - MARGIN
    judge = "lasting" if judge_itself(bench) else "sum"
    with bench.side(ours=False) as (fresh,):
        fresh.ask("init")
        native = restarted(fresh, time.perf_counter(), wanted)
    bench.quiet()
    crew: list[Worker] = []
    with bench.container() as container:
        bench.sampler.reset()
        try:
            crew = [churning(container.env, seed) for seed in range(SIBLINGS)]
            rng = random.Random(7)
            for count in range(KILLS):
                victim = crew[0]
                victim.wait_for_word(20)
                time.sleep(rng.uniform(0, 0.05))
                died = victim.process.poll() is not None
                victim.kill()
                if died:
                    raise WorkerError(f"number {count} died by itself")
                crew = [*crew[1:], churning(container.env, SIBLINGS + count)]
            for worker in crew:
                worker.wait_for_word(20)
            fresh = Worker(container.env)
            fresh.ask("init")
            for worker in crew:
                worker.process.kill()
            began = time.perf_counter()
            seconds = restarted(fresh, began, wanted)
            peaks = bench.sampler.rest()
            crew.append(fresh)
        finally:
            for worker in crew:
                worker.kill()
    wrong = []
    if seconds > 1:
        wrong.append(f"{seconds:.2f} s")
    if peaks[judge] > LIMIT:
        wrong.append(f"{(peaks[judge] - LIMIT) / MIB:.1f} MiB over")
    took = (
        f"{seconds * 1e3:.0f} ms to context + {mib(wanted)} MiB; {mib(peaks['lasting'])} MiB at"
        f" most in two samples in a row, {mib(peaks['sum'])} in one"
        f" ({' + '.join(mib(one) for one in peaks['at_peak'])}), card +{mib(peaks['device'])} MiB"
    )
    plain = f"{native * 1e3:.0f} ms for context + {mib(wanted)} MiB, nobody killed"
    case = f"{KILLS + SIBLINGS} x kill -9, then the full budget"
    bench.add(SECTION, case, (plain, took), "1 s", ", ".join(wrong))


def run(bench: Bench) -> None:
    bench.guard(SECTION, "four filling at once", lambda: four_at_once(bench))
    bench.guard(SECTION, f"{KILLS} x kill -9", lambda: kills(bench))
