"""Fallback alone: three replicas of the webhook, and nothing that schedules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart import rendering
from tests.chart.rendering import Rendered

ALONE = {"webhookOnly.enabled": True}


def alone(values: dict[str, Any] | None = None, **settings: Any) -> Rendered:
    return rendering.render({**ALONE, **(values or {})}, **settings)


@pytest.mark.parametrize("version", rendering.VERSIONS)
def test_only_what_the_webhook_needs_is_installed(version: str) -> None:
    lasting = sorted(
        (each["kind"], each["metadata"]["name"])
        for each in alone(kube=version).objects
        if "helm.sh/hook" not in each["metadata"].get("annotations", {})
    )
    assert lasting == [
        ("ClusterRole", "hami-webhook"),
        ("ClusterRoleBinding", "hami-webhook"),
        ("ConfigMap", "hami-webhook-device"),
        ("Deployment", "hami-webhook"),
        ("MutatingWebhookConfiguration", "hami-webhook"),
        ("PodDisruptionBudget", "hami-webhook"),
        ("Service", "hami-webhook"),
        ("ServiceAccount", "hami-webhook"),
    ]


def test_three_replicas_on_different_nodes_if_it_can_be() -> None:
    rendered = alone()
    assert rendered.one("Deployment", "hami-webhook")["spec"]["replicas"] == 3
    template = rendered.pod("Deployment", "hami-webhook")
    affinity = template["spec"]["affinity"]["podAntiAffinity"]
    [preferred] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    chosen = preferred["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert chosen.items() <= template["metadata"]["labels"].items()


def test_only_pods_with_a_mig_profile_wait_for_it() -> None:
    rendered = alone({"scheduler.overwriteEnv": True})
    [webhook] = rendered.one("MutatingWebhookConfiguration", "hami-webhook")["webhooks"]
    [condition] = webhook["matchConditions"]

    assert "startsWith('nvidia.com/mig-')" in condition["expression"]
    assert "nvidia.com/gpu" not in condition["expression"]
    assert "annotations" not in condition["expression"]


def test_its_service_reaches_its_pods_and_its_metrics() -> None:
    service = alone().one("Service", "hami-webhook")["spec"]
    template = alone().pod("Deployment", "hami-webhook")
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    nodes = {port["name"]: port["nodePort"] for port in service["ports"]}
    assert nodes == {"http": 31998, "monitor": 31993}


def test_prometheus_reads_all_replicas_whole() -> None:
    rendered = alone({"prometheus.enabled": True})
    assert rendered.names("ServiceMonitor") == ["hami-webhook"]
    [endpoint] = rendered.one("ServiceMonitor", "hami-webhook")["spec"]["endpoints"]
    assert endpoint == {"port": "monitor"}


def test_pods_run_where_the_schedulers_would() -> None:
    values = {
        "scheduler.nodeSelector": {"a": "b"},
        "scheduler.podAnnotations": {"c": "d"},
        "scheduler.extender.resources": {"limits": {"memory": "64Mi"}},
        "webhookOnly.replicas": 1,
    }
    rendered = alone(values)
    template = rendered.pod("Deployment", "hami-webhook")
    assert template["spec"]["nodeSelector"] == {"a": "b"}
    assert template["metadata"]["annotations"]["c"] == "d"
    [container] = template["spec"]["containers"]
    assert container["resources"] == {"limits": {"memory": "64Mi"}}
    assert rendered.names("PodDisruptionBudget") == []
