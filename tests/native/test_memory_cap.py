"""A container never has more of a card than its limit, by any API.

The driver's own record of what was ever allocated decides. A full container must also have had
nearly all of its limit, and everything that is given back must be there for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.native.container import CONTEXT, SANITIZER, SLACK, Container
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY, Probe

LIMIT = GIB


@dataclass(frozen=True)
class Case:
    """A way to take memory: pieces of `size`, then what is left in smaller ones."""

    kind: str
    size: int
    rest: int = 0

    def __str__(self) -> str:
        return f"{self.kind}-{self.size // 1024}k"


CASES = [
    Case("alloc", 64 * MIB, 2 * MIB),
    Case("alloc", 2 * MIB),
    Case("alloc", 64 * 1024),
    Case("pitch", 16 * MIB, MIB),
    Case("managed", 64 * MIB, 2 * MIB),
    Case("async", 8 * MIB, MIB),
    Case("async", 100 * MIB, MIB),
    Case("pool:own", 8 * MIB, MIB),
    Case("vmm", 16 * MIB, 2 * MIB),
    Case("vmmkept", 16 * MIB, 2 * MIB),
    Case("vmmlost", 16 * MIB, 2 * MIB),
    Case("array2d", 16 * MIB, 2 * MIB),
    Case("array2d", 64 * 1024),
    Case("array3d", 16 * MIB, 2 * MIB),
    Case("mipmap", 16 * MIB, 2 * MIB),
    Case("graph", 32 * MIB),
]


def fill(probe: Probe, case: Case) -> None:
    for size in (case.size, case.rest):
        if size:
            filled = probe.fill(case.kind, size)
            assert filled.code == OUT_OF_MEMORY, f"{filled.function} answered {filled.code}"


def full(box: Container) -> None:
    """Check a container that was just filled."""
    physical = box.physical()
    assert box.peak() <= LIMIT
    assert LIMIT - SLACK <= physical <= LIMIT
    assert physical <= box.used() <= LIMIT


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cap_holds_and_all_comes_back(tmp_path: Path, case: Case) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        if case.kind == "pool:own":
            probe.do("pool create own")
        fill(probe, case)
        full(box)
        probe.do("drop")
        probe.do("ctx sync")
        assert box.physical() == CONTEXT
        assert probe.info()[0] == LIMIT - CONTEXT
        fill(probe, case)
        full(box)
        probe.end()
        assert box.physical() == 0


@pytest.mark.parametrize("size", [41 * MIB // 2, 3 * MIB, 2 * MIB + 1, MIB + 1, MIB, 700_000, 1])
def test_limit_that_is_no_whole_number_of_pages(tmp_path: Path, size: int) -> None:
    limit = 1023 * MIB
    with Container(tmp_path, (limit,)) as box:
        probe = box.started()
        assert probe.fill("alloc", size, most=3000).code in {0, OUT_OF_MEMORY}
        for rest in (2 * MIB, 4096):
            assert probe.fill("alloc", rest, most=3000).code in {0, OUT_OF_MEMORY}
        assert limit - SLACK <= box.physical() <= box.used() <= limit
        assert box.peak() <= limit


def test_small_allocations_fit_into_pages_that_are_there(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do("take alloc first 1024")
        fill(probe, Case("alloc", 2 * MIB))
        before = box.physical()
        probe.do("take alloc second 1024")
        assert box.physical() == before <= LIMIT


def test_small_allocations_may_use_up_the_last_page(tmp_path: Path) -> None:
    """A new page that leaves none in reserve is given back, or the next would be refused."""
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        fill(probe, Case("alloc", 300_000))  # each page has room left
        full(box)
        before = box.physical()
        probe.do("take alloc tiny 1024")
        assert box.physical() == before


@pytest.mark.parametrize(
    "shapes",
    [
        [
            f"array2d {{}} {width} {height} 1"
            for width in (1, 129, 4099)
            for height in (1, 77, 2003)
        ],
        [f"array3d {{}} {side} {side + 3} {side // 2} 1" for side in (5, 33, 131, 257)],
        [
            f"mipmap {{}} {side} {side + 5} {levels}"
            for side in (64, 777, 2049)
            for levels in (1, 5)
        ],
    ],
    ids=["2d", "3d", "mipmap"],
)
def test_arrays_of_any_shape_are_charged_enough(tmp_path: Path, shapes: list[str]) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        for round_number in range(3):
            for number, shape in enumerate(shapes):
                answer = probe.ask(shape.format(f"array{round_number}-{number}"))
                assert answer.ok or answer.code == OUT_OF_MEMORY
                assert box.physical() <= box.used() <= LIMIT
        assert box.peak() <= LIMIT


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("probe", "--lookup procaddress"),
        ("probe", "--lookup procaddress --version 11020"),
        ("probe", "--lookup procaddress --ptsz"),
        ("probe", "--lookup dlsym --ptsz"),
        ("probe-linked", ""),
    ],
)
def test_every_way_to_find_the_driver_is_watched(
    tmp_path: Path, program: str, arguments: str
) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started(*arguments.split(), program=program)
        for kind in ("alloc", "async", "vmm", "array2d", "graph"):
            fill(probe, Case(kind, 32 * MIB, 2 * MIB))
            full(box)
            probe.do("drop")
            probe.do("ctx sync")
        assert box.physical() == CONTEXT


def test_contexts_cost_and_are_capped(tmp_path: Path) -> None:
    with Container(tmp_path, (4 * GIB,)) as box:
        probe = box.started()
        filled = probe.fill("context", 0)
        assert (filled.count, filled.code) == (6, OUT_OF_MEMORY)  # and the primary one
        assert box.peak() <= 4 * GIB
        assert box.used() >= 7 * CONTEXT
        probe.do("drop")
        assert box.physical() == CONTEXT
        assert probe.fill("context", 0).count == 6


def test_first_context_needs_room(tmp_path: Path) -> None:
    with Container(tmp_path, (500 * MIB,)) as box:
        probe = box.probe()
        probe.do("init")
        probe.refused("device 0")
        assert box.peak() == 0


def test_streams_are_charged(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        filled = probe.fill("stream", 0)
        assert filled.code == OUT_OF_MEMORY
        assert box.peak() <= LIMIT
        assert box.physical() >= LIMIT - SLACK


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_mixes_stay_below(tmp_path: Path, seed: int) -> None:
    kinds = "alloc,pitch,async,vmmlost,array2d,managed,mipmap"
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"mix {kinds} {seed} {300 if SANITIZER else 1500} 256 {32 * MIB}")
        assert box.physical() <= box.used() <= LIMIT
        assert box.peak() <= LIMIT
        probe.do("drop")
        probe.do("ctx sync")
        assert box.physical() == CONTEXT
        fill(probe, Case("alloc", 2 * MIB))
        full(box)


def test_four_processes_at_once_share_the_limit(tmp_path: Path) -> None:
    limit = 4 * GIB
    with Container(tmp_path, (limit,)) as box:
        probes = [box.started() for _ in range(4)]
        for probe in probes:
            probe.tell(f"fill alloc {16 * MIB}")
        counts = [int(probe.hear("fill").words[0]) for probe in probes]
        assert box.peak() <= limit
        assert sum(counts) * 16 * MIB >= limit - 4 * CONTEXT - SLACK
        for seed, probe in enumerate(probes):
            probe.do("drop")
            probe.tell(f"mix alloc,async,vmmkept {seed + 1} 300 256 {64 * MIB}")
        for probe in probes:
            assert probe.hear("mix").ok
        assert box.peak() <= limit
        assert box.physical() <= box.used() <= limit


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("alloc", "free piece"),
        ("managed", "free piece"),
        ("async", "free piece"),
        ("async", "freeasync piece"),
        ("async", "freeasync piece other"),
        ("pool:own", "free piece"),
        ("pool:own", "freeasync piece"),
    ],
)
def test_every_legal_free_gives_back(tmp_path: Path, kind: str, way: str) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do("stream create other")
        probe.do("pool create own")
        before = box.physical()
        for _ in range(3):  # each time nearly all of the limit
            probe.do(f"take {kind} piece {448 * MIB}")
            probe.refused(f"take alloc more {64 * MIB}")
            probe.do(way)
            probe.do("ctx sync")
            assert box.physical() == before
            assert probe.info()[0] == LIMIT - before


@pytest.mark.parametrize("kind", ["alloc", "managed", "array2d"])
def test_a_context_that_is_attached_twice_keeps_its_memory_until_the_last_detach(
    tmp_path: Path, kind: str
) -> None:
    with Container(tmp_path, (2 * GIB,)) as box:
        probe = box.started()
        probe.do("ctx create second 0")
        probe.do("ctx attach")
        probe.do("ctx attach")
        probe.fill(kind, 64 * MIB)
        for _ in range(2):
            probe.do("ctx detach second")
            probe.refused(f"take {kind} more {512 * MIB}")
            assert box.peak() <= 2 * GIB
        probe.do("ctx detach second")
        probe.do("device 0")
        probe.do("abandon")
        assert box.physical() == CONTEXT
        assert probe.info()[0] == 2 * GIB - CONTEXT


@pytest.mark.parametrize("kind", ["alloc", "managed", "async", "vmmlost", "array2d"])
def test_a_context_takes_its_memory_with_it(tmp_path: Path, kind: str) -> None:
    with Container(tmp_path, (2 * GIB,)) as box:
        probe = box.started()
        for _ in range(2):
            probe.do("ctx create second 0")
            probe.fill(kind, 64 * MIB)
            assert box.peak() <= 2 * GIB
            probe.do("ctx destroy second")
            probe.do("device 0")
            if kind in {"async", "vmmlost"}:  # belong to the device: they stay
                probe.do("drop")
                probe.do("ctx sync")
            else:
                probe.do("abandon")
            assert box.physical() == CONTEXT
            assert probe.info()[0] == 2 * GIB - CONTEXT


def test_reset_of_the_primary_context_gives_back(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        fill(probe, Case("alloc", 16 * MIB))
        probe.do("reset 0")
        assert box.physical() == 0
        probe.do("abandon")
        probe.do("device 0")
        fill(probe, Case("alloc", 16 * MIB, 2 * MIB))
        full(box)


def test_released_primary_context_gives_back(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        first, second = box.started(), box.probe()
        second.do("init")
        second.refused("device 0")
        first.do("release 0")
        assert box.used() == box.physical() == 0
        second.do("device 0")


def test_mapped_memory_counts_until_the_last_unmap(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        size = 256 * MIB
        probe.do(f"vmm create handle {size}")
        probe.do("vmm map one handle")
        probe.do("vmm map two handle")
        probe.do("vmm release handle")
        probe.do("vmm retain again one")
        probe.do("vmm unmap one")
        probe.do("vmm unmap two")
        assert box.used() == box.physical() == CONTEXT + size
        probe.refused(f"take alloc more {size}")
        probe.do("vmm release again")
        assert box.used() == box.physical() == CONTEXT
        probe.do(f"take alloc more {size}")


def test_graph_memory_is_kept_until_trimmed(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"graph build one {64 * MIB} 4")
        probe.do("graph instantiate one")
        for _ in range(3):
            probe.do("graph launch one")
        probe.do("ctx sync")
        assert CONTEXT + 64 * MIB <= box.physical() <= box.used() <= LIMIT
        probe.do("graph destroy one")
        probe.do("graph trim")
        assert box.used() == box.physical() == CONTEXT
        probe.do(f"graph build kept {64 * MIB} 2 keep")
        probe.do("graph instantiate kept params")
        probe.do("graph launch kept")
        assert box.physical() == CONTEXT + 128 * MIB
        probe.do("graph freed kept")
        probe.do("graph destroy kept")
        probe.do("graph trim")
        assert box.used() == box.physical() == CONTEXT
        probe.do(f"graph build large {400 * MIB} 2")
        probe.refused("graph instantiate large params")
        assert box.peak() <= LIMIT


def test_unused_pool_memory_makes_room(tmp_path: Path) -> None:
    """What a pool keeps for later is given up before an allocation of another kind is refused."""
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"pool threshold default {LIMIT}")
        probe.do(f"take async piece {400 * MIB}")
        probe.do("freeasync piece")
        probe.do("ctx sync")
        assert box.physical() > CONTEXT + 400 * MIB - 1
        probe.do(f"take alloc large {400 * MIB}")
        assert box.peak() <= LIMIT


def test_host_memory_is_free_of_charge(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"take host pinned {MIB}")
        assert box.used() == box.physical() == CONTEXT
