"""Link scores between the cards of a node."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import errors, node_register

TEXT = '[{"uuid":"GPU-a","score":{"GPU-b":100,"GPU-c":20}},{"uuid":"GPU-b","score":{"GPU-a":100}}]'


def test_scores_are_read_and_written_byte_for_byte() -> None:
    cards = node_register.decode_scores(TEXT)
    assert cards[0] == node_register.PairScores(uuid="GPU-a", score={"GPU-b": 100, "GPU-c": 20})
    assert node_register.encode_scores(cards) == TEXT


def test_scores_are_written_in_the_order_of_their_cards() -> None:
    card = node_register.PairScores(uuid="a", score={"c": -1, "b": 0})
    assert node_register.encode_scores([card]) == '[{"uuid":"a","score":{"b":0,"c":-1}}]'


@pytest.mark.parametrize("score", ["", ',"score":null', ',"score":{}'])
def test_a_card_may_have_no_scores(score: str) -> None:
    text = f'[{{"uuid":"GPU-a"{score}}}]'
    assert node_register.decode_scores(text) == (node_register.PairScores(uuid="GPU-a", score={}),)


def test_a_null_score_is_zero() -> None:
    assert node_register.decode_scores('[{"uuid":"a","score":{"b":null}}]')[0].score == {"b": 0}


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
        node_register.decode_scores(text)


UNWRITABLE: dict[str, tuple[list[node_register.PairScores], str]] = {
    "no uuid": ([node_register.PairScores("", {})], "must name its card"),
    "twice": ([node_register.PairScores("a", {}), node_register.PairScores("a", {})], "twice"),
    "33 bits": ([node_register.PairScores("a", {"b": 2**31})], "score of 'a' and 'b'"),
}


@pytest.mark.parametrize(("cards", "rule"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_could_not_be_read_back_is_not_written(
    cards: list[node_register.PairScores], rule: str
) -> None:
    with pytest.raises(errors.WireError, match=rule):
        node_register.encode_scores(cards)


_WORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
_SCORES = st.dictionaries(_WORD, st.integers(-(2**31) + 1, 2**31 - 1), max_size=3)


@settings(deadline=None)
@given(
    st.lists(
        st.builds(node_register.PairScores, uuid=_WORD, score=_SCORES),
        max_size=3,
        unique_by=lambda card: card.uuid,
    )
)
def test_any_scores_survive(cards: list[node_register.PairScores]) -> None:
    assert node_register.decode_scores(node_register.encode_scores(cards)) == tuple(cards)
