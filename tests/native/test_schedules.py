"""Threads of a process change its books at once, in the worst order.

A thread is held at a label of the library (native/libvgpu/test_points.h) while others go on. What
must hold in between: the books have no less than the driver counts. What must hold at the end: they
have no more, or the container has lost that memory for as long as the process does nothing.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.native.container import CONTEXT, Container
from tests.native.probing import GIB, MIB, Probe

LIMIT = 4 * GIB
BEFORE_LIST, BEFORE_SET = "overhead.measure.before_list", "overhead.measure.before_set"


class Held:
    """A container whose threads can be held at labels."""

    def __init__(self, folder: Path) -> None:
        self._holds = folder / "holds"
        self._holds.mkdir()
        names = {"VGPU_HOLD_IN": str(self._holds)}
        self.box = Container(folder, (LIMIT,), library="libvgpu-test.so", names=names)

    def beside(self, probe: Probe, commands: str, label: str) -> None:
        """Let a new thread run until it stands at a label."""
        (self._holds / label).touch()
        probe.do(f"beside {commands}")
        self._wait_until_held(label)

    def then(self, label: str, later: str) -> None:
        """Let a thread go on from one label to the next."""
        (self._holds / later).touch()
        self.go_on(label)
        self._wait_until_held(later)

    def _wait_until_held(self, label: str) -> None:
        deadline = time.monotonic() + 60
        while not (self._holds / f"{label}.held").exists():
            assert time.monotonic() < deadline, f"{label} was never reached"
            time.sleep(0.001)

    def go_on(self, label: str) -> None:
        (self._holds / f"{label}.held").unlink()

    def beside_if_it_may(self, probe: Probe, commands: str) -> None:
        """Let a new thread run to its end, or as far as those that are held let it."""
        probe.do(f"beside {commands}")
        self.let_run(probe)

    def let_run(self, probe: Probe) -> None:
        """Wait until one thread more has ended, or for long enough that it could have.

        A library that is in order makes it wait for the one that is held.
        """
        tasks = Path(f"/proc/{probe.pid}/task")
        before = len(list(tasks.iterdir()))
        deadline = time.monotonic() + 0.3
        while len(list(tasks.iterdir())) == before and time.monotonic() < deadline:
            time.sleep(0.001)


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path)


def join(probe: Probe) -> None:
    answers = " ".join(probe.do("join")).split(" | ")
    assert all(answer.split()[0] == "ok" for answer in answers)


def settled(box: Container, probe: Probe) -> None:
    """Give all memory back and wait, as a program does before it rests; nothing may be left."""
    probe.do("drop")
    probe.do("ctx sync")
    assert box.used() == box.physical() == CONTEXT


@pytest.mark.parametrize("how", ["grows", "shrinks"])
def test_a_pool_that_changes_during_a_measurement(held: Held, how: str) -> None:
    with held.box as box:
        probe = box.started()
        probe.fill("async", 256 * MIB, 1)
        if how == "shrinks":
            probe.do("drop")
        held.beside(probe, "info", BEFORE_LIST)
        if how == "shrinks":
            probe.do("ctx sync")
        else:
            probe.fill("async", 256 * MIB, 1)
        held.go_on(BEFORE_LIST)
        join(probe)
        assert box.used() >= box.physical()
        settled(box, probe)


def test_the_older_of_two_measurements_does_not_count(held: Held) -> None:
    with held.box as box:
        probe = box.started()
        held.beside(probe, "info", BEFORE_LIST)
        probe.fill("alloc", 256 * MIB, 1)
        held.then(BEFORE_LIST, BEFORE_SET)  # it knows of that memory, but not that it was booked
        held.beside_if_it_may(probe, "info")
        held.go_on(BEFORE_SET)
        join(probe)
        settled(box, probe)


def test_growth_that_another_thread_books(held: Held) -> None:
    """A thread that refreshes a pool's charge books what the other's allocation has made of it."""
    with held.box as box:
        probe = box.started()
        held.beside(probe, f"fill async {256 * MIB} 1; drop; ctx sync", "pools.allocated")
        held.beside(probe, "info", "pools.settle.between")
        held.go_on("pools.allocated")
        held.let_run(probe)
        held.go_on("pools.settle.between")
        join(probe)
        settled(box, probe)


def test_graphs_made_at_once_are_both_charged(held: Held) -> None:
    with held.box as box:
        probe = box.started()
        held.beside(probe, f"take graph first {64 * MIB}", "graphs.charge.between")
        held.beside_if_it_may(probe, f"fill graph {64 * MIB} 1")
        held.go_on("graphs.charge.between")
        join(probe)
        assert box.usage(probe).graph == 128 * MIB


def test_memory_freed_during_a_wait_of_another_thread(held: Held) -> None:
    with held.box as box:
        probe = box.started()
        probe.fill("async", 256 * MIB, 1)
        held.beside(probe, "drop", "pools.free.before")
        probe.do("ctx sync")
        held.go_on("pools.free.before")
        join(probe)
        settled(box, probe)


def test_memory_freed_after_a_wait_of_another_thread(held: Held) -> None:
    with held.box as box:
        probe = box.started()
        probe.fill("async", 256 * MIB, 1)
        held.beside(probe, "ctx sync", "pools.waited")
        probe.do("drop")
        held.go_on("pools.waited")
        join(probe)
        settled(box, probe)


def test_code_that_a_neighbour_noticed_first_counts_once(tmp_path: Path) -> None:
    """It counts with the process that has it: its neighbour may do nothing more for hours."""
    with Container(tmp_path, (LIMIT,)) as box:
        neighbour, probe = box.started(), box.started()
        probe.do(f"module load big code {96 * MIB}")
        probe.do("launch big")
        neighbour.info()
        assert box.used() == box.physical() > 2 * CONTEXT
        probe.do("ctx sync")
        assert probe.info()[0] == LIMIT - box.physical()


def test_a_wait_for_another_stream_hides_no_memory_that_came_back(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do("stream create first")
        probe.do("stream create second")
        probe.do("ctx sync")
        before = box.used()
        probe.do(f"take async piece {256 * MIB}")
        probe.do("freeasync piece second")
        probe.do("stream sync first")
        probe.do("stream sync second")
        assert box.used() == box.physical() == before
