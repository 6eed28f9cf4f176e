"""Bookmarks, and the watch that begins with a list (sendInitialEvents)."""

from __future__ import annotations

import pytest

from tests.conformance.objects import lease, refused, revision, summary, watched_to_the_end
from tests.kubeapi.client import Client, Event
from tests.kubeapi.paths import leases

END = "k8s.io/initial-events-end"
WATCH_LIST = {
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}


def marks_the_end(event: Event) -> bool:
    annotations = event["object"]["metadata"].get("annotations", {})
    return (event["type"], annotations.get(END)) == ("BOOKMARK", "true")


def test_a_watch_that_allows_bookmarks_gets_one_before_its_time_is_over(
    api: Client, namespace: str
) -> None:
    path = leases(namespace)
    since = revision(api.get(path))
    query = {"resourceVersion": since, "allowWatchBookmarks": "true"}
    events, made = watched_to_the_end(api, path, query, seconds=4)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "ADDED"
    assert kinds[1:]
    assert set(kinds[1:]) == {"BOOKMARK"}
    assert int(revision(events[-1]["object"])) >= int(revision(made))


def test_a_bookmark_carries_the_kind_and_a_version_and_nothing_of_any_object(
    api: Client, namespace: str
) -> None:
    path = leases(namespace)
    query = {"resourceVersion": revision(api.get(path)), "allowWatchBookmarks": "true"}
    # A watch that would learn nothing new from a bookmark gets none.
    events, _ = watched_to_the_end(api, path, query, seconds=4)
    assert events[-1]["type"] == "BOOKMARK"
    bookmark = events[-1]["object"]
    assert (bookmark["kind"], bookmark["apiVersion"]) == ("Lease", "coordination.k8s.io/v1")
    assert set(bookmark["metadata"]) == {"resourceVersion"}
    assert bookmark.get("spec", {}) == {}


def test_a_watch_goes_on_from_a_bookmark_without_repeating_or_missing_anything(
    api: Client, namespace: str
) -> None:
    path = leases(namespace)
    query = {"resourceVersion": revision(api.get(path)), "allowWatchBookmarks": "true"}
    events, _ = watched_to_the_end(api, path, query, seconds=4)
    bookmark = events[-1]
    assert bookmark["type"] == "BOOKMARK"
    api.create(path, lease("after"))
    with api.watch(path, query={"resourceVersion": revision(bookmark["object"])}) as again:
        assert summary(again.until("ADDED")) == [("ADDED", "after")]


def test_a_watch_that_does_not_allow_bookmarks_gets_none(api: Client, namespace: str) -> None:
    path = leases(namespace)
    query = {"resourceVersion": revision(api.get(path))}
    events, made = watched_to_the_end(api, path, query, seconds=4)
    assert summary(events) == [("ADDED", made["metadata"]["name"])]


@pytest.mark.parametrize("version", [None, "0", "now"])
def test_a_watch_list_sends_what_is_there_then_the_mark_then_what_happens(
    api: Client, namespace: str, version: str | None
) -> None:
    path = leases(namespace)
    made = [api.create(path, lease(name)) for name in "ab"]
    now = revision(api.get(path))
    query = {**WATCH_LIST}
    if version is not None:
        query["resourceVersion"] = now if version == "now" else version
    with api.watch(path, query=query) as watch:
        initial = watch.until("BOOKMARK")
        api.create(path, lease("c"))
        later = watch.until("ADDED")
    assert summary(initial) == [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", "")]
    assert [event["object"] for event in initial[:2]] == made
    assert marks_the_end(initial[2])
    assert int(revision(initial[2]["object"])) >= int(now)
    assert summary(later) == [("ADDED", "c")]


def test_a_watch_list_of_nothing_is_only_the_mark(api: Client, namespace: str) -> None:
    with api.watch(leases(namespace), query=WATCH_LIST) as watch:
        first = watch.next()
    assert first is not None
    assert marks_the_end(first)
    assert int(revision(first["object"])) > 0


def test_a_watch_list_is_as_new_as_the_last_write_that_was_answered(
    api: Client, namespace: str
) -> None:
    for number in range(5):
        written = api.create(leases(namespace), lease(f"l{number}"))
        with api.watch(leases(namespace), query=WATCH_LIST) as watch:
            initial = watch.until("BOOKMARK")
        assert len(initial) == number + 2
        assert int(revision(initial[-1]["object"])) >= int(revision(written))


def test_a_watch_list_of_a_selection_sends_only_the_selected(api: Client, namespace: str) -> None:
    for name in "ab":
        api.create(leases(namespace), lease(name, labels={"name": name}))
    query = {**WATCH_LIST, "labelSelector": "name=b"}
    with api.watch(leases(namespace), query=query) as watch:
        assert summary(watch.until("BOOKMARK")) == [("ADDED", "b"), ("BOOKMARK", "")]


def test_a_watch_goes_on_from_the_mark(api: Client, namespace: str) -> None:
    api.create(leases(namespace), lease("a"))
    with api.watch(leases(namespace), query=WATCH_LIST) as watch:
        mark = watch.until("BOOKMARK")[-1]
    api.create(leases(namespace), lease("b"))
    query = {"resourceVersion": revision(mark["object"])}
    with api.watch(leases(namespace), query=query) as again:
        assert summary(again.until("ADDED")) == [("ADDED", "b")]


def test_initial_events_that_are_not_wanted_are_not_sent(api: Client, namespace: str) -> None:
    api.create(leases(namespace), lease("a"))
    query = {
        **WATCH_LIST,
        "sendInitialEvents": "false",
        "resourceVersion": revision(api.get(leases(namespace))),
    }
    with api.watch(leases(namespace), query=query) as watch:
        api.create(leases(namespace), lease("b"))
        assert summary(watch.until("ADDED")) == [("ADDED", "b")]


@pytest.mark.parametrize(
    "changes",
    [
        {"resourceVersionMatch": ""},
        {"resourceVersionMatch": "Exact", "resourceVersion": "1"},
        {"resourceVersionMatch": "Sometimes"},
        {"continue": "somewhere"},
    ],
    ids=lambda changes: "+".join(changes.values()) or "no match",
)
def test_a_watch_list_with_options_that_contradict_it_is_refused(
    api: Client, namespace: str, changes: dict[str, str]
) -> None:
    query = {key: value for key, value in {**WATCH_LIST, **changes}.items() if value}
    with refused(422, "Invalid"):
        api.watch(leases(namespace), query=query)


def test_a_list_takes_no_initial_events(api: Client, namespace: str) -> None:
    with refused(422, "Invalid") as refusal:
        api.get(
            leases(namespace),
            sendInitialEvents="true",
            resourceVersionMatch="NotOlderThan",
            resourceVersion="0",
        )
    assert "sendInitialEvents" in refusal.message


def test_a_watch_list_from_the_future_ends_with_an_error_that_says_when_to_retry(
    api: Client, namespace: str
) -> None:
    future = str(int(revision(api.get(leases(namespace)))) + 10_000_000)
    query = {**WATCH_LIST, "resourceVersion": future}
    with api.watch(leases(namespace), timeout_seconds=20, query=query) as watch:
        events = list(watch)
    assert [event["type"] for event in events] == ["ERROR"]
    status = events[0]["object"]
    assert (status["code"], status["reason"]) == (504, "Timeout")
    assert status["details"]["retryAfterSeconds"] > 0
