"""The status subresource: it writes the status and nothing else."""

from __future__ import annotations

import pytest

from tests.conformance.objects import pod, refused, revision
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import config_maps, nodes, pods

STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture
def made(api: Client, namespace: str) -> Object:
    return api.create(pods(namespace), pod("p", labels={"k": "v"}))


def test_a_new_object_has_the_status_that_the_server_gives_it(api: Client, namespace: str) -> None:
    wanted = {**pod("p"), "status": {"phase": "Running", "message": "set by the client"}}
    status = api.create(pods(namespace), wanted)["status"]
    assert status["phase"] == "Pending"
    assert "message" not in status


def test_a_patch_of_the_status_changes_the_status_and_the_version(
    api: Client, namespace: str, made: Object
) -> None:
    patched = api.patch(pods(namespace, "p", "status"), {"status": {"message": "m"}})
    assert patched["status"] == {**made["status"], "message": "m"}
    assert int(revision(patched)) > int(revision(made))
    assert api.get(pods(namespace, "p")) == patched


def test_a_patch_of_the_status_leaves_the_spec_alone(
    api: Client, namespace: str, made: Object
) -> None:
    patch = {"spec": {"activeDeadlineSeconds": 5}, "status": {"message": "m"}}
    patched = api.patch(pods(namespace, "p", "status"), patch)
    assert patched["status"]["message"] == "m"
    assert patched["spec"] == made["spec"]


def test_a_patch_of_the_status_of_a_pod_writes_its_labels_and_annotations_too(
    api: Client, namespace: str, made: Object
) -> None:
    metadata = {"annotations": {"a": "1"}, "labels": {"k": "w"}}
    patch = {"metadata": metadata, "status": {"message": "m"}}
    api.patch(pods(namespace, "p", "status"), patch)
    stored = api.get(pods(namespace, "p"))
    assert stored["metadata"]["annotations"] == {"a": "1"}
    assert stored["metadata"]["labels"] == {"k": "w"}


def test_a_replacement_of_the_status_takes_only_the_status(
    api: Client, namespace: str, made: Object
) -> None:
    changed = {
        **made,
        "spec": {**made["spec"], "activeDeadlineSeconds": 5},
        "status": {**made["status"], "phase": "Running"},
    }
    replaced = api.replace(pods(namespace, "p", "status"), changed)
    assert replaced["status"]["phase"] == "Running"
    assert replaced["spec"] == made["spec"]


def test_a_stale_replacement_of_the_status_is_a_conflict(
    api: Client, namespace: str, made: Object
) -> None:
    api.patch(pods(namespace, "p", "status"), {"status": {"message": "newer"}})
    with refused(409, "Conflict"):
        api.replace(pods(namespace, "p", "status"), made)


def test_an_update_of_the_object_leaves_the_status_alone(
    api: Client, namespace: str, made: Object
) -> None:
    patch = {"status": {"phase": "Failed"}, "metadata": {"labels": {"k": "w"}}}
    patched = api.patch(pods(namespace, "p"), patch)
    assert patched["metadata"]["labels"] == {"k": "w"}
    assert patched["status"] == made["status"]
    replaced = api.replace(pods(namespace, "p"), {**patched, "status": {"phase": "Failed"}})
    assert replaced["status"] == made["status"]


def test_conditions_are_merged_by_their_type(api: Client, namespace: str, made: Object) -> None:
    path = pods(namespace, "p", "status")
    for kind, status in (("Ready", "False"), ("Initialized", "True"), ("Ready", "True")):
        condition = {"type": kind, "status": status}
        api.patch(path, {"status": {"conditions": [condition]}}, STRATEGIC)
    stored = api.get(pods(namespace, "p"))["status"]["conditions"]
    assert {c["type"]: c["status"] for c in stored} == {"Ready": "True", "Initialized": "True"}
    assert len(stored) == 2


def test_the_status_can_be_read_by_itself(api: Client, namespace: str, made: Object) -> None:
    assert api.get(pods(namespace, "p", "status")) == made


def test_the_capacity_of_a_node_is_written_through_its_status(api: Client, node: str) -> None:
    before = api.get(nodes(node))
    patch = {"status": {"capacity": {"nvidia.com/gpu": "10"}}, "spec": {"unschedulable": True}}
    api.patch(nodes(node, "status"), patch, STRATEGIC)
    after = api.get(nodes(node))
    assert after["status"]["capacity"] == {
        **before["status"]["capacity"],
        "nvidia.com/gpu": "10",
    }
    assert "unschedulable" not in after["spec"]


def test_annotations_of_a_node_are_written_without_touching_its_status(
    api: Client, node: str
) -> None:
    before = api.get(nodes(node))["status"]["capacity"]
    patch = {"metadata": {"annotations": {"hami.io/x": "1"}}, "status": {"capacity": None}}
    patched = api.patch(nodes(node), patch)
    assert patched["metadata"]["annotations"]["hami.io/x"] == "1"
    assert patched["status"]["capacity"] == before


def test_a_kind_without_a_status_has_no_such_subresource(api: Client, namespace: str) -> None:
    answer = api.request("GET", config_maps(namespace, "any") + "/status")
    assert answer.status == 404
