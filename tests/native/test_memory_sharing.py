"""Memory that two processes share is counted once, also if its maker dies."""

from __future__ import annotations

from pathlib import Path

from tests.native.container import CONTEXT, Container, Node, cards
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY, Probe

LIMIT = 2 * GIB
SIZE = 512 * MIB


def send(maker: Probe, taker: Probe, folder: Path) -> None:
    path = folder / "socket"
    maker.tell(f"vmm-send shared {path}")
    taker.do(f"vmm-receive shared {path} {SIZE}")
    assert maker.hear("vmm-send").ok


def test_ipc_memory_is_counted_once(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        maker, taker = box.started(), box.started()
        maker.do(f"take alloc buffer {SIZE}")
        maker.do("set buffer 171 16")
        [handle] = maker.do("ipc get buffer")
        taker.do(f"ipc open window {handle}")
        assert taker.do("get window 4") == ["abababab"]
        assert box.used() == box.physical() == 2 * CONTEXT + SIZE
        taker.refused(f"take alloc more {SIZE}")
        taker.do("ipc close window")
        maker.do("free buffer")
        assert box.used() == box.physical() == 2 * CONTEXT


def test_vmm_memory_is_counted_once(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        maker, taker = box.started(), box.started()
        maker.do(f"vmm create shared {SIZE}")
        send(maker, taker, tmp_path)
        taker.do("vmm map window shared")
        assert box.physical() == 2 * CONTEXT + SIZE
        assert box.used() == box.physical()
        taker.do("vmm unmap window")
        taker.do("vmm release shared")
        assert box.used() == box.physical() == 2 * CONTEXT + SIZE
        maker.do("vmm release shared")
        assert box.used() == box.physical() == 2 * CONTEXT


def test_shared_memory_outlives_its_maker_within_the_limit(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        maker, taker = box.started(), box.started()
        maker.do(f"vmm create shared {SIZE}")
        send(maker, taker, tmp_path)
        taker.do("vmm map window shared")
        maker.kill()
        assert box.physical() == CONTEXT + SIZE
        taker.fill("alloc", 32 * MIB)
        assert box.physical() <= box.used() <= LIMIT
        assert box.peak() <= LIMIT
        taker.do("drop")
        taker.do("vmm unmap window")
        taker.do("vmm release shared")
        assert box.physical() == CONTEXT
        assert taker.info()[0] == LIMIT - CONTEXT


def test_maker_that_releases_first_stays_within_the_limit(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        maker, taker = box.started(), box.started()
        maker.do(f"vmm create shared {SIZE}")
        send(maker, taker, tmp_path)
        taker.do("vmm map window shared")
        maker.do("vmm release shared")
        assert box.physical() == 2 * CONTEXT + SIZE
        maker.fill("alloc", 32 * MIB)
        taker.fill("alloc", 32 * MIB)
        assert box.peak() <= LIMIT


def test_ipc_memory_of_a_dead_maker(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        maker, taker = box.started(), box.started()
        maker.do(f"take alloc buffer {SIZE}")
        [handle] = maker.do("ipc get buffer")
        taker.do(f"ipc open window {handle}")
        maker.kill()
        taker.fill("alloc", 32 * MIB)
        assert box.peak() <= LIMIT
        taker.do("drop")
        taker.do("ipc close window")
        assert box.physical() == CONTEXT
        assert taker.info()[0] == LIMIT - CONTEXT


def test_last_of_three_holders(tmp_path: Path) -> None:
    limit = 3 * GIB
    with Container(tmp_path, (limit,)) as box:
        probes = [box.started() for _ in range(3)]
        probes[0].do(f"vmm create shared {SIZE}")
        for taker in probes[1:]:
            send(probes[0], taker, tmp_path)
            taker.do("vmm map window shared")
            taker.do("vmm release shared")
        assert box.used() == box.physical() == 3 * CONTEXT + SIZE
        probes[0].kill()
        probes[1].kill()
        assert box.physical() == CONTEXT + SIZE
        last = probes[2]
        last.fill("alloc", 32 * MIB)
        assert box.physical() <= box.used() <= limit
        assert box.peak() <= limit
        last.kill()
        assert box.physical() == 0
        assert box.started().info()[0] == limit - CONTEXT


def test_what_a_dead_maker_left_to_an_idle_process_counts_for_a_third(tmp_path: Path) -> None:
    limit = 3 * GIB
    with Container(tmp_path, (limit,)) as box:
        maker, idle, third = box.started(), box.started(), box.started()
        maker.do(f"vmm create shared {SIZE}")
        send(maker, idle, tmp_path)
        idle.do("vmm map window shared")
        maker.kill()
        assert box.physical() == 2 * CONTEXT + SIZE
        third.fill("alloc", 32 * MIB)
        assert box.physical() <= box.used() <= limit
        assert box.peak() <= limit


def test_memory_opened_from_another_container(tmp_path: Path) -> None:
    """As prefill hands its cache to decode: the data arrives, and each limit holds."""
    node = Node(tmp_path / "node", cards(1))
    with (
        Container(tmp_path / "one", (LIMIT,), node=node) as one,
        Container(tmp_path / "two", (GIB,), node=node) as two,
    ):
        maker, taker = one.started(), two.started()
        maker.do(f"take alloc cache {SIZE}")
        maker.do("set cache 42 16")
        [handle] = maker.do("ipc get cache")
        taker.do(f"ipc open window {handle}")
        assert taker.do("get window 4") == ["2a2a2a2a"]
        taker.do("set window 43 16")
        assert maker.do("get cache 1") == ["2b"]
        assert (one.used(), two.used()) == (CONTEXT + SIZE, CONTEXT)
        for probe in (maker, taker):
            assert probe.fill("alloc", 16 * MIB).code == OUT_OF_MEMORY
        assert one.peak() <= LIMIT
        assert two.peak() <= GIB


def test_memory_imported_from_another_container(tmp_path: Path) -> None:
    """The maker's container pays; the taker's limit is for what it makes itself."""
    node = Node(tmp_path / "node", cards(1))
    with (
        Container(tmp_path / "one", (LIMIT,), node=node) as one,
        Container(tmp_path / "two", (GIB,), node=node) as two,
    ):
        maker, taker = one.started(), two.started()
        maker.do(f"vmm create shared {SIZE}")
        send(maker, taker, tmp_path)
        taker.do("vmm map window shared")
        assert one.used() == CONTEXT + SIZE
        taker.fill("alloc", 16 * MIB)
        assert two.peak() <= GIB
        maker.fill("alloc", 16 * MIB)
        assert one.peak() <= LIMIT


def test_memory_left_on_the_second_card_is_noticed_there(tmp_path: Path) -> None:
    """Measuring the first card does not mean that the second was measured."""
    with Container(tmp_path, (4 * GIB, 2 * GIB)) as box:
        maker = box.started(device=1)
        maker.do(f"take alloc buffer {400 * MIB}")
        [handle] = maker.do("ipc get buffer")
        taker = box.started()
        taker.do("device 1")
        taker.do(f"ipc open window {handle}")
        taker.do(f"take alloc before {2 * MIB}")
        maker.do("free buffer")
        taker.do("device 0")
        taker.do(f"take alloc elsewhere {2 * MIB}")
        taker.do("device 1")
        taker.refused(f"take alloc large {700 * MIB}")
        assert box.peak(1) <= 2 * GIB


def test_who_has_no_context_on_the_card_sees_what_others_left_there(tmp_path: Path) -> None:
    with Container(tmp_path, (4 * GIB, 2 * GIB)) as box:
        maker, taker = box.started(device=1), box.started()
        maker.do(f"vmm create shared {1000 * MIB}")
        send(maker, taker, tmp_path)
        maker.do("vmm release shared")
        taker.refused(f"vmmat own {1200 * MIB} device 1")
        assert box.used(1) == box.physical(1) == CONTEXT + 1000 * MIB
        assert box.peak(1) <= 2 * GIB
