"""Lines out of chunks."""

from __future__ import annotations

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from hami.kube import errors, transport


@hypothesis.given(
    st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=10),
    st.lists(st.integers(0, 200), max_size=10),
)
def test_lines_are_the_same_however_the_bytes_are_cut(texts: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(text + b"\n" for text in texts)
    places = sorted({0, *(min(cut, len(whole)) for cut in cuts), len(whole)})
    splitter = transport.Splitter()
    found: list[bytes] = []
    for begin, end in itertools.pairwise(places):
        found += splitter.feed(whole[begin:end])
    assert found == [text for text in texts if text]
    assert splitter.pending == 0


def test_what_has_no_newline_is_no_line() -> None:
    splitter = transport.Splitter()
    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.pending == 2


def test_a_long_line_in_many_chunks_is_looked_at_once() -> None:
    """A quadratic splitter would need minutes for this."""
    splitter = transport.Splitter()
    for _ in range(60_000):
        assert splitter.feed(b"x" * 100) == []
    (line,) = splitter.feed(b"\n")
    assert len(line) == 6_000_000


@pytest.mark.parametrize("chunks", [[b"x" * 11], [b"x" * 6, b"x" * 6], [b"x" * 11 + b"\n"]])
def test_a_line_has_a_limit(chunks: list[bytes]) -> None:
    splitter = transport.Splitter(limit=10)
    *first, last = chunks
    for chunk in first:
        splitter.feed(chunk)
    with pytest.raises(errors.StreamBroken, match="10 bytes"):
        splitter.feed(last)
