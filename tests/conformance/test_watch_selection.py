"""Watches of a selection: objects enter and leave it, and the watch says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conformance.objects import bind, lease, pod, revision, summary
from tests.kubeapi.client import Client, Object, Watch
from tests.kubeapi.paths import leases, nodes, pods


@pytest.fixture
def red(api: Client, namespace: str) -> Iterator[Watch]:
    """Watch the red leases of the namespace."""
    query = {
        "resourceVersion": revision(api.get(leases(namespace))),
        "labelSelector": "colour=red",
    }
    with api.watch(leases(namespace), query=query) as watch:
        yield watch


def paint(api: Client, namespace: str, name: str, colour: str | None) -> Object:
    return api.patch(leases(namespace, name), {"metadata": {"labels": {"colour": colour}}})


def test_an_object_outside_the_selection_is_never_mentioned(
    api: Client, namespace: str, red: Watch
) -> None:
    api.create(leases(namespace), lease("blue", labels={"colour": "blue"}))
    api.delete(leases(namespace, "blue"))
    api.create(leases(namespace), lease("last", labels={"colour": "red"}))
    assert summary(red.until("ADDED")) == [("ADDED", "last")]


def test_an_object_that_enters_the_selection_is_added(
    api: Client, namespace: str, red: Watch
) -> None:
    api.create(leases(namespace), lease("a"))
    painted = paint(api, namespace, "a", "red")
    events = red.until("ADDED")
    assert summary(events) == [("ADDED", "a")]
    assert events[0]["object"] == painted


@pytest.mark.parametrize("colour", ["blue", None], ids=["other", "removed"])
def test_an_object_that_leaves_the_selection_is_deleted_with_its_last_selected_state(
    api: Client, namespace: str, red: Watch, colour: str | None
) -> None:
    api.create(leases(namespace), lease("a", labels={"colour": "red"}))
    left = paint(api, namespace, "a", colour)
    events = red.until("DELETED")
    assert summary(events) == [("ADDED", "a"), ("DELETED", "a")]
    last = events[1]["object"]
    assert last["metadata"]["labels"] == {"colour": "red"}
    assert revision(last) == revision(left)


def test_an_object_that_stays_selected_is_modified(api: Client, namespace: str, red: Watch) -> None:
    api.create(leases(namespace), lease("a", labels={"colour": "red"}))
    api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "x"}})
    assert summary(red.until("MODIFIED")) == [("ADDED", "a"), ("MODIFIED", "a")]


def test_an_object_deleted_outside_the_selection_is_deleted_only_once(
    api: Client, namespace: str, red: Watch
) -> None:
    api.create(leases(namespace), lease("a", labels={"colour": "red"}))
    paint(api, namespace, "a", "blue")
    api.delete(leases(namespace, "a"))
    api.create(leases(namespace), lease("z", labels={"colour": "red"}))
    assert summary(red.until("ADDED", "z")) == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "z")]


def test_a_watch_of_a_nodes_pods_begins_with_their_binding(
    api: Client, namespace: str, node: str
) -> None:
    """This is how a kubelet, and so a node's agent, learns of its pods."""
    query = {"fieldSelector": f"spec.nodeName={node}"}
    with api.watch(pods(), query=query) as watch:
        for name in ("here", "unbound"):
            api.create(pods(namespace), pod(name))
        bind(api, namespace, "here", node, annotations={"hami.io/test": "1"})
        events = watch.until("ADDED")
        assert summary(events) == [("ADDED", "here")]
        assert events[0]["object"]["metadata"]["annotations"] == {"hami.io/test": "1"}
        api.delete(pods(namespace, "here"), gracePeriodSeconds=0)
        ending = watch.until("DELETED")
    # Even without any grace a pod is first marked and then removed.
    assert summary(ending) == [("MODIFIED", "here"), ("DELETED", "here")]
    assert "deletionTimestamp" in ending[0]["object"]["metadata"]


def test_a_pod_that_is_bound_leaves_the_watch_of_unbound_pods(
    api: Client, namespace: str, node: str
) -> None:
    query = {"fieldSelector": "spec.nodeName="}
    with api.watch(pods(namespace), query=query) as watch:
        api.create(pods(namespace), pod("a"))
        bind(api, namespace, "a", node)
        assert summary(watch.until("DELETED")) == [("ADDED", "a"), ("DELETED", "a")]


def test_a_pod_that_ends_leaves_the_watch_of_pods_that_have_not(
    api: Client, namespace: str, node: str
) -> None:
    query = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    with api.watch(pods(namespace), query=query) as watch:
        api.create(pods(namespace), pod("a"))
        bind(api, namespace, "a", node)
        api.patch(pods(namespace, "a", "status"), {"status": {"phase": "Running"}})
        api.patch(pods(namespace, "a", "status"), {"status": {"phase": "Succeeded"}})
        events = watch.until("DELETED")
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert events[-1]["object"]["status"]["phase"] == "Running"


def test_initial_events_are_selected_too(api: Client, make_node: Callable[..., Object]) -> None:
    mine = make_node(labels={"hami.io/conformance": "watched"})["metadata"]["name"]
    make_node(labels={"hami.io/conformance": "unwatched"})
    query = {"labelSelector": "hami.io/conformance=watched", "resourceVersion": "0"}
    api.get(nodes())  # now the server has both at hand
    with api.watch(nodes(), query=query) as watch:
        api.patch(nodes(mine), {"metadata": {"annotations": {"mark": "1"}}})
        seen = summary(watch.until("MODIFIED", mine))
    assert seen == [("ADDED", mine), ("MODIFIED", mine)]
