"""`make gpu`: libvgpu on a real GPU, every case without it and with it.

Needs the NVIDIA driver and `make native`; a C compiler for the timings and a Python with torch
(GPU_PYTHON, else python3) for its sections; what is missing is named and left out. Give names of
sections to run only those. The exit status says whether every case was as it should be.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.gpu import abi_check, container, report, timing
from tests.gpu.bench import NOTHING, Bench, find_torch_python
from tests.gpu.sections import costs, memory, places, processes, pytorch, sharing, throughput
from tests.gpu.workers import ROOT

SECONDS = 420  # no section is begun after this


def headers(bench: Bench) -> None:
    found = abi_check.differences()
    if any(line.startswith("not checked") for line in found):
        bench.note("headers", "cuda.h, nvml.h", NOTHING, "", found[0])
        return
    case = f"{abi_check.count()} values, sizes and places"
    ours = "the same" if not found else f"{len(found)} differ"
    bench.add("headers", case, ("cuda.h, nvml.h", ours), "equal", "; ".join(found)[:400])


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "headers": lambda bench: bench.guard("headers", "cuda.h, nvml.h", lambda: headers(bench)),
    "memory": memory.run,
    "places": places.run,
    "processes": processes.run,
    "sharing": sharing.run,
    "cost": costs.run,
    "pytorch": pytorch.run,
    "throughput": throughput.run,
}


def main() -> int:
    missing = container.available()
    if missing:
        sys.stderr.write(f"make gpu: {missing}\n")
        return 1
    folder = Path(os.environ.get("OUT") or ROOT / "build" / "gpu")
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder, find_torch_python(), timing.build(folder))
    facts = report.environment(bench)
    sys.stdout.write(f"{facts}\n")
    chosen = sys.argv[1:] or list(SECTIONS)
    if chosen != list(SECTIONS) and "memory" not in chosen:
        bench.guard("memory", "context", lambda: memory.measure_context(bench))
    for name in chosen:
        if time.monotonic() - bench.began > SECONDS:
            bench.note(name, "all", NOTHING, "", "FAILED: not begun, out of time")
        else:
            SECTIONS[name](bench)
        report.write(facts, bench.rows, time.monotonic() - bench.began, folder)
    bench.sampler.close()
    failed = [row for row in bench.rows if row.failed]
    sys.stdout.write(f"{len(bench.rows)} rows, {len(failed)} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
