"""Memory whose place is not plainly a card: charged wherever it may lie.

Only the host's memory is free. The stand-in driver moves managed memory to the card that works on
it or that it is prefetched to, and has a kind of location that libvgpu's headers do not know.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.container import CONTEXT, SANITIZER, SLACK, Container, Node, cards
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY

LIMIT = GIB
LOCALITY_DOMAIN = 6  # of native/fakegpu: a kind that libvgpu does not know
GREEN = 14 * MIB  # what a green context takes on the stand-in beside the primary context
PREFERRED, ACCESSED_BY, READ_MOSTLY = 3, 5, 1
POOLS = [
    "poolat own managed none 0",
    "poolat own managed device 0",
    "poolat own managed host 0",
    "poolof own memdefault managed none 0",
    "poolof own mem managed host 0",
    "poolof own mem managed device 0",
]
PREFETCHES = ["batch", "v1", "v2", "discard"]
ADVICE = [("v2", PREFERRED), ("v1", PREFERRED), ("v1", ACCESSED_BY), ("v2", ACCESSED_BY)]
FEW = 1 if SANITIZER else 6  # of each: the ways to say it differ little to a sanitizer


@pytest.mark.parametrize("pool", POOLS[:FEW])
def test_managed_pools_stay_below_the_limit(tmp_path: Path, pool: str) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(pool)
        for size in (64 * MIB, 3 * MIB):
            assert probe.fill("pool:own", size).code == OUT_OF_MEMORY
        assert LIMIT - 2 * SLACK <= box.physical() <= box.used() <= LIMIT
        assert box.peak() <= LIMIT
        probe.do("drop")
        probe.do("ctx sync")
        assert box.physical() == CONTEXT
        assert probe.info()[0] == LIMIT - CONTEXT
        probe.do(f"take pool:own again {256 * MIB}")
        probe.do("free again")
        probe.do("ctx sync")
        assert box.used() == box.physical() == CONTEXT


def test_a_managed_pool_whose_size_is_not_told_is_charged_by_its_pieces(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        box.node.faults("cuMemPoolGetAttribute 1+ 801")
        probe.do("poolat own managed device 0")
        assert probe.fill("pool:own", 32 * MIB).code == OUT_OF_MEMORY
        assert LIMIT - 2 * SLACK <= box.physical() <= box.used() <= LIMIT
        probe.do("drop")
        probe.do("ctx sync")
        # The pool may have kept it, so it counts until it was trimmed: by us, before a refusal.
        assert probe.fill("pool:own", 32 * MIB).code == OUT_OF_MEMORY
        assert LIMIT - 2 * SLACK <= box.physical() <= LIMIT
        assert box.peak() <= LIMIT


def test_pieces_of_a_destroyed_managed_pool_stay_charged(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        size = 128 * MIB
        for number in range(2):
            probe.do(f"poolat pool{number} managed device 0")
            probe.do(f"take pool:pool{number} piece{number} {size}")
            probe.do(f"pool destroy pool{number}")
        assert box.used() == box.physical() == CONTEXT + 2 * size
        probe.refused(f"take alloc large {LIMIT - CONTEXT - size}")
        probe.do("free piece0")
        assert box.used() == box.physical() == CONTEXT + size
        probe.do("freeasync piece1")
        probe.do("ctx sync")
        assert box.used() == CONTEXT


def test_memory_of_an_unknown_kind_of_place_is_charged(tmp_path: Path) -> None:
    place = f"{LOCALITY_DOMAIN} 0"
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"vmmat one {256 * MIB} {place}")
        assert box.used() == box.physical() == CONTEXT + 256 * MIB
        probe.refused(f"vmmat two {256 * MIB} {place}")
        probe.do("vmm release one")
        assert box.used() == box.physical() == CONTEXT
        probe.do(f"poolat own pinned {place}")
        assert probe.fill("pool:own", 8 * MIB).code == OUT_OF_MEMORY
        assert LIMIT - SLACK <= box.physical() <= box.used() <= LIMIT
        probe.do("drop")
        probe.do("ctx sync")
        assert box.used() == box.physical() == CONTEXT
        probe.refused(f"graphat {LIMIT} {place}")
        probe.do(f"graphat {64 * MIB} {place}")
        assert box.peak() <= LIMIT


def test_memory_of_an_unknown_kind_of_place_counts_on_every_granted_card(tmp_path: Path) -> None:
    with Container(tmp_path, (2 * GIB, GIB)) as box:
        probe = box.started()
        probe.do(f"vmmat one {512 * MIB} {LOCALITY_DOMAIN} 0")
        assert [box.used(card) for card in (0, 1)] == [CONTEXT + 512 * MIB, 512 * MIB]
        probe.refused(f"vmmat two {600 * MIB} {LOCALITY_DOMAIN} 0")
        probe.do("vmm release one")
        assert [box.used(card) for card in (0, 1)] == [CONTEXT, 0]


@pytest.mark.parametrize("place", ["host 0", "3 0"])
def test_memory_of_the_host_is_free(tmp_path: Path, place: str) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"vmmat one {8 * GIB} {place}")
        probe.do(f"poolat own pinned {place}")
        probe.do(f"take pool:own piece {8 * GIB}")
        assert box.used() == box.physical() == CONTEXT


def test_a_green_context_made_first_pays_for_the_context_that_it_retains(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.probe()
        probe.do("init")
        probe.do("green create part 0")
        assert box.used() == box.physical() == CONTEXT + GREEN
        probe.do("green use part")
        assert probe.fill("alloc", 16 * MIB).code == OUT_OF_MEMORY
        assert LIMIT - SLACK <= box.physical() <= box.used() <= LIMIT
        probe.do("drop")
        probe.do("green create second 0")
        for name in ("part", "second"):
            probe.do(f"green destroy {name}")
        assert box.used() == box.physical() == 0
        assert box.peak() <= LIMIT


def test_a_reset_ends_green_contexts(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.probe()
        probe.do("init")
        probe.do("green create part 0")
        probe.do("reset 0")
        assert box.used() == box.physical() == 0
        probe.ask("green destroy part")
        probe.do("green create part 0")
        assert box.used() == box.physical() == CONTEXT + GREEN


@pytest.mark.parametrize("context_bytes", [0, CONTEXT])
def test_a_green_context_made_first_needs_room(tmp_path: Path, context_bytes: int) -> None:
    with Container(tmp_path, (500 * MIB,), context_bytes=context_bytes) as box:
        probe = box.probe()
        probe.do("init")
        probe.refused("green create part 0")
        assert box.physical() == box.used() == 0
        if context_bytes:
            assert box.peak() == 0  # it was not even tried


def test_a_green_context_needs_room_beside_the_context(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        assert probe.fill("alloc", 2 * MIB).code == OUT_OF_MEMORY
        probe.refused("green create part 0")
        assert box.peak() <= LIMIT


@pytest.mark.parametrize("how", PREFETCHES[:FEW])
def test_prefetched_memory_counts_on_the_card_where_it_goes(tmp_path: Path, how: str) -> None:
    with Container(tmp_path, (4 * GIB, GIB)) as box:
        probe = box.started()
        for name in ("small", "large"):
            size = (256 if name == "small" else 768) * MIB
            probe.do(f"take managed {name} {size}")
        assert box.used(1) == 0
        probe.do(f"prefetch small {how} device 1")
        assert box.used(1) == box.physical(1) == 256 * MIB
        probe.do(f"prefetch large {how} device 1")
        assert box.used(1) == box.physical(1) == GIB
        probe.do("take managed more 2097152")
        probe.refused(f"prefetch more {how} device 1")
        assert box.node.peak(1, box.owner) <= GIB
        probe.do(f"prefetch large {how} host 0")
        probe.refused(f"prefetch more {how} device 1")  # it may come back by a touch
        probe.do("free large")
        probe.do(f"prefetch more {how} device 1")
        for name in ("small", "more"):
            probe.do(f"free {name}")
        assert [box.used(card) for card in (0, 1)] == [CONTEXT, 0]
        assert [box.physical(card) for card in (0, 1)] == [CONTEXT, 0]


@pytest.mark.parametrize(("how", "advice"), ADVICE[:FEW])
def test_advised_memory_counts_on_the_card_that_is_named(
    tmp_path: Path, how: str, advice: int
) -> None:
    with Container(tmp_path, (4 * GIB, GIB)) as box:
        probe = box.started()
        probe.do(f"take managed piece {768 * MIB}")
        probe.do(f"advise piece {how} {READ_MOSTLY} device 1")
        probe.do(f"advise piece {how} {advice} host 0")
        assert box.used(1) == 0
        probe.do(f"advise piece {how} {advice} device 1")
        assert box.used(1) == 768 * MIB
        probe.do(f"take managed other {768 * MIB}")
        probe.refused(f"advise other {how} {advice} device 1")


def test_managed_memory_counts_on_every_card_with_a_context(tmp_path: Path) -> None:
    """A kernel's touch moves it, and asks nobody."""
    with Container(tmp_path, (4 * GIB, 2 * GIB)) as box:
        probe = box.started()
        probe.do(f"take managed early {GIB}")
        probe.do("poolat own managed none 0")
        probe.do(f"take pool:own piece {128 * MIB}")
        probe.do("device 1")
        assert box.used(1) == CONTEXT + GIB + 128 * MIB
        probe.refused(f"take managed late {512 * MIB}")
        probe.do(f"take managed late {256 * MIB}")
        for name in ("early", "piece", "late"):
            probe.do(f"set {name} 1 4096")  # on card 1 now
        assert CONTEXT + GIB + 384 * MIB == box.physical(1) == box.used(1)
        assert box.peak(1) <= 2 * GIB
        assert box.physical(0) == CONTEXT
        for name in ("early", "piece", "late"):
            probe.do(f"free {name}")
        probe.do("ctx sync")
        assert [box.used(card) for card in (0, 1)] == [CONTEXT, CONTEXT]


