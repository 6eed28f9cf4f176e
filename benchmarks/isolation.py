"""Cost of libvgpu: a program without it, and in a container with a memory limit.

    python -m benchmarks.isolation [--full]

Two drivers stand behind both sides. The stand-in driver (native/fakegpu) is what the tests use: its
calls take microseconds, also those that libvgpu makes on its own, so what is added there is
mostly the stand-in's. The hollow driver (isolation_hollow.c) answers at once: what is added
there is libvgpu itself. Its native calls take a nanosecond or two, so no ratio is meant to
be small there. What counts on a real card is measured on one: `make gpu`, docs/gpu-results.md.

Baseline of a line is `native`, measured in the same run in the order native, ours, ours, native;
medians, beside live allocations of each process's best of five loops. The limit is far away
where a line does not say otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks import isolation_calls, isolation_sides, isolation_starts
from benchmarks.isolation_calls import LIVE, MIB
from benchmarks.isolation_sides import Both, Sides
from benchmarks.isolation_starts import Before
from tests.native import building
from tests.native.container import CONTEXT

AIM_INIT_MS = 5.0
#: Closer to the limit than what loading code may take at once: libvgpu asks the driver each time.
_NEAR = 64 * MIB
_SIZES = {"64 KiB": 64 << 10, "2 MiB": 2 * MIB}
_US, _MS = 1e3, 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.isolation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--full", action="store_true", help="100,000 live allocations on the stand-in as well"
    )
    arguments = parser.parse_args()
    building.all_current()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        bed = _Bed(Path(name), stack)
        _title("programs, stand-in driver")
        _programs(bed.stand_in)
        _title(f"CUDA until the last process has it, stand-in driver, {os.cpu_count()} cores")
        _contexts(bed.stand_in)
        _title(f"CUDA until the last process has it, hollow driver, {os.cpu_count()} cores")
        _contexts(bed.hollow)
        _title("calls, stand-in driver (microseconds; added is mostly the stand-in's own)")
        _calls(bed, bed.stand_in, None, turns=500, scale=_US, unit="us")
        _title("calls, hollow driver (nanoseconds; added is libvgpu itself)")
        _calls(bed, bed.hollow, bed.driver, turns=100_000, scale=1, unit="ns")
        _title("cuMemAlloc + cuMemFree beside live allocations")
        counts = LIVE if arguments.full else LIVE[:-1]
        _live("stand-in", bed.stand_in, bed.loops, counts, scale=_US, unit="us")
        _live("hollow", bed.hollow, bed.loops, LIVE, scale=1, unit="ns")
    print("a real card: run make gpu, which writes docs/gpu-results.md")


class _Bed:
    """Folders, drivers and containers of a run."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.loops = isolation_sides.loops(folder)
        self.driver = isolation_sides.hollow_driver(folder / "hollow-driver")
        self.stand_in = self.sides("stand-in", None)
        self.hollow = self.sides("hollow", self.driver)

    def sides(
        self,
        name: str,
        driver: Path | None,
        *,
        limit: int = isolation_sides.LIMIT,
        region: bool = False,
    ) -> Sides:
        folder = self._folder / name
        folder.mkdir()
        names = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "region")} if region else {}
        sides = Sides(folder, driver, limit, names)
        self._stack.enter_context(sides.container)
        return sides


def _programs(sides: Sides) -> None:
    _line("/bin/true", isolation_starts.program(sides, "/bin/true"), _MS, 2, "ms")
    python = isolation_starts.program(sides, *isolation_starts.PYTHON, turns=10)
    _line("python -S -c pass", python, _MS, 2, "ms")
    for name, both in isolation_starts.memory(sides).items():
        _line(f"memory of a process with {name}", both, 1, 0, "KiB")


