"""What lists and events mean, judged without any I/O."""

from __future__ import annotations

from typing import Any

import pytest

from hami.kube import store
from hami.kube.store import Disorder, Mirror
from hami.wire import codec, errors, objects
from tests.unit.kube.following import Held, decode


def body(uid: str | None, version: int, *, wanted: bool = True) -> bytes:
    annotations = b'{"wanted": "yes"}' if wanted else b"{}"
    named = b'"uid": "%s", ' % uid.encode() if uid else b""
    return b'{"metadata": {%s"name": "p", "resourceVersion": "%d", "annotations": %s}}' % (
        named,
        version,
        annotations,
    )


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def mirror(held: Held) -> Mirror[objects.Pod]:
    made: Mirror[objects.Pod] = Mirror(decode=decode, sink=held, kind="pods")
    made.begin_list()
    made.listed(body("a", 3))
    made.listed(body("b", 5))
    made.end_list(10)
    return made


def test_a_list_that_names_somebody_unreadable_removes_nobody(
    mirror: Mirror[objects.Pod], held: Held
) -> None:
    for broken in (body("", 12), b"null", b"{}", b'{"metadata": {"uid": "x"}}', b"\xff"):
        mirror.begin_list()
        mirror.listed(body("a", 3))
        mirror.listed(broken)
        mirror.end_list(20)
        assert set(held.pods) == {"a", "b"}
        comparison = mirror.begin_comparison()
        mirror.compare(comparison, [body("a", 3), broken])
        comparison.version = 30
        assert mirror.end_comparison(comparison)
        assert set(held.pods) == {"a", "b"}
    mirror.begin_list()
    mirror.listed(body("a", 3))
    mirror.end_list(40)
    assert set(held.pods) == {"a"}


def test_an_object_without_change_is_not_put_again(mirror: Mirror[objects.Pod], held: Held) -> None:
    before = len(held.calls)
    mirror.begin_list()
    mirror.listed(body("a", 3))
    mirror.listed(body("b", 7))
    mirror.end_list(20)
    assert held.calls[before:] == [("put", "p"), ("retain", 2)]


def test_versions_are_numbers_and_not_texts(mirror: Mirror[objects.Pod], held: Held) -> None:
    mirror.event(body("a", 99), deleted=False)
    mirror.event(body("a", 100), deleted=False)
    assert held.versions["a"] == "100"


def test_an_event_from_before_the_streams_newest_is_disorder(
    mirror: Mirror[objects.Pod],
) -> None:
    mirror.event(body("a", 20), deleted=False)
    with pytest.raises(Disorder):
        mirror.event(body("b", 19), deleted=False)


def test_a_bookmark_from_before_the_streams_newest_is_disorder(
    mirror: Mirror[objects.Pod],
) -> None:
    mirror.bookmark(20)
    assert mirror.version == 20
    with pytest.raises(Disorder):
        mirror.bookmark(19)


def test_an_old_event_again_is_a_duplicate_even_in_the_next_stream(
    mirror: Mirror[objects.Pod], held: Held
) -> None:
    mirror.event(body("a", 20), deleted=False)
    mirror.event(body("a", 21), deleted=True)
    mirror.begin_stream()
    mirror.event(body("a", 20), deleted=False)
    assert set(held.pods) == {"b"}
    assert mirror.version == 21


def test_a_list_beside_a_stream_counts_for_what_is_behind_it(
    mirror: Mirror[objects.Pod], held: Held
) -> None:
    comparison = mirror.begin_comparison()
    mirror.compare(comparison, [body("a", 15), body("c", 16), body("d", 2, wanted=False)])
    comparison.version = 18
    assert mirror.end_comparison(comparison)
    assert held.versions == {"a": "15", "c": "16"}
    assert mirror.stats.repaired == 3
    # The stream is late: all of this is older than the list.
    mirror.event(body("b", 11), deleted=False)
    mirror.event(body("a", 12), deleted=False)
    mirror.event(body("e", 13), deleted=False)
    assert held.versions == {"a": "15", "c": "16"}
    mirror.event(body("e", 19), deleted=False)
    assert held.versions["e"] == "19"
    assert mirror.version == 19


def test_a_list_beside_a_stream_does_not_bring_back_what_went_meanwhile(
    mirror: Mirror[objects.Pod], held: Held
) -> None:
    comparison = mirror.begin_comparison()
    mirror.event(body("c", 12), deleted=False)
    mirror.event(body("a", 13), deleted=True)
    mirror.event(body("b", 14, wanted=False), deleted=False)
    mirror.compare(comparison, [body("a", 3), body("b", 5)])
    comparison.version = 11
    assert mirror.end_comparison(comparison)
    assert held.versions == {"c": "12"}
    assert mirror.stats.repaired == 0


def test_a_list_beside_a_stream_is_void_after_a_full_list(
    mirror: Mirror[objects.Pod], held: Held
) -> None:
    comparison = mirror.begin_comparison()
    mirror.compare(comparison, [])
    comparison.version = 30
    mirror.begin_list()
    assert not mirror.end_comparison(comparison)
    mirror.listed(body("a", 3))
    mirror.end_list(12)
    assert not mirror.end_comparison(comparison)
    assert set(held.pods) == {"a"}


def test_a_full_list_is_believed_even_if_it_is_older(
    mirror: Mirror[objects.Pod], held: Held
) -> None:
    mirror.event(body("a", 50), deleted=False)
    mirror.begin_list()
    mirror.listed(body("a", 4))
    mirror.end_list(6)
    assert held.versions == {"a": "4"}
    assert mirror.version == 6
    mirror.event(body("a", 7), deleted=False)
    assert held.versions == {"a": "7"}


@pytest.mark.parametrize("text", [None, "", "-1", "1e3", "٣", "1" * 21, " 1"])
def test_a_version_is_a_whole_number(text: str | None) -> None:
    with pytest.raises(errors.WireError):
        store.raw_version(text)


def test_bytes_are_looked_at_without_decoding_them() -> None:
    line = codec.encode({"type": "ADDED", "object": {"metadata": {"uid": "u"}}})
    assert store.decode_event(line) == ("ADDED", b'{"metadata":{"uid":"u"}}')
    assert store.meta(body("u", 7)) == ("u", 7)
    needles: list[bytes] = [b"nvidia.com/gpu", b"hami.io/"]
    given: dict[str, Any] = {"limits": {"nvidia.com/gpumem": 1}}
    assert store.mentions(codec.encode(given), needles)
    assert not store.mentions(b"{}", needles)
