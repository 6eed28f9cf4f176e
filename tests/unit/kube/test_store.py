"""Lists and events in the store, without any I/O."""

from __future__ import annotations

from typing import Any

import pytest

from hami.kube import listwatch
from hami.kube.store import DELETED_KEPT, Disorder, Store
from hami.wire import codec, errors, objects
from tests.unit.kube.following import Held, read


def body(uid: str | None, version: int, *, wanted: bool = True, name: str = "") -> bytes:
    """Make a pod whose name is its UID unless another one is given."""
    annotations = b'{"wanted": "yes"}' if wanted else b"{}"
    named = b'"uid": "%s", ' % uid.encode() if uid else b""
    return b'{"metadata": {%s"name": "%s", "resourceVersion": "%d", "annotations": %s}}' % (
        named,
        (name or uid or "p").encode(),
        version,
        annotations,
    )


@pytest.fixture
def held() -> Held:
    return Held()


def take_list(store: Store[objects.Pod], version: int, *bodies: bytes) -> None:
    store.begin_list()
    for each in bodies:
        store.listed(each)
    store.end_list(version)


def resync(store: Store[objects.Pod], version: int, *bodies: bytes) -> bool:
    """Resync with a list of this version; return whether it counted."""
    listing = store.begin_resync()
    store.compare(listing, bodies)
    listing.version = version
    return store.end_resync(listing)


@pytest.fixture
def store(held: Held) -> Store[objects.Pod]:
    made: Store[objects.Pod] = Store(read, kind="pods")
    made.add_handler(held.changed)
    take_list(made, 10, body("a", 3), body("b", 5))
    return made


def test_a_list_with_an_unreadable_object_deletes_nothing(
    store: Store[objects.Pod], held: Held
) -> None:
    for broken in (body("", 12), b"null", b"{}", b'{"metadata": {"uid": "x"}}', b"\xff"):
        store.begin_list()
        store.listed(body("a", 3))
        store.listed(broken)
        store.end_list(20)
        assert set(held.pods) == {"a", "b"}
        listing = store.begin_resync()
        store.compare(listing, [body("a", 3), broken])
        listing.version = 30
        assert store.end_resync(listing)
        assert set(held.pods) == {"a", "b"}
    store.begin_list()
    store.listed(body("a", 3))
    store.end_list(40)
    assert set(held.pods) == {"a"}


def test_an_object_without_change_is_not_put_again(store: Store[objects.Pod], held: Held) -> None:
    before = len(held.calls)
    store.begin_list()
    store.listed(body("a", 3))
    store.listed(body("b", 7))
    store.end_list(20)
    assert held.calls[before:] == [("update", "b")]


def test_versions_are_numbers_and_not_texts(store: Store[objects.Pod], held: Held) -> None:
    store.event(body("a", 99), deleted=False)
    store.event(body("a", 100), deleted=False)
    assert held.versions["a"] == "100"


def test_an_event_from_before_the_streams_newest_is_disorder(
    store: Store[objects.Pod],
) -> None:
    store.event(body("a", 20), deleted=False)
    with pytest.raises(Disorder):
        store.event(body("b", 19), deleted=False)


def test_a_bookmark_from_before_the_streams_newest_is_disorder(
    store: Store[objects.Pod],
) -> None:
    store.bookmark(20)
    assert store.version == 20
    with pytest.raises(Disorder):
        store.bookmark(19)


def test_an_old_event_again_is_a_duplicate_even_in_the_next_stream(
    store: Store[objects.Pod], held: Held
) -> None:
    store.event(body("a", 20), deleted=False)
    store.event(body("a", 21), deleted=True)
    store.begin_stream()
    store.event(body("a", 20), deleted=False)
    assert set(held.pods) == {"b"}
    assert store.version == 21


def test_a_list_beside_a_stream_counts_for_what_is_behind_it(
    store: Store[objects.Pod], held: Held
) -> None:
    listing = store.begin_resync()
    store.compare(listing, [body("a", 15), body("c", 16), body("d", 2, wanted=False)])
    listing.version = 18
    assert store.end_resync(listing)
    assert held.versions == {"a": "15", "c": "16"}
    assert store.stats.repaired == 3
    # The stream is late: all of this is older than the list.
    store.event(body("b", 11), deleted=False)
    store.event(body("a", 12), deleted=False)
    store.event(body("e", 13), deleted=False)
    assert held.versions == {"a": "15", "c": "16"}
    store.event(body("e", 19), deleted=False)
    assert held.versions["e"] == "19"
    assert store.version == 19


def test_a_list_beside_a_stream_does_not_bring_back_what_went_meanwhile(
    store: Store[objects.Pod], held: Held
) -> None:
    listing = store.begin_resync()
    store.event(body("c", 12), deleted=False)
    store.event(body("a", 13), deleted=True)
    store.event(body("b", 14, wanted=False), deleted=False)
    store.compare(listing, [body("a", 3), body("b", 5)])
    listing.version = 11
    assert store.end_resync(listing)
    assert held.versions == {"c": "12"}
    assert store.stats.repaired == 0