def _contexts(sides: Sides) -> None:
    """Start CUDA: cuInit, of which there is an aim; and with the context that follows it."""
    for count, rounds in ((1, 10), (32, 3)):
        both = isolation_starts.cuda(sides, count, rounds, *isolation_starts.INIT)
        _line(f"cuInit, {count} at once", both, _MS, 2, "ms")
        reached = both.added / _MS <= AIM_INIT_MS
        print(f"    aim, at most {AIM_INIT_MS:g} ms longer: {'reached' if reached else 'missed'}")
    befores: tuple[tuple[int, int, Before], ...] = (
        (1, 5, "nobody"),
        (1, 10, "one lives"),
        (32, 3, "one lives"),
        (32, 1, "256 ended"),
    )
    for count, rounds, before in befores:
        both = isolation_starts.cuda(sides, count, rounds, *isolation_starts.START, before=before)
        _line(f"cuInit + context, {count} at once, {before} before", both, _MS, 2, "ms")


def _calls(
    bed: _Bed, sides: Sides, driver: Path | None, *, turns: int, scale: float, unit: str
) -> None:
    loops = bed.loops
    kind = "stand-in" if driver is None else "hollow"
    for name, size in _SIZES.items():
        both = isolation_calls.pair(sides, loops, size, turns)
        _line(f"cuMemAlloc + cuMemFree {name}", both, scale, 1, unit)
    near = bed.sides(f"{kind}-near", driver, limit=CONTEXT + 1024 * MIB)
    keep = 1024 * MIB - _NEAR
    both = isolation_calls.pair(near, loops, 2 * MIB, turns, keep=keep)
    _line(f"... 2 MiB, {_NEAR // MIB} MiB below the limit", both, scale, 1, unit)
    with_region = bed.sides(f"{kind}-region", driver, region=True)
    both = isolation_calls.pair(with_region, loops, 2 * MIB, max(turns // 50, 500))
    _line("... 2 MiB, with HAMi's region as well", both, scale, 1, unit)
    both = isolation_calls.asynchronous(sides, loops, MIB, turns)
    _line("cuMemAllocAsync + cuMemFreeAsync 1 MiB", both, scale, 1, unit)
    both = isolation_calls.info(sides, loops, max(turns // 100, 200))
    _line("cuMemGetInfo", both, scale, 1, unit)
    _line("cuLaunchKernel", isolation_calls.launch(sides, loops, turns), scale, 1, unit)
    if driver is None:
        moved = isolation_calls.moved_launches(sides)
        same = f"not the driver's own: {', '.join(moved)}" if moved else "the driver's own"
        print(f"    launch pointers: {same}")
        both = isolation_calls.crowd(sides, loops, 4, 2 * MIB, turns=4000)
        _line("four processes, 2 MiB: calls a second", both, 1e3, 0, "k/s")
    else:
        _shared_lock(sides, loops)


def _shared_lock(sides: Sides, loops: Path) -> None:
    """Compare four processes of a container with one: what they share is libvgpu's own lock.

    Without libvgpu nothing is shared on the hollow driver, so the baseline is one process of ours.
    """
    side = sides.side(ours=True)
    one, four, again = (
        statistics.median(isolation_calls.rates(side, loops, count, 2 * MIB, 200_000))
        for count in (1, 4, 1)
    )
    alone = (one + again) / 2
    print(
        f"    ours, calls a second: one process {alone / 1e6:.1f} million, four at once "
        f"{four / 1e6:.1f} million, ratio {four / alone:.2f} on {os.cpu_count()} cores"
    )


def _live(
    name: str, sides: Sides, loops: Path, counts: tuple[int, ...], *, scale: float, unit: str
) -> None:
    for size_name, size in _SIZES.items():
        found = isolation_calls.live(sides, loops, size, counts)
        for count, both in found.items():
            _line(f"{name}, {size_name}, {count:,} live", both, scale, 1, unit)
        least, most = found[counts[1]], found[counts[-1]]
        print(
            f"    grows from {counts[1]:,} to {counts[-1]:,} live: native "
            f"{most.native / least.native:.2f}, ours {most.ours / least.ours:.2f} times"
        )


def _title(text: str) -> None:
    print(f"{text}\n  {'':48}{'native':>9} {'ours':>9} {'added':>9} {'':5} {'ratio':>6}")


def _line(name: str, both: Both, scale: float, digits: int, unit: str) -> None:
    print(f"  {name:48}{both.text(scale, digits, unit)}", flush=True)


if __name__ == "__main__":
    main()
