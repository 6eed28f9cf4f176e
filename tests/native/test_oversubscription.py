"""Opt-in: limits that add up to more than the card has, backed by managed memory."""

from __future__ import annotations

from pathlib import Path

from hami.wire import policy_file
from tests.native.container import CONTEXT, SLACK, Container, Node, cards
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY

CARD = 3 * GIB
LIMIT = 6 * GIB
IS_MANAGED, MEMORY_TYPE, DEVICE_MEMORY = 8, 2, 2


def oversubscribed(folder: Path) -> Container:
    node = Node(folder / "node", cards(1, memory=CARD))
    return Container(folder, (LIMIT,), node=node, flags=policy_file.Flag.OVERSUBSCRIBE)


def test_more_than_the_card_has_but_not_more_than_the_limit(tmp_path: Path) -> None:
    with oversubscribed(tmp_path) as box:
        probe = box.started()
        for _ in range(2):
            filled = probe.fill("alloc", 16 * MIB)
            assert filled.code == OUT_OF_MEMORY
            assert LIMIT - CONTEXT - SLACK <= filled.bytes <= LIMIT - CONTEXT
            assert box.used() <= LIMIT
            probe.do("drop")
            assert box.used() == CONTEXT


def test_without_the_flag_the_card_is_the_end(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", cards(1, memory=CARD))
    with Container(tmp_path, (LIMIT,), node=node) as box:
        filled = box.started().fill("alloc", 16 * MIB)
        assert filled.code == OUT_OF_MEMORY
        assert filled.bytes <= CARD - CONTEXT


def test_programs_see_device_memory(tmp_path: Path) -> None:
    with oversubscribed(tmp_path) as box:
        probe = box.started()
        for name, size in (("large", 64 * MIB), ("small", 4096)):
            probe.do(f"take alloc {name} {size}")
            assert probe.number(f"attribute {name} {IS_MANAGED}") == 0
            assert probe.number(f"attribute {name} {MEMORY_TYPE}") == DEVICE_MEMORY
        probe.do(f"take managed own {64 * MIB}")
        assert probe.number(f"attribute own {IS_MANAGED}") == 1


def test_views_show_the_limit(tmp_path: Path) -> None:
    with oversubscribed(tmp_path) as box:
        probe = box.started()
        filled = probe.fill("alloc", 64 * MIB, most=64)
        assert filled.bytes == 4 * GIB
        assert probe.info() == (LIMIT - CONTEXT - 4 * GIB, LIMIT)
        memory = probe.memory()
        assert (memory.total, memory.used) == (LIMIT, CONTEXT + 4 * GIB)
        assert probe.number("total 0") == LIMIT


def test_what_must_be_real_memory_is(tmp_path: Path) -> None:
    """Pools, VMM and arrays stay on the card, and end with it."""
    with oversubscribed(tmp_path) as box:
        for kind in ("async", "vmm", "array2d"):
            probe = box.started()
            filled = probe.fill(kind, 64 * MIB)
            assert filled.code == OUT_OF_MEMORY
            assert CARD - CONTEXT - 128 * MIB <= filled.bytes <= CARD - CONTEXT
            probe.end()


def test_two_processes_share_an_oversubscribed_limit(tmp_path: Path) -> None:
    with oversubscribed(tmp_path) as box:
        first, second = box.started(), box.started()
        first.tell(f"fill alloc {32 * MIB}")
        second.tell(f"fill alloc {32 * MIB}")
        got = sum(int(probe.hear("fill").words[1]) for probe in (first, second))
        assert LIMIT - 2 * CONTEXT - SLACK <= got <= LIMIT - 2 * CONTEXT
        first.kill()
        second.do("drop")
        assert second.fill("alloc", 32 * MIB).bytes >= LIMIT - CONTEXT - SLACK
