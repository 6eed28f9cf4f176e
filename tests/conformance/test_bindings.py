"""Binding: one write sets a pod's node and the decision's annotations."""

from __future__ import annotations

import pytest

from tests.conformance.objects import bind, binding, pod, refused, revision
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import core, pods


@pytest.fixture
def unbound(api: Client, namespace: str) -> Object:
    """Give a pod that waits for a node."""
    labels = {"app": "a", "both": "pod"}
    annotations = {"kept": "pod", "both": "pod"}
    return api.create(pods(namespace), pod("p", labels=labels, annotations=annotations))


def test_a_binding_is_answered_with_a_success_and_sets_the_node(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    answer = bind(api, namespace, "p", node)
    assert (answer["kind"], answer["status"], answer["code"]) == ("Status", "Success", 201)
    assert api.get(pods(namespace, "p"))["spec"]["nodeName"] == node


def test_the_annotations_of_a_binding_join_those_of_the_pod(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    bind(api, namespace, "p", node, annotations={"both": "binding", "new": "binding"})
    assert api.get(pods(namespace, "p"))["metadata"]["annotations"] == {
        "kept": "pod",
        "both": "binding",
        "new": "binding",
    }


def test_the_labels_of_a_binding_join_those_of_the_pod(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    """Since Kubernetes 1.35."""
    bind(api, namespace, "p", node, labels={"both": "binding", "new": "binding"})
    assert api.get(pods(namespace, "p"))["metadata"]["labels"] == {
        "app": "a",
        "both": "binding",
        "new": "binding",
    }


def test_node_annotations_and_condition_arrive_in_a_single_write(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    query = {"resourceVersion": revision(unbound)}
    with api.watch(pods(namespace), query=query) as watch:
        bind(api, namespace, "p", node, annotations={"decision": "made"})
        api.patch(pods(namespace, "p"), {"metadata": {"annotations": {"after": "wards"}}})
        bound, after = watch.next(), watch.next()
    assert bound is not None
    assert after is not None
    seen = bound["object"]
    assert bound["type"] == "MODIFIED"
    assert (seen["spec"]["nodeName"], seen["metadata"]["annotations"]["decision"]) == (
        node,
        "made",
    )
    assert [(c["type"], c["status"]) for c in seen["status"]["conditions"]] == [
        ("PodScheduled", "True")
    ]
    assert after["object"]["metadata"]["annotations"]["after"] == "wards"


def test_a_binding_changes_nothing_else_of_the_pod(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    bind(api, namespace, "p", node)
    bound = api.get(pods(namespace, "p"))
    assert {**bound["spec"], "nodeName": None} == {**unbound["spec"], "nodeName": None}
    for field in ("uid", "generation", "creationTimestamp", "labels", "annotations"):
        assert bound["metadata"][field] == unbound["metadata"][field]
    assert bound["status"]["phase"] == "Pending"


def test_a_binding_with_the_pods_uid_succeeds(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    bind(api, namespace, "p", node, uid=unbound["metadata"]["uid"])
    assert api.get(pods(namespace, "p"))["spec"]["nodeName"] == node


def test_a_binding_with_the_uid_of_another_pod_is_a_conflict_and_writes_nothing(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    """A pod that was deleted and made anew under its name gets no decision meant for the old."""
    with refused(409, "Conflict") as refusal:
        bind(
            api,
            namespace,
            "p",
            node,
            uid="6e0c9e0e-0000-4000-8000-000000000000",
            annotations={"stale": "1"},
        )
    assert "UID" in refusal.message
    assert api.get(pods(namespace, "p")) == unbound


def test_a_binding_with_a_stale_version_is_a_conflict_and_writes_nothing(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    newer = api.patch(pods(namespace, "p"), {"metadata": {"annotations": {"n": "1"}}})
    with refused(409, "Conflict"):
        bind(api, namespace, "p", node, resourceVersion=revision(unbound))
    assert api.get(pods(namespace, "p")) == newer


def test_a_second_binding_is_a_conflict_that_names_the_first_node(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    bind(api, namespace, "p", node, annotations={"first": "1"})
    first = api.get(pods(namespace, "p"))
    for other in (node, "another"):
        with refused(409, "Conflict") as refusal:
            bind(api, namespace, "p", other, annotations={"second": "1"})
        assert f'already assigned to node "{node}"' in refusal.message
    assert api.get(pods(namespace, "p")) == first


def test_a_pod_that_is_being_deleted_cannot_be_bound(
    api: Client, namespace: str, node: str
) -> None:
    api.create(pods(namespace), pod("p", finalizers=["hami.io/conformance"]))
    api.delete(pods(namespace, "p"))
    with refused(409, "Conflict") as refusal:
        bind(api, namespace, "p", node)
    assert "being deleted" in refusal.message
    api.patch(pods(namespace, "p"), {"metadata": {"finalizers": None}})


def test_a_pod_behind_a_scheduling_gate_cannot_be_bound(
    api: Client, namespace: str, node: str
) -> None:
    api.create(pods(namespace), pod("p", {"schedulingGates": [{"name": "hami.io/conformance"}]}))
    with refused(409, "Conflict") as refusal:
        bind(api, namespace, "p", node)
    assert "schedulingGates" in refusal.message


def test_a_binding_of_a_pod_that_does_not_exist_is_not_found(
    api: Client, namespace: str, node: str
) -> None:
    with refused(404, "NotFound") as refusal:
        bind(api, namespace, "nobody", node)
    assert refusal.error.body["details"]["name"] == "nobody"


def test_a_binding_to_a_node_that_does_not_exist_is_accepted(
    api: Client, namespace: str, unbound: Object
) -> None:
    """The server trusts the scheduler; whoever binds must know its nodes."""
    bind(api, namespace, "p", "conformance-no-such-node")
    assert api.get(pods(namespace, "p"))["spec"]["nodeName"] == "conformance-no-such-node"


def test_a_binding_must_bear_the_name_of_its_pod(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    with refused(400, "BadRequest"):
        api.create(pods(namespace, "p", "binding"), binding("q", node))


def test_a_binding_through_the_old_collection_works_as_well(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    api.create(core("bindings", namespace), binding("p", node, annotations={"old": "way"}))
    bound = api.get(pods(namespace, "p"))
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]["old"]) == (node, "way")


def test_a_dry_binding_is_answered_but_not_done(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    answer = api.create(pods(namespace, "p", "binding"), binding("p", node), dryRun="All")
    assert answer["status"] == "Success"
    assert api.get(pods(namespace, "p")) == unbound


def test_the_node_of_a_pod_cannot_be_set_by_an_update(
    api: Client, namespace: str, node: str, unbound: Object
) -> None:
    with refused(422, "Invalid"):
        api.patch(pods(namespace, "p"), {"spec": {"nodeName": node}})