def test_a_list_beside_a_stream_is_void_after_a_full_list(
    store: Store[objects.Pod], held: Held
) -> None:
    listing = store.begin_resync()
    store.compare(listing, [])
    listing.version = 30
    store.begin_list()
    assert not store.end_resync(listing)
    store.listed(body("a", 3))
    store.end_list(12)
    assert not store.end_resync(listing)
    assert set(held.pods) == {"a"}


def test_a_full_list_is_believed_even_if_it_is_older(store: Store[objects.Pod], held: Held) -> None:
    store.event(body("a", 50), deleted=False)
    store.begin_list()
    store.listed(body("a", 4))
    store.end_list(6)
    assert held.versions == {"a": "4"}
    assert store.version == 6
    store.event(body("a", 7), deleted=False)
    assert held.versions == {"a": "7"}


@pytest.mark.parametrize("text", [None, "", "-1", "1e3", "٣", "1" * 21, " 1"])
def test_a_version_is_a_whole_number(text: str | None) -> None:
    with pytest.raises(errors.WireError):
        listwatch.version_number(text)


def test_bytes_are_looked_at_without_decoding_them() -> None:
    line = codec.encode({"type": "ADDED", "object": {"metadata": {"uid": "u"}}})
    assert listwatch.decode_event(line) == ("ADDED", b'{"metadata":{"uid":"u"}}')
    assert listwatch.identity(body("u", 7)) == ("u", 7)
    needles: list[bytes] = [b"nvidia.com/gpu", b"hami.io/"]
    given: dict[str, Any] = {"limits": {"nvidia.com/gpumem": 1}}
    assert listwatch.mentions(codec.encode(given), needles)
    assert not listwatch.mentions(b"{}", needles)


def test_an_older_version_is_stale_and_a_newer_one_of_a_deleted_object_is_an_add(
    store: Store[objects.Pod], held: Held
) -> None:
    store.event(body("a", 20), deleted=True)
    assert store.is_deleted("a")
    for late in (3, 19, 20):
        store.offer(body("a", late))
    assert set(held.pods) == {"b"}
    store.event(body("a", 21), deleted=False)
    assert held.versions == {"a": "21", "b": "5"}
    assert not store.is_deleted("a")


def test_an_offer_counts_by_its_version(store: Store[objects.Pod], held: Held) -> None:
    store.offer(body("a", 12))
    store.offer(body("a", 11))
    store.offer(body("c", 15))
    store.offer(body("d", 16, wanted=False))
    store.offer(body("b", 17, wanted=False))
    store.offer(b"{")
    assert held.versions == {"a": "12", "c": "15"}
    store.event(body("a", 11), deleted=False)
    store.event(body("c", 14), deleted=False)
    assert held.versions == {"a": "12", "c": "15"}
    assert store.version == 14


def test_an_offer_of_an_unknown_object_from_before_the_list_is_stale(
    store: Store[objects.Pod], held: Held
) -> None:
    store.offer(body("c", 10))
    assert set(held.pods) == {"a", "b"}


def test_a_missing_object_is_deleted_and_late_answers_do_not_bring_it_back(
    store: Store[objects.Pod], held: Held
) -> None:
    store.offer_missing("a")
    store.offer_missing("never seen")
    for uid in ("a", "never seen"):
        assert store.is_deleted(uid)
        store.offer(body(uid, 11))
        store.event(body(uid, 12), deleted=False)
    assert set(held.pods) == {"b"}


def test_an_object_that_is_newer_than_a_list_stays(store: Store[objects.Pod], held: Held) -> None:
    store.begin_list()
    store.listed(body("a", 3))
    store.offer(body("c", 13))
    store.end_list(12)
    assert set(held.pods) == {"a", "c"}
    take_list(store, 13, body("a", 3))
    assert set(held.pods) == {"a"}


def test_an_object_that_is_newer_than_a_resync_stays(store: Store[objects.Pod], held: Held) -> None:
    listing = store.begin_resync()
    store.offer(body("c", 13))
    store.compare(listing, [body("a", 3), body("b", 5)])
    listing.version = 12
    assert not store.differs(listing)
    assert store.end_resync(listing)
    assert set(held.pods) == {"a", "b", "c"}
    assert resync(store, 13, body("a", 3), body("b", 5))
    assert set(held.pods) == {"a", "b"}
    assert store.stats.repaired == 1


def test_a_newer_object_of_the_same_name_ends_the_older_one_first(
    store: Store[objects.Pod], held: Held
) -> None:
    before = len(held.calls)
    store.offer(body("new", 20, name="a"))
    assert held.calls[before:] == [("delete", "a"), ("add", "a")]
    store.event(body("a", 18), deleted=False)
    store.event(body("a", 19), deleted=True)
    store.offer(body("older still", 11, name="a"))
    assert set(held.pods) == {"new", "b"}
    found = store.by_key("a")
    assert found is not None
    assert found.uid == "new"


