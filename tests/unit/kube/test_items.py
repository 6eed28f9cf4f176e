"""Items of a list, found in chunks, against a decoder of the whole."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator

import hypothesis
import pytest
from hypothesis import strategies as st

from hami.kube import errors, listwatch, paths
from hami.kube.client import Client
from hami.kube.items import ItemSplitter
from hami.wire import codec
from hami.wire import errors as wire_errors
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import following, pod, truth, until

TEXTS = st.text(alphabet='a"\\{}[],: \u00e9\u2028\U0001f600\n\x1f', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
METADATA = st.fixed_dictionaries(
    {"resourceVersion": st.just("17")}, optional={"continue": TEXTS, "other": VALUES}
)
KEYS = TEXTS.filter(lambda key: key not in {"items", "metadata"})


@st.composite
def lists(draw: st.DrawFn) -> bytes:
    """Write a list: any members in any order, any spaces, any escapes."""
    members: dict[str, object] = draw(st.dictionaries(KEYS, VALUES, max_size=3))
    members["metadata"] = draw(METADATA)
    if draw(st.booleans()):
        members["items"] = draw(st.none() | st.lists(VALUES, max_size=5))
    order = draw(st.permutations(sorted(members)))
    text = json.dumps(
        {key: members[key] for key in order},
        indent=draw(st.sampled_from([None, 1])),
        separators=draw(st.sampled_from([None, (",", ":"), (" , ", " : ")])),
        ensure_ascii=draw(st.booleans()),
    )
    return draw(st.sampled_from(["", " ", "\n"])).join(["", text, ""]).encode()


def split(whole: bytes, cuts: list[int]) -> tuple[list[bytes], bytes]:
    """Feed the bytes in pieces; return all items and the envelope."""
    places = sorted({0, *(min(cut, len(whole)) for cut in cuts), len(whole)})
    splitter = ItemSplitter()
    found: list[bytes] = []
    for begin, end in itertools.pairwise(places):
        found += splitter.feed(whole[begin:end])
    rest, envelope = splitter.end()
    return [*found, *rest], envelope


@hypothesis.given(lists(), st.lists(st.integers(0, 400), max_size=20))
def test_a_list_in_chunks_has_the_items_and_the_metadata_of_the_whole(
    whole: bytes, cuts: list[int]
) -> None:
    expected = json.loads(whole)
    found, envelope = split(whole, cuts)
    assert [json.loads(item) for item in found] == (expected.get("items") or [])
    rest = {**expected, "items": []} if expected.get("items") else expected
    assert json.loads(envelope) == rest


@hypothesis.given(lists())
def test_a_list_byte_by_byte_is_the_same_list(whole: bytes) -> None:
    assert split(whole, list(range(len(whole)))) == split(whole, [])


@hypothesis.given(lists(), st.data())
def test_a_list_that_is_cut_or_damaged_is_an_error_where_it_is_one_for_the_whole(
    whole: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    damaged = data.draw(
        st.sampled_from([whole[:at], whole[:at] + b"]" + whole[at:], whole + b"{}", b"[1]", b""])
    )
    try:
        expected = codec.decode(damaged, dict[str, object], what="list")
    except wire_errors.WireError:
        with pytest.raises(wire_errors.WireError):
            split(damaged, data.draw(st.lists(st.integers(0, 400), max_size=5)))
    else:
        found, _ = split(damaged, data.draw(st.lists(st.integers(0, 400), max_size=5)))
        assert [json.loads(item) for item in found] == (expected.get("items") or [])


def test_items_come_out_while_the_list_arrives_and_are_not_kept() -> None:
    splitter = ItemSplitter()
    item = b'{"metadata":{"name":"a","annotations":{"k":"}],{"}}}'
    splitter.feed(b'{"metadata":{"resourceVersion":"1"},"items":[')
    for number in range(50):
        # The comma proves the end of the item before.
        assert len(splitter.feed((b"," if number else b"") + item)) == (1 if number else 0)
    assert splitter.feed(b"]}") == []  # too few bytes for another look
    items, envelope = splitter.end()
    assert items == [item]
    assert envelope == b'{"metadata":{"resourceVersion":"1"},"items":[]}'


@pytest.mark.parametrize(
    "text",
    [
        b'{"items":[1],"items":[2]}',
        b'{"items":[1 2]}',
        b'{"items":[1],}',
        b'{"items":[,]}',
        b'{"a":1 "items":[]}',
        b'{"items":[%s]}' % (b"[" * 100_000),
    ],
    ids=["twice", "no comma", "trailing comma", "no item", "no comma between keys", "too deep"],
)
def test_what_is_no_list_is_an_error(text: bytes) -> None:
    with pytest.raises(wire_errors.WireError):
        split(text, [])


def test_an_item_beyond_all_measure_is_an_error() -> None:
    splitter = ItemSplitter(limit=100)
    splitter.feed(b'{"items":["')
    with pytest.raises(errors.StreamBroken, match="more than 100 bytes"):
        splitter.feed(b"x" * 100)


@pytest.mark.parametrize("splits", [True, False], ids=["split", "whole"])
async def test_a_server_that_ignores_the_limit_is_listed_all_the_same(
    api: ScriptedApi, client: Client, monkeypatch: pytest.MonkeyPatch, splits: bool
) -> None:
    """Without the decoder's positions lists are decoded whole."""
    monkeypatch.setattr(codec, "finds_lengths", lambda: splits)
    for number in range(listwatch.PAGE + 1):
        api.put(pod(f"p{number}"))
    api.refuse_watch_list()
    async with following(client, page_size=10**6) as (informer, held):
        await until(lambda: informer.synced)
        assert held.versions == truth(api)


async def test_objects_of_a_list_are_taken_before_the_rest_of_it_has_arrived(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may send all pods at once: hundreds of megabytes would be in memory."""
    arrived = []

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"metadata":{"resourceVersion":"7"},"items":['
        for number in range(3):
            arrived.append(number)
            yield b'{"metadata":{"name":"p%d"}},' % number
        yield b"{}]}"

    @contextlib.asynccontextmanager
    async def chunks(*_: object, **__: object) -> AsyncIterator[AsyncIterator[bytes]]:
        yield pieces()

    monkeypatch.setattr(client, "chunks", chunks)
    taken = [
        (len(page.items), len(arrived))
        async for page in listwatch.pages(client, paths.pods(), {})
        if page.items
    ]
    assert taken == [(1, 1), (1, 2), (1, 3), (1, 3)]


@pytest.mark.parametrize("splits", [True, False], ids=["split", "whole"])
async def test_the_version_of_a_list_is_read_without_the_list(
    api: ScriptedApi, client: Client, monkeypatch: pytest.MonkeyPatch, splits: bool
) -> None:
    monkeypatch.setattr(codec, "finds_lengths", lambda: splits)
    assert await listwatch.list_version(client, paths.pods()) == api.store.version
    api.put(pod("a"))
    assert await listwatch.list_version(client, paths.pods()) == api.store.version


def test_the_metadata_before_the_items_are_known_when_the_items_begin() -> None:
    splitter = ItemSplitter()
    splitter.feed(b'{"metadata":{"resourceVersion":"12"}')
    assert splitter.head() == b""
    splitter.feed(b',"items":[{"metadata":{}},{"meta')
    assert json.loads(splitter.head()) == {"metadata": {"resourceVersion": "12"}, "items": []}


def test_the_installed_decoder_reports_where_a_value_ends() -> None:
    assert codec.finds_lengths()
