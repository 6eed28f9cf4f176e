"""The end of objects: grace, finalizers, preconditions and whole collections."""

from __future__ import annotations

import pytest

from tests.conformance.objects import bind, lease, names, pod, refused, revision, summary
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import core, leases, namespaces, pods


def test_deleting_a_plain_object_answers_with_a_success_that_names_it(
    api: Client, namespace: str
) -> None:
    made = api.create(leases(namespace), lease("a"))
    answer = api.delete(leases(namespace, "a"))
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"] == {
        "name": "a",
        "group": "coordination.k8s.io",
        "kind": "leases",
        "uid": made["metadata"]["uid"],
    }
    assert api.find(leases(namespace, "a")) is None


def test_deleting_what_is_not_there_is_not_found(api: Client, namespace: str) -> None:
    with refused(404, "NotFound"):
        api.delete(leases(namespace, "a"))


@pytest.fixture
def bound(api: Client, namespace: str, node: str) -> Object:
    api.create(pods(namespace), pod("p", {"terminationGracePeriodSeconds": 60}))
    bind(api, namespace, "p", node)
    return api.get(pods(namespace, "p"))


def test_an_unbound_pod_is_gone_at_once(api: Client, namespace: str) -> None:
    api.create(pods(namespace), pod("p"))
    answer = api.delete(pods(namespace, "p"))
    assert (answer["kind"], answer["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 0)
    assert api.find(pods(namespace, "p")) is None


def test_a_bound_pod_is_marked_and_stays_until_its_kubelet_confirms(
    api: Client, namespace: str, bound: Object
) -> None:
    answer = api.delete(pods(namespace, "p"))
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 60
    marked = api.get(pods(namespace, "p"))
    assert marked["metadata"]["deletionTimestamp"] > marked["metadata"]["creationTimestamp"]
    assert marked["metadata"]["uid"] == bound["metadata"]["uid"]
    assert marked["status"]["phase"] == "Pending"
    api.delete(pods(namespace, "p"), gracePeriodSeconds=0)  # this is what a kubelet does
    assert api.find(pods(namespace, "p")) is None


def test_a_watch_sees_the_mark_and_then_the_end(api: Client, namespace: str, bound: Object) -> None:
    with api.watch(pods(namespace), query={"resourceVersion": revision(bound)}) as watch:
        api.delete(pods(namespace, "p"))
        assert summary(watch.until("MODIFIED")) == [("MODIFIED", "p")]
        api.delete(pods(namespace, "p"), gracePeriodSeconds=0)
        assert watch.until("DELETED")[-1]["object"]["metadata"]["name"] == "p"


def test_the_grace_can_be_given_by_query_or_in_the_body(
    api: Client, namespace: str, node: str
) -> None:
    for name in ("q", "b"):
        api.create(pods(namespace), pod(name))
        bind(api, namespace, name, node)
    by_query = api.delete(pods(namespace, "q"), gracePeriodSeconds=7)
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 8}
    in_body = api.delete(pods(namespace, "b"), options)
    assert by_query["metadata"]["deletionGracePeriodSeconds"] == 7
    assert in_body["metadata"]["deletionGracePeriodSeconds"] == 8


def test_a_later_delete_shortens_the_grace_and_never_lengthens_it(
    api: Client, namespace: str, bound: Object
) -> None:
    given = []
    for seconds in (20, 5, 40):
        answer = api.delete(pods(namespace, "p"), gracePeriodSeconds=seconds)
        given.append(answer["metadata"]["deletionGracePeriodSeconds"])
    assert given == [20, 5, 5]


def test_a_pod_that_has_ended_is_deleted_without_grace(
    api: Client, namespace: str, bound: Object
) -> None:
    api.patch(pods(namespace, "p", "status"), {"status": {"phase": "Succeeded"}})
    api.delete(pods(namespace, "p"))
    assert api.find(pods(namespace, "p")) is None


def test_a_marked_pod_can_still_be_annotated_and_its_status_written(
    api: Client, namespace: str, bound: Object
) -> None:
    api.delete(pods(namespace, "p"))
    api.patch(pods(namespace, "p"), {"metadata": {"annotations": {"a": "1"}}})
    api.patch(pods(namespace, "p", "status"), {"status": {"phase": "Failed"}})
    marked = api.get(pods(namespace, "p"))
    assert marked["metadata"]["annotations"]["a"] == "1"
    assert marked["status"]["phase"] == "Failed"
    assert "deletionTimestamp" in marked["metadata"]


def test_a_finalizer_holds_the_object_until_it_is_removed(api: Client, namespace: str) -> None:
    api.create(leases(namespace), lease("a", finalizers=["hami.io/conformance"]))
    answer = api.delete(leases(namespace, "a"))
    assert answer["kind"] == "Lease"
    held = api.get(leases(namespace, "a"))
    assert held["metadata"]["deletionTimestamp"]
    with refused(409, "AlreadyExists"):
        api.create(leases(namespace), lease("a"))
    api.patch(leases(namespace, "a"), {"metadata": {"finalizers": None}})
    assert api.find(leases(namespace, "a")) is None


def test_an_object_that_is_being_deleted_takes_no_new_finalizer(
    api: Client, namespace: str
) -> None:
    api.create(leases(namespace), lease("a", finalizers=["hami.io/one"]))
    api.delete(leases(namespace, "a"))
    with refused(422, "Invalid"):
        api.patch(
            leases(namespace, "a"), {"metadata": {"finalizers": ["hami.io/one", "hami.io/two"]}}
        )
    api.patch(leases(namespace, "a"), {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_a_delete_whose_precondition_fails_is_a_conflict_and_deletes_nothing(
    api: Client, namespace: str, field: str
) -> None:
    made = api.create(leases(namespace), lease("a"))
    wrong = {"uid": "6e0c9e0e-0000-4000-8000-000000000000", "resourceVersion": "1"}[field]
    with refused(409, "Conflict"):
        api.delete(leases(namespace, "a"), {"preconditions": {field: wrong}})
    assert api.get(leases(namespace, "a")) == made
    api.delete(leases(namespace, "a"), {"preconditions": {field: made["metadata"][field]}})
    assert api.find(leases(namespace, "a")) is None


def test_a_dry_delete_deletes_nothing(api: Client, namespace: str) -> None:
    made = api.create(leases(namespace), lease("a"))
    api.delete(leases(namespace, "a"), dryRun="All")
    assert api.get(leases(namespace, "a")) == made


def test_a_collection_is_deleted_by_selector_and_answers_with_what_it_deleted(
    api: Client, namespace: str
) -> None:
    for name in "abc":
        api.create(leases(namespace), lease(name, labels={"keep": str(name == "b").lower()}))
    answer = api.delete(leases(namespace), labelSelector="keep=false")
    assert (answer["kind"], sorted(names(answer))) == ("LeaseList", ["a", "c"])
    assert names(api.get(leases(namespace))) == ["b"]


def test_a_namespace_that_is_being_deleted_takes_nothing_new(api: Client) -> None:
    made = api.create(namespaces(), {"metadata": {"generateName": "conformance-"}})
    name = made["metadata"]["name"]
    assert made["status"]["phase"] == "Active"
    assert made["metadata"]["labels"]["kubernetes.io/metadata.name"] == name
    api.create(core("secrets", name), {"metadata": {"name": "s", "finalizers": ["hami.io/c"]}})
    try:
        assert api.delete(namespaces(name))["status"]["phase"] == "Terminating"
        with refused(403, "Forbidden") as refusal:
            api.create(leases(name), lease("late"))
        assert "being terminated" in refusal.message
        assert refusal.error.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    finally:
        api.patch(core("secrets", name, "s"), {"metadata": {"finalizers": None}})


def test_nothing_can_be_created_in_a_namespace_that_does_not_exist(
    api: Client, namespace: str
) -> None:
    with refused(404, "NotFound") as refusal:
        api.create(leases(f"{namespace}-not"), lease("a"))
    assert refusal.error.body["details"]["kind"] == "namespaces"