def test_an_object_that_a_list_left_out_returns_with_the_next_list(
    store: Store[objects.Pod], held: Held
) -> None:
    take_list(store, 20, body("a", 3))
    assert store.is_deleted("b")
    store.offer(body("b", 5))
    store.event(body("b", 20), deleted=False)
    assert set(held.pods) == {"a"}
    assert resync(store, 21, body("a", 3), body("b", 5))
    assert held.versions == {"a": "3", "b": "5"}


def test_with_a_selector_only_the_watch_adds_and_removes(held: Held) -> None:
    store: Store[objects.Pod] = Store(read, kind="pods", selected=True)
    store.add_handler(held.changed)
    take_list(store, 10, body("a", 3))
    store.offer(body("other", 12))
    store.offer(body("a", 14))
    assert held.versions == {"a": "14"}
    store.event(body("a", 13), deleted=True)
    store.offer(body("a", 15))
    assert held.versions == {}
    store.event(body("a", 16), deleted=False)
    assert held.versions == {"a": "16"}


def test_only_so_many_deleted_objects_are_remembered(store: Store[objects.Pod]) -> None:
    for number in range(DELETED_KEPT + 1):
        store.offer_missing(f"u{number}")
    assert not store.is_deleted("u0")
    assert store.is_deleted("u1")


def test_a_list_of_a_restored_server_starts_a_new_epoch(
    store: Store[objects.Pod], held: Held
) -> None:
    store.event(body("c", 30), deleted=False)
    store.event(body("b", 40), deleted=True)
    store.offer(body("new", 45, name="d"))
    store.begin_list()
    for each in (body("a", 3), body("b", 5), body("d", 6)):
        store.listed(each)
    store.end_list(8)
    assert held.versions == {"a": "3", "b": "5", "d": "6"}
    assert store.version == 8
    store.event(body("c", 9), deleted=False)
    store.offer(body("a", 12))
    assert held.versions == {"a": "12", "b": "5", "c": "9", "d": "6"}


def test_an_object_that_went_before_a_restore_may_come_back_after_it(held: Held) -> None:
    store: Store[objects.Pod] = Store(read, kind="nodes", selected=True)
    store.add_handler(held.changed)
    take_list(store, 10, body("a", 3), body("b", 5))
    store.event(body("b", 40), deleted=True)
    # The backup has it with the labels of old, which the selector does not match.
    take_list(store, 8, body("a", 3))
    store.event(body("b", 9), deleted=False)
    assert held.versions == {"a": "3", "b": "9"}


def test_a_restored_server_that_has_passed_our_version_is_known_by_its_objects(
    store: Store[objects.Pod], held: Held
) -> None:
    store.event(body("a", 30), deleted=False)
    listing = store.begin_resync()
    store.compare(listing, [body("a", 4), body("b", 5)])
    listing.version = 50
    assert listing.is_restored
    take_list(store, 50, body("a", 4), body("b", 5))
    assert held.versions == {"a": "4", "b": "5"}


def test_an_object_that_a_get_did_not_find_returns_with_a_restore_that_was_overtaken(
    store: Store[objects.Pod], held: Held
) -> None:
    store.offer_missing("b")
    listing = store.begin_resync()
    store.compare(listing, [body("a", 3), body("b", 5)])
    listing.version = 40
    assert listing.is_restored
    take_list(store, 40, body("a", 3), body("b", 5))
    assert held.versions == {"a": "3", "b": "5"}
    assert store.epoch == 1


def test_an_object_that_a_get_did_not_find_after_the_list_began_is_no_sign_of_a_restore(
    store: Store[objects.Pod], held: Held
) -> None:
    store.begin_list()
    store.offer_missing("b")
    store.listed(body("a", 3))
    store.listed(body("b", 5))
    store.end_list(40)
    assert set(held.pods) == {"a"}
    assert store.epoch == 0


def test_an_object_of_another_history_with_the_same_version_replaces_ours(
    store: Store[objects.Pod], held: Held
) -> None:
    other = body("a", 3).replace(b'"wanted": "yes"', b'"wanted": "yes", "history": "2"')
    take_list(store, 12, other, body("b", 5))
    assert held.pods["a"].annotations["history"] == "2"
    assert held.calls[-1] == ("update", "a")


def test_what_a_list_showed_that_never_ended_counts_as_known(
    store: Store[objects.Pod], held: Held
) -> None:
    store.begin_list()
    store.listed(body("a", 30))
    take_list(store, 20, body("a", 15), body("b", 5))
    assert held.versions == {"a": "15", "b": "5"}
    assert store.epoch == 1
