"""Objects that are refused, with a cause for each field."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.schema.kind_rules import validate
from sandbox.tests.unit.schema.given import (
    CONFIG_MAP,
    LEASE,
    NODE,
    POD,
    Object,
    complete,
    config_map,
    kind,
    named,
    pod,
)

_RBAC = "rbac.authorization.k8s.io/v1"
_HOOKS = kind("ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1")
_JOB, _DEPLOYMENT = kind("Job", "batch/v1"), kind("Deployment", "apps/v1")
REQUIRED, INVALID = "FieldValueRequired", "FieldValueInvalid"
FORBIDDEN, UNSUPPORTED = "FieldValueForbidden", "FieldValueNotSupported"
DUPLICATE = "FieldValueDuplicate"


def wrong(of: Kind, obj: Object, old: Object | None = None) -> dict[str, str]:
    return {cause.field: cause.reason for cause in validate(of, complete(of, obj), old)}


def said(of: Kind, obj: Object, old: Object | None = None) -> str:
    return "; ".join(cause.message for cause in validate(of, complete(of, obj), old))


def container(**fields: object) -> Object:
    return {"name": "main", "image": "x", **fields}


def test_a_sound_pod_has_nothing_wrong() -> None:
    assert wrong(POD, pod(nodeSelector={"a": "b"}, tolerations=[{"operator": "Exists"}])) == {}


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({"containers": []}, {"spec.containers": REQUIRED}),
        (
            {"containers": [{"name": "A_"}], "restartPolicy": "X"},
            {
                "spec.containers[0].name": INVALID,
                "spec.containers[0].image": REQUIRED,
                "spec.restartPolicy": UNSUPPORTED,
            },
        ),
        (
            {"containers": [container(), container()]},
            {"spec.containers[1].name": DUPLICATE},
        ),
        (
            {"initContainers": [container()]},
            {"spec.initContainers[0].name": DUPLICATE},
        ),
        (
            {"containers": [container(volumeMounts=[{"name": "v", "mountPath": "/"}])]},
            {"spec.containers[0].volumeMounts[0].name": "FieldValueNotFound"},
        ),
        (
            {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]},
            {"spec.volumes[0].hostPath": FORBIDDEN},
        ),
        (
            {"containers": [container(env=[{"name": ""}], ports=[{"containerPort": 0}])]},
            {"spec.containers[0].env[0].name": REQUIRED,
             "spec.containers[0].ports[0].containerPort": REQUIRED},
        ),
        ({"nodeSelector": {"a b": "c"}}, {"spec.nodeSelector": INVALID}),
        (
            {"tolerations": [{"key": "a", "effect": "X"}]},
            {"spec.tolerations[0].effect": UNSUPPORTED},
        ),
        (
            {"schedulingGates": [{"name": "a"}], "nodeName": "n"},
            {"spec.nodeName": FORBIDDEN},
        ),
        ({"activeDeadlineSeconds": 0}, {"spec.activeDeadlineSeconds": INVALID}),
    ],
)  # fmt: skip
def test_each_wrong_field_of_a_pod_is_a_cause(spec: Any, causes: dict[str, str]) -> None:
    found = pod(**spec)
    if "containers" not in spec:
        found["spec"]["containers"] = [container()]
    assert wrong(POD, found) == causes


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"limits": {"nvidia.com/gpu": "1.5"}}, 'Invalid value: "1500m": must be an integer'),
        ({"limits": {"gpu": "1"}}, "must be a standard resource type or fully qualified"),
        ({"limits": {"cpu": "-1"}}, "must be greater than or equal to 0"),
        (
            {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
            "must be less than or equal to cpu limit of 1",
        ),
        (
            {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "1"}},
            "must be equal to nvidia.com/gpu limit of 2",
        ),
        ({"requests": {"nvidia.com/gpu": "1"}}, "Limit must be set for non overcommitable"),
    ],
)
def test_amounts_have_their_rules(resources: Any, words: str) -> None:
    assert words in said(POD, pod(containers=[container(resources=resources)]))


@pytest.mark.parametrize(
    ("metadata", "field", "reason"),
    [
        ({}, "metadata.name", REQUIRED),
        ({"name": "Upper"}, "metadata.name", INVALID),
        ({"name": "x" * 254}, "metadata.name", INVALID),
        ({"name": "x", "generateName": "U_"}, "metadata.generateName", INVALID),
        ({"name": "x", "labels": {"k": "x" * 64}}, "metadata.labels", INVALID),
        ({"name": "x", "labels": {"a/b/c": "x"}}, "metadata.labels", INVALID),
        ({"name": "x", "labels": {"/c": "x"}}, "metadata.labels", INVALID),
        ({"name": "x", "annotations": {"b c": ""}}, "metadata.annotations", INVALID),
        (
            {"name": "x", "annotations": {"b": "x" * 262144}},
            "metadata.annotations",
            "FieldValueTooLong",
        ),
        ({"name": "x", "finalizers": ["plain"]}, "metadata.finalizers[0]", INVALID),
    ],
)
def test_metadata_has_its_rules(metadata: Any, field: str, reason: str) -> None:
    found = {**config_map(), "metadata": metadata}
    assert wrong(CONFIG_MAP, found) == {field: reason}


@pytest.mark.parametrize(
    ("of", "name", "good"),
    [
        (kind("Namespace"), "a.b", False),
        (kind("Role", _RBAC), "system:a.b", True),
        (kind("Role", _RBAC), "a/b", False),
        (NODE, "a.b", True),
        (NODE, "Not_A_Node", False),
    ],
)
def test_names_differ_by_kind(of: Kind, name: str, *, good: bool) -> None:
    assert (wrong(of, named(of, name)) == {}) is good


def test_one_controller_at_most_owns_an_object() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "uid": "u", "controller": True}
    found = config_map()
    found["metadata"]["ownerReferences"] = [{**owner, "name": "a"}, {**owner, "name": "b"}]
    assert wrong(CONFIG_MAP, found) == {"metadata.ownerReferences": INVALID}


def test_identity_cannot_be_changed() -> None:
    old = config_map()
    old["metadata"] |= {"uid": "one", "creationTimestamp": "2026-01-01T00:00:00Z"}
    new = {**old, "metadata": {**old["metadata"], "uid": "two"}}
    assert wrong(CONFIG_MAP, new, old) == {"metadata.uid": INVALID}


def test_what_is_being_deleted_takes_no_new_finalizer() -> None:
    old = config_map()
    old["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/a"]}
    fewer = {**old, "metadata": {**old["metadata"], "finalizers": []}}
    more = {**old, "metadata": {**old["metadata"], "finalizers": ["a/a", "a/b"]}}
    assert wrong(CONFIG_MAP, fewer, old) == {}
    assert wrong(CONFIG_MAP, more, old) == {"metadata.finalizers": FORBIDDEN}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedulerName": "other"}, "pod updates may not change fields other than"),
        ({"nodeName": "n"}, "pod updates may not change fields other than"),
        ({"containers": [container(image="other")]}, ""),
        ({"containers": [container(), container(name="b")]}, "may not add or remove containers"),
        ({"containers": [container(args=["x"])]}, "pod updates may not change fields other than"),
        ({"activeDeadlineSeconds": 50}, ""),
        ({"activeDeadlineSeconds": 200}, "must be less than or equal to previous value"),
        ({"activeDeadlineSeconds": None}, "must not update from a positive integer to nil value"),
        ({"tolerations": [{"key": "a"}, {"key": "b"}]}, ""),
        ({"tolerations": []}, "existing toleration can not be modified"),
        ({"schedulingGates": []}, ""),
        ({"schedulingGates": [{"name": "g"}, {"name": "h"}]}, "only deletion is allowed"),
        ({"nodeSelector": {"a": "b"}}, ""),
    ],
)
def test_little_of_a_pod_can_be_changed(change: Any, words: str) -> None:
    old = complete(
        POD,
        pod(
            containers=[container()],
            activeDeadlineSeconds=100,
            tolerations=[{"key": "a"}],
            schedulingGates=[{"name": "g"}],
        ),
    )
    new = {**old, "spec": {**copy.deepcopy(old["spec"]), **change}}
    told = said(POD, new, old)
    assert (words in told) if words else told == ""


def test_a_pod_without_gates_cannot_be_sent_elsewhere() -> None:
    old = complete(POD, pod())
    new = {**old, "spec": {**old["spec"], "nodeSelector": {"a": "b"}}}
    assert wrong(POD, new, old) == {"spec": FORBIDDEN}


def test_the_status_of_a_pod_is_written_whatever_its_spec() -> None:
    broken = pod(containers=[])
    assert validate(POD, complete(POD, broken), complete(POD, pod()), subresource="status") == []


def test_cards_of_a_node_are_whole_also_through_its_status() -> None:
    found = complete(NODE, named(NODE, status={"capacity": {"nvidia.com/gpu": "1.5"}}))
    causes = validate(NODE, found, found, subresource="status")
    assert {cause.field for cause in causes} == {
        "status.capacity.nvidia.com/gpu",
        "status.allocatable.nvidia.com/gpu",
    }


def test_an_immutable_config_map_stays_as_it_is() -> None:
    old = {**config_map(a="1"), "immutable": True}
    assert wrong(CONFIG_MAP, {**old, "data": {"a": "2"}}, old) == {"data": FORBIDDEN}
    assert wrong(CONFIG_MAP, config_map(a="1"), old) == {"immutable": FORBIDDEN}
    labelled = {**old, "metadata": {"name": "x", "labels": {"a": "b"}}}
    assert wrong(CONFIG_MAP, labelled, old) == {}


@pytest.mark.parametrize(
    ("of", "obj", "causes"),
    [
        (CONFIG_MAP, {"data": {"a b": "1"}}, {"data[a b]": INVALID}),
        (CONFIG_MAP, {"data": {"a": "1"}, "binaryData": {"a": "AA=="}}, {"data[a]": INVALID}),
        (kind("Secret"), {"type": "kubernetes.io/tls", "data": {"tls.key": "AA=="}},
         {"data[tls.crt]": REQUIRED}),
        (LEASE, {"spec": {"leaseDurationSeconds": 0}}, {"spec.leaseDurationSeconds": INVALID}),
        (kind("Event"), {"involvedObject": {"namespace": "n"}},
         {"involvedObject.namespace": INVALID}),
        (kind("Event"), {"involvedObject": {"kind": "Node", "name": "n"}}, {}),
        (kind("Service"), {"spec": {}}, {"spec.ports": REQUIRED}),
        (kind("Role", _RBAC), {"rules": [{"apiGroups": [""], "resources": ["pods"]}]},
         {"rules[0].verbs": REQUIRED}),
        (kind("RoleBinding", _RBAC), {"roleRef": {"kind": "Role"}}, {"roleRef.name": REQUIRED}),
        (kind("PriorityClass", "scheduling.k8s.io/v1"), {"value": 10**9 + 1}, {"value": FORBIDDEN}),
        (kind("RuntimeClass", "node.k8s.io/v1"), {}, {"handler": REQUIRED}),
        (kind("PodDisruptionBudget", "policy/v1"),
         {"spec": {"minAvailable": 1, "maxUnavailable": 1}}, {"spec": INVALID}),
        (kind("ResourceQuota"), {"spec": {"hard": {"pods": "-1"}}}, {"spec.hard[pods]": INVALID}),
        (NODE, {"spec": {"taints": [{"key": "a"}]}}, {"metadata.taints[0].effect": REQUIRED}),
        (_HOOKS, {"webhooks": [{"name": "short", "clientConfig": {"url": "http://x"}}]},
         {
             "webhooks[0].name": INVALID,
             "webhooks[0].sideEffects": REQUIRED,
             "webhooks[0].admissionReviewVersions": REQUIRED,
             "webhooks[0].clientConfig.url": INVALID,
         }),
    ],
)  # fmt: skip
def test_other_kinds_have_their_rules(of: Kind, obj: Any, causes: dict[str, str]) -> None:
    assert wrong(of, named(of, **obj)) == causes


def workload(of: Kind, **spec: object) -> Object:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container()]}}
    return named(of, spec={"template": template, "selector": {"matchLabels": {"a": "b"}}, **spec})


def test_a_deployment_selects_its_own_pods_and_keeps_its_selector() -> None:
    old = complete(_DEPLOYMENT, workload(_DEPLOYMENT))
    assert wrong(_DEPLOYMENT, copy.deepcopy(old), old) == {}
    other = workload(_DEPLOYMENT, selector={"matchLabels": {"a": "c"}})
    assert wrong(_DEPLOYMENT, other, old) == {
        "spec.template.metadata.labels": INVALID,
        "spec.selector": INVALID,
    }


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        ("In", ["b"], True),
        ("In", ["c"], False),
        ("NotIn", ["b"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
    ],
)
def test_a_selector_may_have_expressions(operator: str, values: list[str], *, fits: bool) -> None:
    rule = {"key": "a", "operator": operator, "values": values}
    found = workload(_DEPLOYMENT, selector={"matchExpressions": [rule]})
    assert (wrong(_DEPLOYMENT, found) == {}) is fits


def test_a_job_says_what_happens_to_a_container_that_ends_and_keeps_its_template() -> None:
    assert wrong(_JOB, workload(_JOB)) == {"spec.template.spec.restartPolicy": REQUIRED}
    good = workload(_JOB)
    good["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    old = complete(_JOB, good)
    new = copy.deepcopy(old)
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    assert wrong(_JOB, new, old) == {"spec.template": INVALID}
