"""Creating objects: what the server adds, what it refuses, and in which words."""

from __future__ import annotations

import re
import uuid

import pytest

from tests.conformance.objects import (
    causes,
    config_map,
    container,
    lease,
    pod,
    refused,
    revision,
)
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import config_maps, core, leases, pods

UTC_SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def test_a_created_object_gets_identity_time_and_version(api: Client, namespace: str) -> None:
    answer = api.request("POST", leases(namespace), body=lease("a"))
    made = answer.json()
    metadata = made["metadata"]
    assert answer.status == 201
    assert (made["kind"], made["apiVersion"]) == ("Lease", "coordination.k8s.io/v1")
    assert (metadata["name"], metadata["namespace"]) == ("a", namespace)
    assert str(uuid.UUID(metadata["uid"])) == metadata["uid"]
    assert UTC_SECONDS.fullmatch(metadata["creationTimestamp"])
    assert int(revision(made)) > 0
    assert api.get(leases(namespace, "a")) == made


def test_identity_time_and_version_cannot_be_chosen_by_the_client(
    api: Client, namespace: str
) -> None:
    wish: Object = {
        "uid": "6e0c9e0e-0000-4000-8000-000000000000",
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "generation": 77,
    }
    metadata = api.create(pods(namespace), pod("p", **wish))["metadata"]
    assert metadata["uid"] != wish["uid"]
    assert metadata["creationTimestamp"] != wish["creationTimestamp"]
    assert "deletionTimestamp" not in metadata
    assert metadata["generation"] == 1


def test_an_object_with_a_version_cannot_be_created(api: Client, namespace: str) -> None:
    answer = api.request("POST", leases(namespace), body=lease("a", resourceVersion="5"))
    assert answer.status in {400, 500}  # kube-apiserver: 500
    assert "resourceVersion should not be set" in answer.json()["message"]
    assert api.find(leases(namespace, "a")) is None


def test_an_object_made_anew_under_its_name_has_another_uid(api: Client, namespace: str) -> None:
    first = api.create(leases(namespace), lease("a"))
    api.delete(leases(namespace, "a"))
    second = api.create(leases(namespace), lease("a"))
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


def test_kind_and_version_may_be_left_out(api: Client, namespace: str) -> None:
    made = api.create(config_maps(namespace), {"metadata": {"name": "a"}, "data": {"k": "v"}})
    assert (made["kind"], made["apiVersion"], made["data"]) == ("ConfigMap", "v1", {"k": "v"})


def test_a_name_that_is_taken_already_exists(api: Client, namespace: str) -> None:
    api.create(leases(namespace), lease("a"))
    with refused(409, "AlreadyExists") as refusal:
        api.create(leases(namespace), lease("a", holder="second"))
    assert refusal.message == 'leases.coordination.k8s.io "a" already exists'
    assert refusal.error.body["details"] == {
        "name": "a",
        "group": "coordination.k8s.io",
        "kind": "leases",
    }
    assert api.get(leases(namespace, "a"))["spec"]["holderIdentity"] == "nobody"


def test_generated_names_begin_as_asked_and_differ(api: Client, namespace: str) -> None:
    wish = {"metadata": {"generateName": "batch-"}, "spec": {}}
    made = [api.create(leases(namespace), wish)["metadata"] for _ in range(10)]
    assert all(re.fullmatch(r"batch-[a-z0-9]{5}", m["name"]) for m in made)
    assert {m["generateName"] for m in made} == {"batch-"}
    assert len({m["name"] for m in made}) == 10


def test_a_dry_run_answers_as_if_and_stores_nothing(api: Client, namespace: str) -> None:
    dry = api.create(leases(namespace), lease("a"), dryRun="All")
    assert dry["metadata"]["uid"]
    assert dry["metadata"]["creationTimestamp"]
    assert "resourceVersion" not in dry["metadata"]
    assert api.find(leases(namespace, "a")) is None
    with refused(422, "Invalid"):
        api.create(leases(namespace), lease("a"), dryRun="Perhaps")


def test_a_pod_gets_its_defaults(api: Client, namespace: str) -> None:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    made = api.create(pods(namespace), pod("p", {"containers": [container(resources=limits)]}))
    spec = made["spec"]
    assert (spec["restartPolicy"], spec["dnsPolicy"]) == ("Always", "ClusterFirst")
    assert (spec["serviceAccountName"], spec["priority"]) == ("default", 0)
    # An extended resource with a limit alone is requested in the same amount.
    assert spec["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": "1"},
        "requests": {"nvidia.com/gpu": "1"},
    }
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    seconds = {t["key"]: t["tolerationSeconds"] for t in spec["tolerations"]}
    assert seconds == {
        "node.kubernetes.io/not-ready": 300,
        "node.kubernetes.io/unreachable": 300,
    }