def test_a_context_that_managed_memory_could_follow_needs_room_for_it(tmp_path: Path) -> None:
    with Container(tmp_path, (4 * GIB, GIB)) as box:
        probe = box.started()
        probe.do(f"take managed piece {768 * MIB}")
        probe.refused("device 1")
        assert box.used(1) == box.physical(1) == 0
        probe.do("free piece")
        probe.do("device 1")


def test_memory_from_anothers_default_pool_counts_on_that_card(tmp_path: Path) -> None:
    with Container(tmp_path, (4 * GIB, GIB)) as box:
        probe = box.started()
        probe.do("poolof second devicedefault pinned device 1")
        assert probe.fill("pool:second", 32 * MIB).code == OUT_OF_MEMORY
        assert GIB - SLACK <= box.physical(1) <= box.used(1) <= GIB
        assert box.used(0) == CONTEXT


def test_peers_and_access_between_granted_cards(tmp_path: Path) -> None:
    with Container(tmp_path, (4 * GIB, 4 * GIB)) as box:
        probe = box.started()
        probe.do("ctx create other 1")
        probe.do("ctx pop")
        probe.do("device 0")
        probe.do("peer other")
        probe.do(f"vmm create handle {16 * MIB}")
        probe.do("vmm map range handle")
        probe.do("access range device 1")
        probe.do("poolat own pinned device 0")
        probe.do("poolaccess own device 1")
        probe.do("multicast 1")
        assert [box.used(card) for card in (0, 1)] == [CONTEXT + 16 * MIB, CONTEXT]


