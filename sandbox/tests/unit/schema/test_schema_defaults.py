"""Defaults of objects, and fields that the server sets in new ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.schema import defaults, schema
from sandbox.tests.unit.schema.given import (
    CONFIG_MAP,
    DAEMON_SET,
    NODE,
    NOW,
    POD,
    Object,
    complete,
    kind,
    named,
    pod,
)

_ADMISSION = "admissionregistration.k8s.io/v1"


def created(of: Kind, obj: Object) -> Object:
    complete(of, obj)
    obj["metadata"]["uid"] = "u-1"
    defaults.prepare_create(of, obj, now=NOW)
    return obj


def test_a_pod_gets_its_defaults() -> None:
    spec = complete(POD, pod())["spec"]
    assert spec == {
        "containers": [
            {
                "name": "main",
                "image": "busybox:1",
                "imagePullPolicy": "IfNotPresent",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
    }


def test_what_a_pod_says_is_kept() -> None:
    spec = complete(POD, pod(restartPolicy="Never", terminationGracePeriodSeconds=0))["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Never", 0)


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1.36", "IfNotPresent"),
        ("host:5000/busybox", "Always"),
        ("host:5000/a/busybox:1", "IfNotPresent"),
        ("busybox@sha256:0", "IfNotPresent"),
    ],
)
def test_an_image_without_a_tag_is_always_pulled(image: str, policy: str) -> None:
    found = complete(POD, pod(containers=[{"name": "a", "image": image}]))
    assert found["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_a_limit_alone_is_requested_too_but_not_in_a_template() -> None:
    limited = {"name": "a", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    found = complete(POD, pod(containers=[limited], initContainers=[copy.deepcopy(limited)]))
    for part in ("containers", "initContainers"):
        requests = found["spec"][part][0]["resources"]["requests"]
        assert requests == {"nvidia.com/gpu": "1"}
    template = named(DAEMON_SET, spec={"template": {"spec": {"containers": [limited]}}})
    del limited["resources"]["requests"]  # type: ignore[attr-defined] # a dict of dicts
    spec = complete(DAEMON_SET, template)["spec"]["template"]["spec"]
    assert "requests" not in spec["containers"][0]["resources"]


def test_a_volume_without_a_source_is_an_empty_folder() -> None:
    volumes = [{"name": "v"}, {"name": "c", "configMap": {"name": "m"}}]
    found = complete(POD, pod(volumes=volumes))["spec"]["volumes"]
    assert found == [
        {"name": "v", "emptyDir": {}},
        {"name": "c", "configMap": {"name": "m", "defaultMode": 420}},
    ]


def test_admission_gives_a_pod_account_priority_and_tolerations() -> None:
    found = complete(POD, pod())
    defaults.admit_pod(found)
    spec = found["spec"]
    assert (spec["serviceAccountName"], spec["priority"]) == ("default", 0)
    assert [t["tolerationSeconds"] for t in spec["tolerations"]] == [300, 300]


def test_admission_takes_the_priority_of_the_class_whatever_the_pod_says() -> None:
    found = complete(POD, pod(priority=9, tolerations=[{"operator": "Exists"}]))
    high = {"metadata": {"name": "high"}, "value": 5, "preemptionPolicy": "Never"}
    defaults.admit_pod(found, priority_class=high)
    spec = found["spec"]
    assert (spec["priority"], spec["priorityClassName"], spec["preemptionPolicy"]) == (
        5,
        "high",
        "Never",
    )
    assert spec["tolerations"] == [{"operator": "Exists"}]  # it tolerates all already


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"limits": {"nvidia.com/gpu": "1"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "0"}}, "BestEffort"),
    ],
)
def test_a_pod_has_a_quality_by_its_processor_and_memory(resources: Any, quality: str) -> None:
    found = created(POD, pod(containers=[{"name": "a", "image": "x", "resources": resources}]))
    assert found["status"] == {"phase": "Pending", "qosClass": quality}


def test_a_new_object_has_no_status_of_its_writer_but_a_node_has() -> None:
    assert created(DAEMON_SET, named(DAEMON_SET, status={"numberReady": 7}))["status"] == {
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 0,
        "numberReady": 0,
    }
    found = created(NODE, named(NODE, status={"capacity": {"cpu": "8"}}))
    assert found["status"]["allocatable"] == {"cpu": "8"}


def test_a_namespace_is_active_labelled_and_held() -> None:
    of = kind("Namespace")
    found = created(of, named(of, "team"))
    assert found["status"] == {"phase": "Active"}
    assert found["spec"] == {"finalizers": ["kubernetes"]}
    assert found["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}


def test_a_secret_takes_text_in_place_of_what_it_has() -> None:
    of = kind("Secret")
    found = complete(of, named(of, data={"a": "AA==", "b": "AA=="}, stringData={"a": "v"}))
    assert (found["type"], found["data"]) == ("Opaque", {"a": "dg==", "b": "AA=="})
    assert "stringData" not in found


def test_a_deployment_rolls_by_quarters() -> None:
    of = kind("Deployment", "apps/v1")
    spec = complete(of, named(of))["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    recreate = complete(of, named(of, spec={"strategy": {"type": "Recreate"}}))["spec"]
    assert recreate["strategy"] == {"type": "Recreate"}


def test_a_job_finds_its_pods_by_its_own_uid() -> None:
    of = kind("Job", "batch/v1")
    found = created(of, named(of, "j"))
    assert found["spec"]["selector"] == {
        "matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}
    }
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert labels["batch.kubernetes.io/controller-uid"] == "u-1"
    assert labels["job-name"] == "j"
    own = created(of, named(of, "j", spec={"manualSelector": True, "selector": {}}))
    assert own["spec"]["selector"] == {}


@pytest.mark.parametrize(
    ("spec", "completions"),
    [({}, 1), ({"parallelism": 3}, None), ({"completions": 5}, 5)],
)
def test_a_job_with_parallelism_alone_is_a_work_queue(spec: Any, completions: int | None) -> None:
    of = kind("Job", "batch/v1")
    assert complete(of, named(of, spec=spec))["spec"].get("completions") == completions


def test_a_service_gets_an_address_unless_it_wants_none() -> None:
    of = kind("Service")
    spec = created(of, named(of, spec={"ports": [{"port": 80}]}))["spec"]
    assert spec["clusterIP"].startswith("10.96.")
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    headless = created(of, named(of, spec={"clusterIP": "None"}))["spec"]
    assert headless["clusterIPs"] == ["None"]
    named_only = {"type": "ExternalName", "externalName": "a.b"}
    assert "clusterIP" not in created(of, named(of, spec=named_only))["spec"]


def test_a_webhook_fails_closed_and_sees_everything_unless_it_says_otherwise() -> None:
    of = kind("MutatingWebhookConfiguration", _ADMISSION)
    rules = [{"operations": ["CREATE"], "apiGroups": [""], "resources": ["pods"]}]
    [hook] = complete(of, named(of, webhooks=[{"name": "a.b.c", "rules": rules}]))["webhooks"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Fail", 10)
    assert (hook["namespaceSelector"], hook["objectSelector"]) == ({}, {})
    assert hook["reinvocationPolicy"] == "Never"
    assert hook["rules"][0]["scope"] == "*"


@pytest.mark.parametrize("of", [k for k in kinds.KINDS if not k.custom], ids=lambda k: k.resource)
def test_defaults_twice_are_defaults_once_and_fit_the_kind(of: Kind) -> None:
    once = complete(of, named(of))
    again = copy.deepcopy(once)
    assert schema.settle(of, again) == []
    defaults.apply_defaults(of, again, now=NOW)
    assert again == once


def test_kinds_without_defaults_stay_as_they_are() -> None:
    assert complete(CONFIG_MAP, named(CONFIG_MAP)) == named(CONFIG_MAP)