def test_an_invalid_object_is_refused_with_a_cause_for_each_field(
    api: Client, namespace: str
) -> None:
    broken = pod("p", {"containers": [{"name": "Not_A_Name"}], "restartPolicy": "Sometimes"})
    with refused(422, "Invalid") as refusal:
        api.create(pods(namespace), broken)
    assert causes(refusal.error) == {
        "spec.containers[0].image": "FieldValueRequired",
        "spec.containers[0].name": "FieldValueInvalid",
        "spec.restartPolicy": "FieldValueNotSupported",
    }
    assert refusal.error.body["details"]["kind"] == "Pod"
    assert refusal.message.startswith('Pod "p" is invalid: ')


@pytest.mark.parametrize("amount", ["1.5", "500m"])
def test_a_part_of_an_extended_resource_is_refused(
    api: Client, namespace: str, amount: str
) -> None:
    limits = {"limits": {"nvidia.com/gpu": amount}}
    with refused(422, "Invalid") as refusal:
        api.create(pods(namespace), pod("p", {"containers": [container(resources=limits)]}))
    assert "must be an integer" in refusal.message


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "x" * 254, ""])
def test_a_bad_name_is_refused(api: Client, namespace: str, name: str) -> None:
    with refused(422, "Invalid") as refusal:
        api.create(config_maps(namespace), config_map(name))
    assert set(causes(refusal.error)) <= {"metadata.name", "metadata.generateName"}
    assert causes(refusal.error)


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"k": "x" * 64}}, "metadata.labels"),
        ({"labels": {"a/b/c": "x"}}, "metadata.labels"),
        ({"annotations": {"big": "x" * (256 * 1024)}}, "metadata.annotations"),
    ],
    ids=["long label", "bad key", "huge annotations"],
)
def test_labels_and_annotations_have_their_limits(
    api: Client, namespace: str, metadata: Object, field: str
) -> None:
    with refused(422, "Invalid") as refusal:
        api.create(leases(namespace), lease("a", **metadata))
    assert set(causes(refusal.error)) == {field}


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"metadata": {"name": 5}}', b'{"kind": "Pod", "apiVersion": "v1"}']
)
def test_a_body_that_is_not_the_kind_is_a_bad_request(
    api: Client, namespace: str, body: bytes
) -> None:
    answer = api.request("POST", leases(namespace), body=body)
    assert (answer.status, answer.json()["reason"]) == (400, "BadRequest")


def test_a_body_of_an_unknown_media_type_is_unsupported(api: Client, namespace: str) -> None:
    answer = api.request("POST", leases(namespace), body=b"x", content_type="text/csv")
    assert (answer.status, answer.json()["reason"]) == (415, "UnsupportedMediaType")


def test_another_namespace_in_the_body_is_a_bad_request(api: Client, namespace: str) -> None:
    with refused(400, "BadRequest"):
        api.create(leases(namespace), lease("a", namespace="default"))


@pytest.mark.parametrize("mode", ["Strict", "Warn", "Ignore"])
def test_an_unknown_field_is_refused_warned_of_or_dropped_as_asked(
    api: Client, namespace: str, mode: str
) -> None:
    wish = {**lease("a"), "extra": 1}
    wish["spec"]["holderIdentiti"] = "typo"
    answer = api.request("POST", leases(namespace), body=wish, query={"fieldValidation": mode})
    warnings = answer.headers.get_all("Warning") or []
    if mode == "Strict":
        assert (answer.status, answer.json()["reason"]) == (400, "BadRequest")
        assert 'unknown field "spec.holderIdentiti"' in answer.json()["message"]
        return
    assert answer.status == 201
    assert "extra" not in answer.json()
    assert sorted(warnings) == (
        ['299 - "unknown field \\"extra\\""', '299 - "unknown field \\"spec.holderIdentiti\\""']
        if mode == "Warn"
        else []
    )


def test_an_unknown_kind_of_object_is_not_found(api: Client, namespace: str) -> None:
    assert api.request("GET", core("unicorns", namespace)).status == 404
    with refused(404, "NotFound") as refusal:
        api.get(pods(namespace, "nobody"))
    assert refusal.message == 'pods "nobody" not found'
    assert refusal.error.body["details"] == {"name": "nobody", "kind": "pods"}


def test_a_method_that_a_path_does_not_have_is_not_allowed(api: Client, namespace: str) -> None:
    answer = api.request("PUT", leases(namespace), body=lease("a"))
    assert (answer.status, answer.json()["reason"]) == (405, "MethodNotAllowed")