def test_two_cards_of_which_one_has_no_limit(tmp_path: Path) -> None:
    with Container(tmp_path, (0, GIB), node=Node(tmp_path / "node", cards(2))) as box:
        probe = box.started()
        probe.do(f"take managed piece {8 * GIB}")
        probe.refused("prefetch piece v2 device 1")
        probe.do("prefetch piece v2 device 0")


@pytest.mark.parametrize("kind", ["alloc", "managed", "array2d"])
@pytest.mark.parametrize(
    "end",
    [
        ("green destroy part", "release 0"),
        ("release 0", "green destroy part"),
        ("reset 0",),
    ],
)
def test_memory_of_a_green_context_ends_with_the_primary_context(
    tmp_path: Path, kind: str, end: tuple[str, ...]
) -> None:
    with Container(tmp_path, (2 * GIB,)) as box:
        probe = box.started()
        probe.do("green create part 0")
        probe.do("green use part")
        probe.do(f"take {kind} piece {64 * MIB}")
        for step in end:
            assert box.used() == box.physical() > CONTEXT + 64 * MIB
            probe.do(step)
        assert box.used() == box.physical() == 0


def test_a_refused_context_leaves_no_charge_of_what_would_have_followed(tmp_path: Path) -> None:
    with Container(tmp_path, (4 * GIB, GIB)) as box:
        probe = box.started()
        probe.do(f"take managed piece {128 * MIB}")
        for name, size in (("small", 128 * MIB), ("large", 512 * MIB)):
            probe.do(f"poolat {name} managed none 0")
            probe.do(f"take pool:{name} of-{name} {size}")
        probe.refused("device 1")
        assert box.used(1) == box.physical(1) == 0


