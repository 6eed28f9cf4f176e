"""Scores of pairs of cards: HAMi's numbers, the same in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.agent.cards.inventory import pair_scores
from hami.node.nvml_cards import NVSWITCH, CardLinks
from hami.wire import node_register as wire


def bus(name: str) -> str:
    return f"0000:{name}:00.0"


def card(name: str, ancestors: dict[str, int], nvlinks: tuple[str, ...] = ()) -> CardLinks:
    return CardLinks(
        uuid=name,
        bus_id=bus(name),
        ancestors=ancestors,
        nvlinks=tuple(end if end == NVSWITCH else bus(end) for end in nvlinks),
    )


def two(
    level: int = 50,
    there: tuple[str, ...] = (),
    back: tuple[str, ...] = (),
    level_back: int | None = None,
) -> tuple[CardLinks, ...]:
    backwards = level if level_back is None else level_back
    return card("a", {"b": level}, there), card("b", {"a": backwards}, back)


def score(cards: tuple[CardLinks, ...]) -> tuple[int, tuple[str, ...]]:
    scores, notes = pair_scores(cards)
    assert scores[0].score["b"] == scores[1].score["a"]
    return scores[0].score["b"], notes


@pytest.mark.parametrize(
    ("level", "expected"), [(0, 60), (10, 50), (20, 40), (30, 30), (40, 20), (50, 10)]
)
def test_pcie_counts_by_what_is_shared(level: int, expected: int) -> None:
    assert score(two(level)) == (expected, ())


def test_nvlinks_count_a_hundred_each() -> None:
    assert score(two(10, ("b",) * 4, ("a",) * 4)) == (450, ())


def test_only_links_to_the_other_card_count() -> None:
    cards = (
        card("a", {"b": 10, "c": 10}, ("b", "b", "c")),
        card("b", {"a": 10, "c": 10}, ("a", "a")),
        card("c", {"a": 10, "b": 10}, ("a",)),
    )
    scores, notes = pair_scores(cards)
    assert [each.score for each in scores] == [
        {"b": 250, "c": 150},
        {"a": 250, "c": 50},
        {"a": 150, "b": 50},
    ]
    assert notes == ()


def test_a_switch_joins_by_the_fewer_links() -> None:
    assert score(two(50, (NVSWITCH,) * 18, (NVSWITCH,) * 12)) == (1210, ())


def test_a_card_beside_a_switch_is_not_joined_by_it() -> None:
    assert score(two(50, (NVSWITCH,) * 6, ())) == (10, ())


def test_more_links_than_known_do_not_count() -> None:
    assert score(two(40, (NVSWITCH,) * 19, (NVSWITCH,) * 19)) == (20, ())


def test_a_link_that_one_end_does_not_see_makes_the_pair_zero() -> None:
    found, (note,) = score(two(10, ("b",), ()))
    assert found == 0
    assert "GPU a" in note
    assert "GPU b" in note


def test_a_link_that_is_down_at_one_end_is_down() -> None:
    found, (note,) = score(two(10, ("b",) * 4, ("a",) * 3))
    assert found == 350
    assert "450" in note


def test_a_card_alone_has_no_scores() -> None:
    assert pair_scores([card("a", {})]) == ((wire.PairScores(uuid="a", score={}),), ())


NAMES = ["a", "b", "c", "d"]
ENDS = st.lists(st.sampled_from([*NAMES, NVSWITCH]), max_size=24).map(tuple)
CARDS = st.tuples(
    *(
        st.builds(
            card,
            st.just(name),
            st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0, 10, 20, 30, 40, 50, 99])),
            ENDS,
        )
        for name in NAMES
    )
)


@given(CARDS)
def test_whatever_cards_report_scores_are_symmetric_and_can_be_sent(
    cards: tuple[CardLinks, ...],
) -> None:
    scores, _ = pair_scores(cards)
    table = {each.uuid: each.score for each in scores}
    assert list(table) == NAMES
    for one in NAMES:
        assert list(table[one]) == [name for name in NAMES if name != one]
        assert all(table[other][one] == number for other, number in table[one].items())
    assert wire.decode_scores(wire.encode_scores(scores)) == scores
