"""PyTorch under the limit: out of memory, its views, sharing, late code."""

from __future__ import annotations

from typing import Any

from tests.gpu.bench import LIMIT, NOTHING, Bench, mib
from tests.gpu.driver import MIB

SECTION = "PyTorch"
ALLOCATORS = {
    "default": "",
    "cudaMallocAsync": "backend:cudaMallocAsync",
    "expandable segments": "expandable_segments:True",
}
SLOW = 120.0  # seconds that importing torch may take on a busy machine
STEP = 96 * MIB  # what a module may take before it is seen
SHARED = 512


def settings(allocator: str) -> dict[str, str]:
    """Return the environment for an allocator; the variable's name changed with PyTorch 2.9."""
    value = ALLOCATORS[allocator]
    return {"PYTORCH_ALLOC_CONF": value, "PYTORCH_CUDA_ALLOC_CONF": value} if value else {}


def out_of_memory(bench: Bench, allocator: str) -> None:
    """Run out, empty the cache, and take most of the budget in one piece.

    Without a limit torch's own fraction of the card stands in, so that the card is not filled.
    """
    shown = []
    total = bench.nvml.memory()[0]
    wrong: list[str] = []
    for ours in (False, True):
        env = settings(allocator)
        with bench.side(ours=ours, torch_python=bench.torch_python, env=env) as (worker,):
            backend = worker.ask("start", None if ours else LIMIT / total, timeout=SLOW)
            filled = worker.ask("fill", 50, timeout=60)
            retried = worker.ask("retry", 2560)
            views = worker.ask("views")
            peaks = bench.sampler.rest()
        told = ", ".join(f"{name} {used}/{whole}" for name, (used, whole) in views.items())
        shown.append(
            f"{filled['error']} at {mib(filled['bytes'])} MiB ({mib(peaks['sum'])} at most), retry "
            f"{'works' if retried else 'FAILS'}; used/total MiB: {told}"
        )
        if ours:
            wrong += judge(filled, peaks["sum"], views, retried=retried)
            if (backend == "cudaMallocAsync") != (allocator == "cudaMallocAsync"):
                wrong.append(f"torch uses {backend}")
    sides = (shown[0], shown[1])
    bench.add(SECTION, allocator, sides, f"{mib(LIMIT)} MiB", ", ".join(wrong))


def judge(filled: dict[str, Any], peak: float, views: Any, *, retried: bool) -> list[str]:
    wrong = []
    if filled["error"] != "OutOfMemoryError":
        wrong.append(f"{filled['error']} instead of OutOfMemoryError")
    if peak > LIMIT:
        wrong.append(f"{(peak - LIMIT) / MIB:.1f} MiB over")
    if not retried:
        wrong.append("wrong data after the retry")
    if {whole for _used, whole in views.values()} != {LIMIT // MIB}:
        wrong.append("totals differ")
    used = [one for one, _whole in views.values()]
    if max(used) - min(used) > 1:  # whole MiB, rounded by three programs
        wrong.append("used memory differs")
    return wrong


def late_code(bench: Bench) -> None:
    """Use cuSOLVER for the first time when the budget is all but used up."""
    shown = []
    bad = ""
    total = bench.nvml.memory()[0]
    for ours in (False, True):
        with bench.side(ours=ours, torch_python=bench.torch_python) as (worker,):
            worker.ask("start", None if ours else LIMIT / total, timeout=SLOW)
            worker.ask("fill", 20, timeout=60)
            before = bench.sampler.read()["last"]
            solved = worker.ask("solve", timeout=60)
            after = worker.ask("one_more", 24)
            peaks = bench.sampler.rest()
        grew = peaks["sum"] - before
        shown.append(f"cuSOLVER {solved}, +{mib(grew)} MiB; next 24 MiB: {after}")
        if ours:
            wrong = []
            if after != "OutOfMemoryError":
                wrong.append(f"the next allocation: {after}")
            if peaks["sum"] > LIMIT + STEP:
                wrong.append(f"{(peaks['sum'] - LIMIT) / MIB:.0f} MiB over")
            bad = ", ".join(wrong)
    limit = f"{mib(LIMIT)} MiB + one step"
    bench.add(SECTION, "cuSOLVER first used when full", (shown[0], shown[1]), limit, bad)


def tensors_shared(bench: Bench) -> None:
    shown = []
    bad = ""
    for ours in (False, True):
        with bench.side(ours=ours, workers=2, torch_python=bench.torch_python) as (maker, taker):
            for worker in (maker, taker):
                worker.post("start")
            for worker in (maker, taker):
                worker.answer("start", SLOW)
            shared = maker.ask("share", SHARED)
            before = taker.ask("used")
            taker.ask("take", shared)
            grew = taker.ask("used") - before
            data = taker.ask("reads") == 42
            bench.sampler.rest()
        shown.append(f"data {'shared' if data else 'WRONG'}, taker adds {mib(grew)} MiB")
        if ours and (not data or grew > 64 * MIB):
            bad = "not counted once" if data else "wrong data"
    case = f"tensor of {SHARED} MiB in two processes"
    bench.add(SECTION, case, (shown[0], shown[1]), "counted once", bad)


def run(bench: Bench) -> None:
    if bench.torch_python is None:
        why = "skipped: no Python with torch (set GPU_PYTHON)"
        bench.note(SECTION, "all", NOTHING, "", why)
        return
    for allocator in ALLOCATORS:
        bench.guard(
            SECTION,
            allocator,
            lambda allocator=allocator: out_of_memory(bench, allocator),  # type: ignore[misc]
        )
    bench.guard(SECTION, "cuSOLVER first used when full", lambda: late_code(bench))
    bench.guard(SECTION, "tensor in two processes", lambda: tensors_shared(bench))
