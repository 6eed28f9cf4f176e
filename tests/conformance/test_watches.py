"""Watches: what they begin with, what they send, and how they end."""

from __future__ import annotations

import json
import threading

import pytest

from tests.conformance.objects import lease, names, refused, revision, summary, watched_to_the_end
from tests.kubeapi.client import Client, Event, Object, Watch
from tests.kubeapi.paths import leases


def take(watch: Watch, count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        event = watch.next()
        assert event is not None, f"the watch ended after {summary(events)}"
        events.append(event)
    return events


def test_a_watch_from_a_lists_version_sends_what_happened_since_and_nothing_else(
    api: Client, namespace: str
) -> None:
    path = leases(namespace)
    api.create(path, lease("before"))
    since = revision(api.get(path))
    api.create(path, lease("a"))
    with api.watch(path, query={"resourceVersion": since}) as watch:
        api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "x"}})
        api.delete(leases(namespace, "a"))
        events = take(watch, 3)
    assert summary(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_each_event_carries_the_whole_object_at_that_moment(api: Client, namespace: str) -> None:
    path = leases(namespace)
    with api.watch(path, query={"resourceVersion": revision(api.get(path))}) as watch:
        added = api.create(path, lease("a", labels={"k": "v"}))
        changed = api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "x"}})
        api.delete(leases(namespace, "a"))
        events = take(watch, 3)
    assert events[0]["object"] == added
    assert events[1]["object"] == changed
    gone = events[2]["object"]
    assert (gone["kind"], gone["apiVersion"]) == ("Lease", "coordination.k8s.io/v1")
    assert (gone["spec"], gone["metadata"]["labels"]) == (changed["spec"], {"k": "v"})


def test_the_versions_of_events_grow_and_a_deletion_has_its_own(
    api: Client, namespace: str
) -> None:
    path = leases(namespace)
    with api.watch(path, query={"resourceVersion": revision(api.get(path))}) as watch:
        api.create(path, lease("a"))
        last = api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "x"}})
        api.delete(leases(namespace, "a"))
        versions = [int(revision(event["object"])) for event in take(watch, 3)]
    assert versions == sorted(set(versions))
    assert versions[2] > int(revision(last))


def test_a_watch_can_go_on_from_the_version_of_any_event(api: Client, namespace: str) -> None:
    path = leases(namespace)
    with api.watch(path, query={"resourceVersion": revision(api.get(path))}) as watch:
        for name in "abc":
            api.create(path, lease(name))
        events = take(watch, 3)
    with api.watch(path, query={"resourceVersion": revision(events[0]["object"])}) as again:
        assert take(again, 2) == events[1:]


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}], ids=["unset", "zero"])
def test_a_watch_from_nowhere_begins_with_what_is_there(
    api: Client, namespace: str, query: dict[str, str]
) -> None:
    path = leases(namespace)
    here = [api.create(path, lease(name)) for name in "ab"]
    here[0] = api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "x"}})
    assert names(api.get(path)) == ["a", "b"]
    with api.watch(path, query=query) as watch:
        first = take(watch, 2)
        api.create(path, lease("c"))
        then = take(watch, 1)
    assert {event["type"] for event in first} == {"ADDED"}
    assert sorted((e["object"] for e in first), key=lambda o: str(o["metadata"]["name"])) == here
    assert summary(then) == [("ADDED", "c")]


def test_two_watches_see_the_same_events_in_the_same_order(api: Client, namespace: str) -> None:
    path = leases(namespace)
    query = {"resourceVersion": revision(api.get(path))}
    with api.watch(path, query=query) as one, api.watch(path, query=query) as other:
        for number in range(25):
            api.create(path, lease(f"l{number}"))
        assert take(one, 25) == take(other, 25)


def test_writes_of_many_clients_reach_a_watch_in_the_order_of_their_versions(
    api: Client, namespace: str
) -> None:
    path = leases(namespace)
    made: list[Object] = []

    def write(who: int) -> None:
        made.extend(api.create(path, lease(f"w{who}-{number}")) for number in range(10))

    with api.watch(path, query={"resourceVersion": revision(api.get(path))}) as watch:
        writers = [threading.Thread(target=write, args=(who,)) for who in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        events = take(watch, 40)
    versions = [int(revision(event["object"])) for event in events]
    assert versions == sorted(int(revision(lease)) for lease in made)


def test_a_watch_of_one_object_by_name_sees_only_that_one(api: Client, namespace: str) -> None:
    path = leases(namespace)
    query = {
        "resourceVersion": revision(api.get(path)),
        "fieldSelector": "metadata.name=wanted",
    }
    with api.watch(path, query=query) as watch:
        api.create(path, lease("other"))
        api.create(path, lease("wanted"))
        assert summary(take(watch, 1)) == [("ADDED", "wanted")]


def test_a_watch_ends_by_itself_when_its_time_is_over(api: Client, namespace: str) -> None:
    path = leases(namespace)
    query = {"resourceVersion": revision(api.get(path))}
    events, made = watched_to_the_end(api, path, query, seconds=1)
    assert summary(events) == [("ADDED", made["metadata"]["name"])]


def test_a_watch_answers_at_once_in_chunks_of_one_json_document_per_line(
    api: Client, namespace: str
) -> None:
    path = leases(namespace)
    api.create(path, lease("a"))
    api.create(path, lease("b"))
    answer = api.request("GET", path, query={"watch": "true", "timeoutSeconds": "1"})
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert answer.body.endswith(b"\n")
    assert [json.loads(line)["type"] for line in answer.body.splitlines()] == ["ADDED", "ADDED"]


def test_a_watch_from_the_future_stays_silent_until_then(api: Client, namespace: str) -> None:
    path = leases(namespace)
    future = str(int(revision(api.get(path))) + 10_000_000)
    query = {"resourceVersion": future}
    with api.watch(path, timeout_seconds=2, query=query) as watch:
        api.create(path, lease("now"))
        assert list(watch) == []


def test_a_closed_watch_frees_the_server_and_a_new_one_can_follow(
    api: Client, namespace: str
) -> None:
    path = leases(namespace)
    since = revision(api.get(path))
    for number in range(30):
        with api.watch(path, query={"resourceVersion": since}) as watch:
            since = revision(api.create(path, lease(f"l{number}")))
            assert summary(take(watch, 1)) == [("ADDED", f"l{number}")]


def test_a_watch_with_a_match_but_without_initial_events_is_refused(
    api: Client, namespace: str
) -> None:
    with refused(422, "Invalid") as refusal:
        api.watch(
            leases(namespace),
            query={"resourceVersion": "1", "resourceVersionMatch": "NotOlderThan"},
        )
    assert "sendInitialEvents" in refusal.message


def test_a_timeout_that_is_no_number_is_a_bad_request(api: Client, namespace: str) -> None:
    with refused(400, "BadRequest"):
        api.get(leases(namespace), watch="1", timeoutSeconds="soon")
