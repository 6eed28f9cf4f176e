"""Answers about a compacted past: 410, as a status and inside a watch.

Events are asked for because kube-apiserver reads them from etcd itself; of other kinds it keeps a
history of its own in memory, which outlives etcd's by a minute or more and cannot be cut short.
That history has a beginning, though, and that of a kind defined just now begins just now.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.conformance.objects import names, refused, revision
from tests.conformance.target import Target
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core, group

forgetting = pytest.mark.needs("compaction")


class Past(NamedTuple):
    oldest: str
    page: Object
    newest: str


def event(name: str, namespace: str) -> Object:
    return {
        "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "somebody"},
        "reason": "Conformance",
    }


@pytest.fixture
def past(target: Target, namespace: str) -> Past:
    """Events a to d, one page of them, and all of that forgotten."""
    api = target.client
    path = core("events", namespace)
    oldest = revision(api.create(path, event("a", namespace)))
    for name in "bc":
        api.create(path, event(name, namespace))
    page = api.get(path, limit=1)
    newest = revision(api.create(path, event("d", namespace)))
    target.compact(newest)
    return Past(oldest, page, newest)


@forgetting
def test_an_exact_list_of_a_forgotten_state_is_gone(
    api: Client, namespace: str, past: Past
) -> None:
    with refused(410, "Expired"):
        api.get(
            core("events", namespace), resourceVersion=past.oldest, resourceVersionMatch="Exact"
        )


@forgetting
def test_a_list_not_older_than_a_forgotten_state_is_simply_newer(
    api: Client, namespace: str, past: Past
) -> None:
    answer = api.get(core("events", namespace), resourceVersion=past.oldest)
    assert names(answer) == ["a", "b", "c", "d"]


@forgetting
def test_an_expired_continuation_is_gone_and_offers_one_that_goes_on_from_the_present(
    api: Client, namespace: str, past: Past
) -> None:
    assert names(past.page) == ["a"]
    with refused(410, "Expired") as refusal:
        api.get(
            core("events", namespace), limit=2, **{"continue": past.page["metadata"]["continue"]}
        )
    instead = refusal.error.body["metadata"]["continue"]
    rest = api.get(core("events", namespace), limit=5, **{"continue": instead})
    assert names(rest) == ["b", "c", "d"]  # d was not there when the list began


@forgetting
def test_a_watch_from_a_forgotten_state_opens_and_then_sends_one_error(
    api: Client, namespace: str, past: Past
) -> None:
    query = {"resourceVersion": past.oldest}
    with api.watch(core("events", namespace), timeout_seconds=20, query=query) as watch:
        events = list(watch)
    assert [event["type"] for event in events] == ["ERROR"]
    status = events[0]["object"]
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")


@forgetting
def test_a_watch_from_the_newest_forgotten_state_misses_nothing_and_goes_on(
    api: Client, namespace: str, past: Past
) -> None:
    query = {"resourceVersion": past.newest}
    with api.watch(core("events", namespace), timeout_seconds=20, query=query) as watch:
        api.create(core("events", namespace), event("e", namespace))
        first = watch.next()
    assert first is not None
    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "e")


@pytest.fixture
def things(api: Client, namespace: str) -> Iterator[str]:
    """Give the path of a kind that exists only since now."""
    definitions = group("apiextensions.k8s.io/v1", "customresourcedefinitions")
    domain = f"{secrets.token_hex(4)}.conformance.hami.io"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True}
    api.create(
        definitions,
        {
            "metadata": {"name": f"things.{domain}"},
            "spec": {
                "group": domain,
                "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
                "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
            },
        },
    )
    path = group(f"{domain}/v1", "things", namespace)
    wait_for("things to be served", lambda: api.request("GET", path).status == 200, 30)
    yield path
    api.delete(f"{definitions}/things.{domain}")


@pytest.mark.needs("crd")
@pytest.mark.parametrize("bookmarks", ["true", "false"])
def test_a_watch_from_before_the_history_in_memory_sends_one_error_as_well(
    api: Client, things: str, bookmarks: str
) -> None:
    query = {"resourceVersion": "1", "allowWatchBookmarks": bookmarks}
    with api.watch(things, timeout_seconds=20, query=query) as watch:
        events = list(watch)
    assert [event["type"] for event in events] == ["ERROR"]
    status = events[0]["object"]
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
    assert status["message"].startswith("too old resource version: 1 (")
