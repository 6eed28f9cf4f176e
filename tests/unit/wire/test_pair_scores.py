"""Link scores between the cards of a node."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import errors, pair_scores

TEXT = '[{"uuid":"GPU-a","score":{"GPU-b":100,"GPU-c":20}},{"uuid":"GPU-b","score":{"GPU-a":100}}]'


def test_scores_are_read_and_written_byte_for_byte() -> None:
    cards = pair_scores.decode(TEXT)
    assert cards[0] == pair_scores.PairScores(uuid="GPU-a", score={"GPU-b": 100, "GPU-c": 20})
    assert pair_scores.encode(cards) == TEXT


def test_scores_are_written_in_the_order_of_their_cards() -> None:
    card = pair_scores.PairScores(uuid="a", score={"c": -1, "b": 0})
    assert pair_scores.encode([card]) == '[{"uuid":"a","score":{"b":0,"c":-1}}]'


@pytest.mark.parametrize("score", ["", ',"score":null', ',"score":{}'])
def test_a_card_may_have_no_scores(score: str) -> None:
    text = f'[{{"uuid":"GPU-a"{score}}}]'
    assert pair_scores.decode(text) == (pair_scores.PairScores(uuid="GPU-a", score={}),)


def test_a_null_score_is_zero() -> None:
    assert pair_scores.decode('[{"uuid":"a","score":{"b":null}}]')[0].score == {"b": 0}


REJECTED = {
    "no JSON": ("GPU-a", "does not decode"),
    "null": ("null", "does not decode"),
    "object": ("{}", "does not decode"),
    "null entry": ("[null]", "must name its card"),
    "no uuid": ('[{"score":{}}]', "must name its card"),
    "twice": ('[{"uuid":"a"},{"uuid":"a"}]', "twice"),
    "text score": ('[{"uuid":"a","score":{"b":"100"}}]', "does not decode"),
    "fraction": ('[{"uuid":"a","score":{"b":1.5}}]', "does not decode"),
    "33 bits": ('[{"uuid":"a","score":{"b":4294967296}}]', "score of 'a' and 'b': 4294967296"),
    "list of scores": ('[{"uuid":"a","score":[1]}]', "does not decode"),
}


@pytest.mark.parametrize(("text", "rule"), REJECTED.values(), ids=REJECTED)
def test_malformed_scores_are_an_error(text: str, rule: str) -> None:
    with pytest.raises(errors.WireError, match=rule):
        pair_scores.decode(text)


UNWRITABLE: dict[str, tuple[list[pair_scores.PairScores], str]] = {
    "no uuid": ([pair_scores.PairScores("", {})], "must name its card"),
    "twice": ([pair_scores.PairScores("a", {}), pair_scores.PairScores("a", {})], "twice"),
    "33 bits": ([pair_scores.PairScores("a", {"b": 2**31})], "score of 'a' and 'b'"),
}


@pytest.mark.parametrize(("cards", "rule"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_could_not_be_read_back_is_not_written(
    cards: list[pair_scores.PairScores], rule: str
) -> None:
    with pytest.raises(errors.WireError, match=rule):
        pair_scores.encode(cards)


_WORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
_SCORES = st.dictionaries(_WORD, st.integers(-(2**31) + 1, 2**31 - 1), max_size=3)


@settings(deadline=None)
@given(
    st.lists(
        st.builds(pair_scores.PairScores, uuid=_WORD, score=_SCORES),
        max_size=3,
        unique_by=lambda card: card.uuid,
    )
)
def test_any_scores_survive(cards: list[pair_scores.PairScores]) -> None:
    assert pair_scores.decode(pair_scores.encode(cards)) == tuple(cards)
