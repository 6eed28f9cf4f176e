"""Memory as a container sees it: one answer, by every function."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.container import CONTEXT, Container, Node, cards
from tests.native.probing import GIB, MIB, Probe


def check_views(probe: Probe, limit: int, used: int, nvml_index: int = 0) -> None:
    """Compare everything that a process can ask about its current card."""
    assert probe.info() == (limit - used, limit)
    memory = probe.memory(nvml_index)
    assert (memory.total, memory.used, memory.free) == (limit, used, limit - used)
    assert (memory.total_v2, memory.used_v2) == (limit, used)
    assert memory.free_v2 + memory.used_v2 + memory.reserved_v2 == limit
    assert sum(memory.processes.values()) == used


def test_all_views_agree(tmp_path: Path) -> None:
    with Container(tmp_path, (4 * GIB,)) as box:
        first, second = box.started(), box.started()
        first.do(f"take alloc a {300 * MIB}")
        first.do(f"take managed b {100 * MIB}")
        second.do(f"take vmmlost c {200 * MIB}")
        second.do(f"take async d {64 * MIB}")
        used = 2 * CONTEXT + (300 + 100 + 200 + 64) * MIB
        for probe in (first, second):
            check_views(probe, 4 * GIB, used)
            assert probe.number("total 0") == 4 * GIB
        processes = first.memory().processes
        assert processes == {
            first.pid: CONTEXT + 400 * MIB,
            second.pid: CONTEXT + 264 * MIB,
        }
        assert box.used() == used


def test_a_reader_without_cuda_sees_the_same(tmp_path: Path) -> None:
    with Container(tmp_path, (2 * GIB,)) as box:
        worker, reader = box.started(), box.probe()
        worker.do(f"take alloc a {300 * MIB}")
        memory = reader.memory()
        assert (memory.total, memory.used) == (2 * GIB, CONTEXT + 300 * MIB)
        assert list(memory.processes) == [worker.pid]
        assert [entry.pid for entry in box.state().processes] == [
            worker.pid
        ]  # reading takes no slot


def test_other_containers_are_not_seen(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", cards(1))
    with (
        Container(tmp_path / "one", (2 * GIB,), node=node) as one,
        Container(tmp_path / "two", (3 * GIB,), node=node) as two,
    ):
        mine, other = one.started(), two.started()
        other.do(f"take alloc a {GIB}")
        assert mine.memory().processes == {mine.pid: CONTEXT}
        assert mine.info() == (2 * GIB - CONTEXT, 2 * GIB)
        assert other.info() == (2 * GIB - CONTEXT, 3 * GIB)
        assert one.physical() == 2 * CONTEXT + GIB


def test_free_is_never_more_than_the_card_has(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", cards(1, memory=3 * GIB))
    with (
        Container(tmp_path / "one", (2 * GIB,), node=node) as one,
        Container(tmp_path / "two", (2 * GIB,), node=node) as two,
    ):
        one.started().do(f"take alloc a {GIB}")
        free, total = two.started().info()
        assert total == 2 * GIB
        assert free == 3 * GIB - GIB - 2 * CONTEXT


@pytest.mark.parametrize("order", ["0,1", "1,0", "1", "by uuid"])
def test_cards_keep_their_limits_in_any_order(tmp_path: Path, order: str) -> None:
    limits = (2 * GIB, 3 * GIB)
    with Container(tmp_path, limits) as box:
        uuids = [card.uuid for card in box.node.cards]
        visible = f"{uuids[1]},{uuids[0]}" if order == "by uuid" else order
        box.names["CUDA_VISIBLE_DEVICES"] = visible
        physical = [1, 0] if order == "by uuid" else [int(number) for number in order.split(",")]
        for ordinal, card in enumerate(physical):
            probe = box.probe()
            probe.do("init")
            assert probe.do(f"uuid {ordinal}") == [uuids[card]]
            assert probe.number(f"total {ordinal}") == limits[card]
            probe.do(f"device {ordinal}")
            check_views(probe, limits[card], CONTEXT, nvml_index=card)
            probe.fill("alloc", 64 * MIB)
            assert limits[card] - 96 * MIB < box.physical(card) <= limits[card]
            assert box.peak(card) <= limits[card]
            probe.end()


def test_each_card_of_one_process_has_its_own_limit(tmp_path: Path) -> None:
    with Container(tmp_path, (GIB, 2 * GIB)) as box:
        probe = box.started(device=0)
        probe.do(f"vmm create other {512 * MIB} 1")  # on the second card, from the first's context
        assert box.used(0) == box.physical(0) == CONTEXT
        assert box.used(1) >= box.physical(1) >= 512 * MIB
        probe.do("device 1")
        probe.fill("alloc", 16 * MIB)
        probe.do("device 0")
        probe.fill("alloc", 16 * MIB)
        assert GIB - 16 * MIB <= box.physical(0) <= GIB
        assert 2 * GIB - 16 * MIB <= box.physical(1) <= 2 * GIB
