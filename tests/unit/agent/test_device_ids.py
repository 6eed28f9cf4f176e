"""Ids are tickets: who holds one, and who may still get one."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hami.agent.cards import device_ids
from hami.agent.cards.device_ids import ListedDevice
from hami.wire.node_register import RegisteredCard
from tests.unit.agent.node_cards import uuid

A, B, C = uuid(10), uuid(11), uuid(12)


def device(name: str, **changes: Any) -> RegisteredCard:
    return RegisteredCard(**{"id": name, "count": 2, "health": True, **changes})


def states(listing: tuple[ListedDevice, ...]) -> dict[str, bool]:
    return {listed.id: listed.healthy for listed in listing}


def test_a_card_has_an_id_for_each_share() -> None:
    listing = device_ids.listed([device(A), device(B, count=1)], {}, {}, numa={})
    assert listing == (
        ListedDevice(f"{A}-0", healthy=True),
        ListedDevice(f"{A}-1", healthy=True),
        ListedDevice(f"{B}-0", healthy=True),
    )


def test_ids_of_an_ill_card_leave() -> None:
    listing = device_ids.listed([device(A, health=False), device(B)], {}, {}, numa={})
    assert states(listing) == {f"{A}-0": False, f"{A}-1": False, f"{B}-0": True, f"{B}-1": True}


def test_a_held_id_is_as_healthy_as_the_cards_behind_it() -> None:
    """Here kubelet gave ids named after one card to containers on the other, and it falls ill."""
    held = {f"{A}-0": frozenset([B]), f"{B}-0": frozenset([A])}
    listing = device_ids.listed([device(A), device(B, health=False)], held, {A: 1, B: 1}, numa={})
    # A has one place left: its own free id stays, that of B goes.
    assert states(listing) == {f"{A}-0": False, f"{A}-1": True, f"{B}-0": True, f"{B}-1": False}


def test_an_id_behind_which_one_card_of_several_is_ill_is_ill() -> None:
    held = {f"{A}-0": frozenset([A, B]), f"{B}-0": frozenset([A, B])}
    listing = device_ids.listed([device(A), device(B, health=False)], held, {A: 1, B: 1}, numa={})
    assert states(listing)[f"{A}-0"] is False
    assert states(listing)[f"{B}-0"] is False


def test_free_ids_are_as_many_as_there_are_places() -> None:
    """Both containers are on A, but one of them has an id named after B."""
    held = {f"{A}-0": frozenset([A]), f"{B}-0": frozenset([A])}
    listing = device_ids.listed([device(A), device(B)], held, {A: 2}, numa={})
    # Two places on B, and two free ids: the one named after A is needed, too.
    assert states(listing) == {f"{A}-0": True, f"{A}-1": True, f"{B}-0": True, f"{B}-1": True}


def test_ids_named_after_ill_cards_are_the_last_to_be_used() -> None:
    held = {f"{B}-0": frozenset([A]), f"{B}-1": frozenset([A])}
    cards = [device(C, health=False), device(A, count=3), device(B)]
    listing = device_ids.listed(cards, held, {A: 2}, numa={})
    # Places: one on A, two on B; three free ids of A, none of B: no need of C's.
    assert {name for name, well in states(listing).items() if well and name not in held} == {
        f"{A}-0",
        f"{A}-1",
        f"{A}-2",
    }


def test_held_ids_stay_listed_when_their_cards_are_removed() -> None:
    held = {f"{A}-7": frozenset([B]), f"{C}-0": frozenset([C])}
    listing = device_ids.listed([device(A), device(B)], held, {B: 1}, numa={B: 0})
    assert listing[-2:] == (
        ListedDevice(f"{A}-7", healthy=True, numa=0),
        ListedDevice(f"{C}-0", healthy=False),
    )


def test_the_numa_node_is_listed_where_configured() -> None:
    cards = [device(A, count=1), device(B, count=3)]
    held = {f"{B}-0": frozenset([A]), f"{B}-1": frozenset([A, B])}
    listing = device_ids.listed(cards, held, {}, numa={A: 0, B: 1})
    assert {listed.id: listed.numa for listed in listing} == {
        f"{A}-0": 0,
        f"{B}-0": 0,  # what its container really has
        f"{B}-1": None,  # cards of two nodes
        f"{B}-2": 1,
    }
    assert {listed.numa for listed in device_ids.listed(cards, held, {}, numa={})} == {None}


def test_an_unknown_numa_node_is_not_node_zero() -> None:
    held = {f"{B}-0": frozenset([B]), f"{B}-1": frozenset([A, B])}
    listing = device_ids.listed([device(A, count=1), device(B, count=2)], held, {}, numa={A: 0})
    assert {listed.id: listed.numa for listed in listing} == {
        f"{A}-0": 0,
        f"{B}-0": None,
        f"{B}-1": None,
    }


CARDS = [uuid(number) for number in range(4)]


@hypothesis.given(
    st.lists(
        st.builds(device, st.sampled_from(CARDS), count=st.integers(0, 4), health=st.booleans()),
        unique_by=lambda card: card.id,
    ),
    st.dictionaries(
        st.builds("{}-{}".format, st.sampled_from(CARDS), st.integers(0, 5)),
        st.frozensets(st.sampled_from(CARDS), min_size=1, max_size=2),
    ),
    st.dictionaries(st.sampled_from(CARDS), st.integers(0, 6)),
)
def test_no_more_free_ids_than_places_and_no_held_id_is_lost(
    cards: list[RegisteredCard], held: dict[str, frozenset[str]], used: dict[str, int]
) -> None:
    listing = device_ids.listed(cards, held, used, numa={})
    found = states(listing)
    assert len(found) == len(listing)
    assert held.keys() <= found.keys()
    well = {card.id for card in cards if card.health}
    places = sum(max(card.count - used.get(card.id, 0), 0) for card in cards if card.health)
    free = [name for name in found if name not in held]
    assert sum(found[name] for name in free) == min(places, len(free))
    for name, behind in held.items():
        assert found[name] == (behind <= well)


@pytest.mark.parametrize(
    ("device_id", "card"),
    [
        (f"{A}-0", A),
        (f"{A}-12", A),
        (A, A),
        (f"{A}::3", A),
        (f"{A}-x", f"{A}-x"),
        (uuid(3, "MIG"), uuid(3, "MIG")),
        (f"{uuid(3, 'MIG')}-1", uuid(3, "MIG")),
        ("MIG-GPU-a-b-c-d-e/1/0", "MIG-GPU-a-b-c-d-e/1/0"),
        ("GPU-1", "GPU-1"),
        ("", ""),
    ],
)
def test_the_card_that_an_id_is_named_after(device_id: str, card: str) -> None:
    assert device_ids.physical_id(device_id) == card


def ids(card: str, *numbers: int) -> list[str]:
    return [f"{card}-{number}" for number in numbers]


@pytest.mark.parametrize(
    ("available", "must", "size", "wanted", "chosen"),
    [
        # One card, the lowest number.
        ([*ids(A, 0, 1), *ids(B, 10, 9, 2)], [], 1, [B], ids(B, 2)),
        # Two cards, in the order of the grant.
        ([*ids(A, 0, 1), *ids(B, 0)], [], 2, [B, A], [f"{B}-0", f"{A}-0"]),
        # Two shares of one card.
        ([*ids(A, 0, 1), *ids(B, 0)], [], 2, [A, A], ids(A, 0, 1)),
        # A required id is included, and counts for its card.
        ([*ids(A, 0, 1), *ids(B, 0)], ids(A, 1), 2, [A, B], [f"{A}-1", f"{B}-0"]),
        # Also where it is named after another card: then one card less can be chosen.
        ([*ids(A, 0), *ids(B, 0, 1)], ids(B, 1), 2, [A, A], [f"{B}-1", f"{A}-0"]),
        # No id of the card is free.
        (ids(A, 0, 1), [], 1, [B], []),
        (ids(A, 0), [], 2, [A, A], []),
        # A grant that is smaller than what is asked for.
        (ids(A, 0, 1), [], 2, [A], []),
        (ids(A, 0, 1), [], 1, [], []),
        # More than asked for must be in.
        (ids(A, 0, 1), ids(A, 0, 1), 1, [A], []),
    ],
)
def test_ids_that_suit_a_grant(
    available: list[str], must: list[str], size: int, wanted: list[str], chosen: list[str]
) -> None:
    assert device_ids.preferred(available, must, size, wanted) == tuple(chosen)
