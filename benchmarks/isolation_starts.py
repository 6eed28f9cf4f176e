"""Cost of libvgpu at the start of a program, of CUDA, and with memory held."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from benchmarks.isolation_sides import Both, Side, Sides, compare, compare_all
from hami.agent.containers import library
from tests.native.probing import Probe

INIT = ("init",)
START = ("init", "device 0")
PYTHON = (sys.executable, "-S", "-c", "pass")
Before = Literal["nobody", "one lives", "256 ended"]
_TURNS = 25


def program(sides: Sides, *command: str, turns: int = _TURNS, rounds: int = 2) -> Both:
    """Start a program that never looks for a driver, and wait for its end: seconds."""

    def measure(side: Side) -> list[float]:
        return [_run(command, side.environment) for _ in range(turns)]

    return compare(sides, measure, rounds)


def _run(command: Sequence[str], environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    pid = os.posix_spawn(command[0], list(command), environment)
    _, status = os.waitpid(pid, 0)
    seconds = time.perf_counter() - begin
    assert status == 0, f"{command} ended with {status}"
    return seconds


def cuda(sides: Sides, count: int, rounds: int, *lines: str, before: Before = "one lives") -> Both:
    """Let `count` waiting processes do `lines` at once: seconds until the last has done so.

    `before` is the container's history: none, so that the state file is made; one process that
    lives on; or 256 that have ended with their contexts.
    """

    def measure(side: Side) -> list[float]:
        with contextlib.ExitStack() as stack:
            sides.empty_container()
            if side.ours and before == "256 ended":
                for _ in range(8):
                    with _probes(side, 32) as ending:
                        _all_do(ending, START)
            if before == "one lives":
                _all_do(stack.enter_context(_probes(side, 1)), START)
            probes = stack.enter_context(_probes(side, count))
            begin = time.perf_counter()
            _all_do(probes, lines)
            return [time.perf_counter() - begin]

    return compare(sides, measure, rounds)


def _all_do(probes: Sequence[Probe], lines: Sequence[str]) -> None:
    for probe in probes:
        for line in lines:
            probe.tell(line)
    for probe in probes:
        for line in lines:
            answer = probe.hear(line)
            assert answer.ok, answer.text


def memory(sides: Sides) -> dict[str, Both]:
    """Give the KiB that processes hold: resident, and (`private`) shared with no process."""
    found: dict[str, Both] = {}
    for name, holding in (("no CUDA", _idle), ("a context", _with_context)):
        for kind, both in compare_all(sides, _measured(holding), 3).items():
            found[f"{name}, {kind}"] = both
    return found


def _measured(
    holding: Callable[[Side], contextlib.AbstractContextManager[int]],
) -> Callable[[Side], dict[str, list[float]]]:
    def measure(side: Side) -> dict[str, list[float]]:
        with holding(side) as pid:
            fields = _smaps(pid)
        private = fields["Private_Dirty"] + fields["Private_Clean"]
        return {"resident": [fields["Rss"]], "private": [private]}

    return measure


def _smaps(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: float(line.split()[1]) for line in lines}


@contextlib.contextmanager
def _idle(side: Side) -> Iterator[int]:
    """Run `cat`, which has come up when it has echoed a line."""
    with subprocess.Popen(
        ["/bin/cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=side.environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"up\n")
        process.stdin.flush()
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


@contextlib.contextmanager
def _with_context(side: Side) -> Iterator[int]:
    with _probes(side, 1) as (probe,):
        probe.start()
        probe.do("take alloc piece 64k")
        yield probe.pid


@contextlib.contextmanager
def _probes(side: Side, count: int) -> Iterator[list[Probe]]:
    """Give processes that are up, without CUDA yet."""
    path = str(library.find_built("probe"))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        probes = []
        for number in range(count):
            noise = folder / str(number)
            probes.append(stack.enter_context(Probe([path], side.environment, noise)))
        for probe in probes:
            probe.do("pid")
        yield probes
