"""A card that the policy does not name cannot be used by any call.

The machine has two cards, both are visible, and the container's policy names the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.container import CONTEXT, Container, Node, cards
from tests.native.probing import GIB, MIB, Probe

FOREIGN = 1
#: What is done first, on the container's own card, and then must be refused.
DOORS = {
    "primary context": ([], f"device {FOREIGN}"),
    "context": ([], f"ctx create other {FOREIGN}"),
    "context of CUDA 13": ([], f"ctx create other {FOREIGN} v4"),
    "green context": ([], f"green create part {FOREIGN}"),
    "pool": ([], f"poolat own pinned device {FOREIGN}"),
    "managed pool": ([], f"poolat own managed device {FOREIGN}"),
    "default pool": (
        [f"poolof own devicedefault pinned device {FOREIGN}"],
        f"take pool:own piece {MIB}",
    ),
    "current pool": ([f"poolof own device pinned device {FOREIGN}"], f"take pool:own piece {MIB}"),
    "default pool of a location": (
        [f"poolof own memdefault pinned device {FOREIGN}"],
        f"take pool:own piece {MIB}",
    ),
    "current pool of a location": (
        [f"poolof own mem pinned device {FOREIGN}"],
        f"take pool:own piece {MIB}",
    ),
    "pool of an unknown place": ([], f"poolat own pinned 6 {FOREIGN}"),
    "VMM": ([], f"vmm create handle {16 * MIB} {FOREIGN}"),
    "VMM of an unknown place": ([], f"vmmat handle {16 * MIB} 6 {FOREIGN}"),
    "access": (
        [f"vmm create handle {16 * MIB}", "vmm map range handle"],
        f"access range device {FOREIGN}",
    ),
    "access of a pool": (["poolat own pinned device 0"], f"poolaccess own device {FOREIGN}"),
    "graph": ([], f"graphat {32 * MIB} device {FOREIGN}"),
    "graph of an unknown place": ([], f"graphat {32 * MIB} 6 {FOREIGN}"),
    "multicast": ([], f"multicast {FOREIGN}"),
    **{
        f"prefetch {how}": (
            [f"take managed piece {16 * MIB}"],
            f"prefetch piece {how} device {FOREIGN}",
        )
        for how in ("v1", "v2", "batch", "discard")
    },
    **{
        f"advice {how} {advice}": (
            [f"take managed piece {16 * MIB}"],
            f"advise piece {how} {advice} device {FOREIGN}",
        )
        for how in ("v1", "v2")
        for advice in (3, 5)
    },
}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Container]:
    with Container(tmp_path, (2 * GIB,), node=Node(tmp_path / "node", cards(2))) as made:
        yield made


@pytest.mark.parametrize("door", DOORS)
def test_a_card_that_was_not_granted_is_refused(box: Container, door: str) -> None:
    probe = box.started()
    assert probe.number("count") == 2
    before, line = DOORS[door]
    for step in before:
        probe.do(step)
    probe.refused(line)
    assert box.node.peak(FOREIGN) == 0
    assert not [entry for entry in box.state().cards if entry.uuid == box.node.cards[FOREIGN].uuid]
    probe.do("take alloc own 1024")  # the own card goes on


@pytest.mark.parametrize(
    "door", ["green context", "pool", "VMM", "default pool", "graph", "multicast"]
)
def test_the_same_without_the_library_works(box: Container, door: str) -> None:
    """Nothing above is refused by the stand-in itself."""
    with box.outsider() as outside:
        outside.start()
        before, line = DOORS[door]
        for step in [*before, line]:
            outside.do(step)


@pytest.mark.parametrize(
    "arguments", ["--lookup procaddress", "--lookup procaddress --ptsz", "--ptsz"]
)
@pytest.mark.parametrize("door", ["prefetch v2", "prefetch discard", "advice v2 5", "default pool"])
def test_however_the_driver_is_found(box: Container, arguments: str, door: str) -> None:
    probe = box.started(*arguments.split())
    before, line = DOORS[door]
    for step in before:
        probe.do(step)
    probe.refused(line)


def made_outside(box: Container) -> Probe:
    """Start a process that no limit holds, on the card that was not granted."""
    return box.outsider().start(FOREIGN)


def test_ipc_memory_of_a_foreign_card_is_not_opened(box: Container) -> None:
    probe = box.started()
    with made_outside(box) as outside:
        outside.do(f"take alloc piece {16 * MIB}")
        [handle] = outside.do("ipc get piece")
        probe.refused(f"ipc open theirs {handle}")
        outside.do("free piece")
        assert box.physical(FOREIGN) == CONTEXT  # it was closed again


def test_exported_memory_of_a_foreign_card_is_not_imported(box: Container, tmp_path: Path) -> None:
    probe, path = box.started(), tmp_path / "door"
    with made_outside(box) as outside:
        outside.do(f"vmm create handle {16 * MIB}")
        outside.tell(f"vmm-send handle {path}")
        probe.refused(f"vmm-receive theirs {path} {16 * MIB}")
        assert outside.hear("vmm-send").ok
        outside.do("vmm release handle")
        assert box.physical(FOREIGN) == CONTEXT


def test_pointers_of_a_foreign_pool_are_not_opened(box: Container, tmp_path: Path) -> None:
    probe, path = box.started(), tmp_path / "door"
    with made_outside(box) as outside:
        outside.do(f"poolat own pinned device {FOREIGN}")
        outside.do(f"take pool:own piece {MIB}")
        outside.tell(f"pool-send own {path}")
        probe.do(f"pool-receive theirs {path}")
        assert outside.hear("pool-send").ok
        [data] = outside.do("pool-pointer piece")
        probe.refused(f"pool-open there theirs {data}")


def test_memory_of_the_own_card_is_opened(box: Container, tmp_path: Path) -> None:
    maker, taker, path = box.started(), box.started(), tmp_path / "door"
    maker.do(f"take alloc piece {16 * MIB}")
    [handle] = maker.do("ipc get piece")
    taker.do(f"ipc open theirs {handle}")
    maker.do("poolat own pinned device 0")
    maker.do(f"take pool:own part {MIB}")
    maker.tell(f"pool-send own {path}")
    taker.do(f"pool-receive theirs {path}")
    assert maker.hear("pool-send").ok
    [data] = maker.do("pool-pointer part")
    taker.do(f"pool-open there theirs {data}")
    assert box.physical() <= box.used() <= 2 * GIB
