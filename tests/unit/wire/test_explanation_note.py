"""Explanations kept on a pod: read leniently, written within their limit."""

from __future__ import annotations

import contextlib

import hypothesis
import pytest
from hypothesis import strategies as st

from hami.wire import errors, explanation_note
from hami.wire.explanation_note import Near, Note, ReasonCount

_WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_AMOUNTS = st.integers(0, 2**31 - 1)
_NEAR = st.builds(
    Near,
    node=_WORDS,
    container=_WORDS,
    memory_short=st.none() | _AMOUNTS,
    cores_short=st.none() | _AMOUNTS,
    cards_missing=_AMOUNTS,
)
_NOTES = st.builds(
    Note,
    v=st.just(1),
    at=st.just("2026-02-03T04:05:06Z"),
    summary=st.text(st.characters(exclude_categories=["Cs"]), max_size=400),
    fitting=_AMOUNTS,
    reasons=st.dictionaries(_WORDS, st.builds(ReasonCount, _AMOUNTS, _AMOUNTS), max_size=8),
    near=st.lists(_NEAR, max_size=8).map(tuple),
)

SAMPLE = Note(
    at="2026-02-03T04:05:06Z",
    summary="no node fits: 3 nodes CardInsufficientMemory",
    reasons={"CardInsufficientMemory": ReasonCount(3, 24), "CardNotHealth": ReasonCount(1, 1)},
    near=(Near("node-2", "main", memory_short=2048, cards_missing=1), Near("node-3", "main")),
)


def test_the_bytes_are_those_that_the_scheduler_and_its_readers_agreed_on() -> None:
    note = Note(
        at="2026-02-03T04:05:06Z",
        summary="no node fits",
        reasons={"CardInsufficientMemory": ReasonCount(3, 24)},
        near=(Near("node-2", "main", memory_short=2048, cards_missing=1),),
    )
    assert explanation_note.encode(note) == (
        '{"v":1,"at":"2026-02-03T04:05:06Z","summary":"no node fits","fitting":0,'
        '"reasons":{"CardInsufficientMemory":{"nodes":3,"cards":24}},'
        '"near":[{"node":"node-2","container":"main","memory_short":2048,"cards_missing":1}]}'
    )


@hypothesis.given(_NOTES)
def test_what_fits_is_read_back_as_it_was(note: Note) -> None:
    assert explanation_note.decode(explanation_note.encode(note, limit=10**6)) == note


@hypothesis.given(_NOTES, st.integers(100, 1500))
def test_it_never_exceeds_its_limit_and_details_go_before_the_sentence(
    note: Note, limit: int
) -> None:
    text = explanation_note.encode(note, limit)
    assert len(text.encode()) <= limit
    kept = explanation_note.decode(text)
    assert kept.near == note.near[: len(kept.near)]
    assert kept.reasons.items() <= note.reasons.items()
    assert not kept.reasons or kept.reasons == note.reasons or not kept.near
    if kept.summary != note.summary:
        assert not kept.near
        assert not kept.reasons
        assert kept.summary == "" or note.summary.startswith(kept.summary.removesuffix("…"))
    assert (kept.v, kept.at, kept.fitting) == (note.v, note.at, note.fitting)


def test_as_much_as_fits_is_kept() -> None:
    whole = len(explanation_note.encode(SAMPLE).encode())
    without_last = explanation_note.decode(explanation_note.encode(SAMPLE, whole - 1))
    assert without_last.near == SAMPLE.near[:1]
    assert without_last.reasons == SAMPLE.reasons


def test_the_reason_met_on_most_nodes_is_kept_longest() -> None:
    bare = Note(at=SAMPLE.at, summary=SAMPLE.summary, reasons=SAMPLE.reasons)
    limit = len(explanation_note.encode(bare).encode()) - 1
    kept = explanation_note.decode(explanation_note.encode(SAMPLE, limit))
    assert list(kept.reasons) == ["CardInsufficientMemory"]


def test_a_cut_sentence_shows_that_it_was_cut() -> None:
    kept = explanation_note.decode(explanation_note.encode(Note(summary="x" * 5000)))
    assert kept.summary.endswith("x…")
    assert 900 < len(kept.summary) < 1024


def test_a_limit_that_nothing_fits_into_is_an_error() -> None:
    with pytest.raises(errors.WireError, match="does not fit into 20 bytes"):
        explanation_note.encode(SAMPLE, 20)


def test_unknown_fields_are_skipped_and_missing_ones_empty() -> None:
    assert explanation_note.decode(
        '{"v":2,"summary":"s","new":[1],"near":[{"node":"n","x":1}]}'
    ) == (Note(v=2, summary="s", near=(Near("n"),)))
    assert explanation_note.decode("{}") == Note()


@pytest.mark.parametrize("text", ["", "no fit", "[]", '{"near":[{}]}', '{"reasons":7}'])
def test_what_is_no_note_is_a_wire_error(text: str) -> None:
    with pytest.raises(errors.WireError, match="explanation"):
        explanation_note.decode(text)


@hypothesis.given(st.text())
def test_whatever_the_text_only_a_wire_error_is_raised(text: str) -> None:
    with contextlib.suppress(errors.WireError):
        explanation_note.decode(text)
