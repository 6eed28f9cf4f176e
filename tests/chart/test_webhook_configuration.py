"""The webhook configuration: which pods, which server, failure policy."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hami.admission import checks
from hami.scheduler import kube_scheduler
from hami.vendors import device_config
from hami.wire import annotation_keys, mig
from tests.chart import rendering
from tests.chart.rendering import Object

WEBHOOK = "scheduler.admissionWebhook"
IGNORE = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
WITH_CONDITIONS, WITHOUT = "1.28.0", "1.27.0"


def webhook(values: dict[str, Any] | None = None, **settings: Any) -> Object:
    rendered = rendering.render(values, **settings)
    [found] = rendered.one("MutatingWebhookConfiguration", "hami-webhook")["webhooks"]
    assert isinstance(found, dict)
    return found


def condition(values: dict[str, Any] | None = None, **settings: Any) -> str:
    [found] = webhook(values, **settings)["matchConditions"]
    expression = found["expression"]
    assert isinstance(expression, str)
    return expression


def lists(expression: str) -> list[list[str]]:
    return [json.loads(each) for each in re.findall(r'\["[^\]]*\]', expression)]


def test_by_default_it_is_asked_as_hami_is() -> None:
    found = webhook(kube=WITHOUT)
    assert found == {
        "name": "vgpu.hami.io",
        "admissionReviewVersions": ["v1", "v1beta1"],
        "clientConfig": {
            "service": {
                "name": "hami-webhook",
                "namespace": "hami-system",
                "path": "/webhook",
                "port": 443,
            }
        },
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "*",
            }
        ],
        "namespaceSelector": {"matchExpressions": [IGNORE]},
        "objectSelector": {"matchExpressions": [IGNORE]},
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "Never",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": 10,
    }


def test_from_1_28_on_only_pods_that_concern_us_wait_for_us() -> None:
    assert "matchConditions" not in webhook(kube=WITHOUT)

    resources, annotations = lists(condition(kube=WITH_CONDITIONS))

    read = rendering.render().one("ConfigMap", "hami-scheduler-device")["data"]
    vendors = device_config.parse(read["device-config.yaml"], source="the chart").vendors
    assert resources == list(kube_scheduler.managed_resources(vendors))
    assert sorted(annotations) == sorted(checks.protected_annotations(vendors))


def test_the_condition_sees_whatever_admission_would_change_or_refuse() -> None:
    expression = condition()

    assert f"name.startsWith('{mig.RESOURCE_PREFIX}')" in expression
    assert f"'{annotation_keys.ASSIGNED_NODE}' in object.metadata.labels" in expression
    for field in ("containers", "initContainers"):
        assert f"has(object.spec.{field}) ? object.spec.{field} : []" in expression
    for field in ("limits", "requests"):
        assert f"has(c.resources.{field}) ? c.resources.{field} : {{}}" in expression


def test_resources_of_other_names_are_in_the_condition() -> None:
    resources, _ = lists(condition({"resourceName": "example.com/gpu", "resourceMem": ""}))
    assert resources[0] == "example.com/gpu"
    assert "nvidia.com/gpumem" not in resources


def test_without_fallback_pods_with_a_mig_profile_do_not_wait() -> None:
    assert mig.RESOURCE_PREFIX not in condition({"fallback.mode": "off"})


@pytest.mark.parametrize(
    "values",
    [
        {"scheduler.overwriteEnv": True},
        {"scheduler.overwriteEnv": "true"},
        {"device-config.content": "nvidia: {overwriteEnv: true}"},
    ],
)
def test_where_every_pod_is_changed_every_pod_is_sent(values: dict[str, Any]) -> None:
    assert "matchConditions" not in webhook(values)


def test_namespaces_can_be_left_alone_and_chosen() -> None:
    chosen = [{"key": "team", "operator": "Exists"}]
    found = webhook(
        {
            f"{WEBHOOK}.whitelistNamespaces": ["default", "kube-system"],
            f"{WEBHOOK}.namespaceSelector.matchLabels": {"gpu": "yes"},
            f"{WEBHOOK}.namespaceSelector.matchExpressions": chosen,
        }
    )
    names = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": ["default", "kube-system"],
    }
    assert found["namespaceSelector"] == {
        "matchLabels": {"gpu": "yes"},
        "matchExpressions": [IGNORE, names, *chosen],
    }


def test_the_selector_can_be_left_to_the_platform() -> None:
    found = webhook({f"{WEBHOOK}.manageNamespaceSelector": False})
    assert "namespaceSelector" not in found
    assert found["objectSelector"] == {"matchExpressions": [IGNORE]}


def test_pods_can_be_chosen() -> None:
    chosen = [{"key": "team", "operator": "Exists"}]
    found = webhook(
        {
            f"{WEBHOOK}.objectSelector.matchLabels": {"gpu": "yes"},
            f"{WEBHOOK}.objectSelector.matchExpressions": chosen,
        }
    )
    assert found["objectSelector"] == {
        "matchLabels": {"gpu": "yes"},
        "matchExpressions": [IGNORE, *chosen],
    }


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("gpu.example", "https://gpu.example:31998/webhook"),
        ("10.0.0.1", "https://10.0.0.1:31998/webhook"),
        ("fd00::1", "https://[fd00::1]:31998/webhook"),
    ],
)
def test_an_address_of_ones_own_takes_the_services_place(host: str, url: str) -> None:
    custom = {f"{WEBHOOK}.customURL.enabled": True, f"{WEBHOOK}.customURL.host": host}
    assert webhook(custom)["clientConfig"] == {"url": url}


def test_what_the_service_offers_is_what_the_api_server_asks_for() -> None:
    rendered = rendering.render({"scheduler.service.httpPort": 8443})
    [found] = rendered.one("MutatingWebhookConfiguration", "hami-webhook")["webhooks"]
    asked = found["clientConfig"]["service"]
    service = rendered.one("Service", asked["name"])["spec"]

    [port] = [each for each in service["ports"] if each["port"] == asked["port"]]
    container = rendered.container("Deployment", "hami-scheduler", "vgpu-scheduler-extender")
    assert port["targetPort"] in [each["containerPort"] for each in container["ports"]]
    labels = rendered.pod("Deployment", "hami-scheduler")["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()


def test_admission_never_waits_for_itself() -> None:
    for values in ({}, {"webhookOnly.enabled": True}):
        for pod in rendering.render(values).pods():
            assert pod["metadata"]["labels"]["hami.io/webhook"] == "ignore"


def test_without_admission_there_is_nothing_of_it() -> None:
    rendered = rendering.render({f"{WEBHOOK}.enabled": False})

    assert rendered.names("MutatingWebhookConfiguration") == []
    assert rendered.names("Service") == ["hami-device-plugin-monitor", "hami-scheduler"]
    container = rendered.container("Deployment", "hami-scheduler", "vgpu-scheduler-extender")
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTP"