def test_a_failed_prefetch_leaves_no_charge(tmp_path: Path) -> None:
    with Container(tmp_path, (4 * GIB, GIB)) as box:
        probe = box.started()
        probe.do(f"take managed piece {128 * MIB}")
        probe.do("poolat own managed none 0")
        probe.do(f"take pool:own pooled {128 * MIB}")
        box.node.faults("cuMemPrefetchAsync_v2 1+ 1")
        for name in ("piece", "pooled"):
            assert probe.ask(f"prefetch {name} v2 device 1").code == 1
        assert box.used(1) == box.physical(1) == 0


def test_freed_memory_of_an_unknown_place_hides_no_overhead(tmp_path: Path) -> None:
    """It was on the first card; on the second, it stood for the context in our sum."""
    with Container(tmp_path, (4 * GIB, GIB)) as box:
        probe = box.started()
        probe.do(f"vmmat one {500 * MIB} {LOCALITY_DOMAIN} 0")
        probe.do("device 1")
        probe.do("vmm release one")
        assert box.used(1) == box.physical(1) == CONTEXT
        probe.refused(f"take alloc large {600 * MIB}")
        probe.do("release 1")
        probe.do("device 0")
        probe.do(f"poolat own pinned {LOCALITY_DOMAIN} 0")
        probe.do(f"take pool:own piece {448 * MIB}")
        probe.do("device 1")
        probe.do("free piece")
        probe.do("pool trim own 0")
        probe.refused(f"take alloc large {600 * MIB}")
        assert box.peak(1) <= GIB


def test_a_card_without_a_context_is_measured(tmp_path: Path) -> None:
    """Pieces of destroyed pools count there, though this process has no context on the card."""
    with Container(tmp_path, (4 * GIB, GIB)) as box:
        probe = box.started()
        for number in range(3):
            probe.do(f"poolat pool{number} pinned device 1")
            probe.do(f"take pool:pool{number} piece{number} {320 * MIB}")
            probe.do(f"pool destroy pool{number}")
        assert box.used(1) == box.physical(1) == 960 * MIB
        probe.do("poolat pool3 pinned device 1")
        probe.refused(f"take pool:pool3 piece3 {320 * MIB}")
        assert box.peak(1) <= GIB


def test_a_managed_pool_goes_with_the_last_context_of_its_card(tmp_path: Path) -> None:
    with Container(tmp_path, (4 * GIB, 4 * GIB)) as box:
        probe = box.started()
        probe.do("device 1")
        probe.do("poolat own managed device 0")
        probe.do(f"take pool:own piece {128 * MIB}")
        probe.do("release 0")
        assert box.used(0) == box.physical(0) == 0
        assert box.used(1) == box.physical(1) == CONTEXT
