"""Services: admission on every replica, scheduling and metrics on the leader."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart import rendering
from tests.chart.rendering import Object, Rendered

ROLE = "hami.io/scheduler-role"


def ports(service: Object) -> dict[str, Object]:
    return {port.pop("name"): port for port in service["spec"]["ports"]}


def test_scheduling_reaches_the_leader_and_admission_every_replica() -> None:
    rendered = rendering.render()
    labels = rendered.pod("Deployment", "hami-scheduler")["metadata"]["labels"]

    leader = rendered.one("Service", "hami-scheduler")["spec"]["selector"]
    every_replica = rendered.one("Service", "hami-webhook")["spec"]["selector"]

    assert leader == {**every_replica, ROLE: "leader"}
    assert every_replica.items() <= labels.items()
    assert labels["app.kubernetes.io/component"] == "hami-scheduler"
    # hami writes it itself; a template that had it would take it back with every upgrade.
    assert ROLE not in labels


def test_jobs_are_behind_no_service() -> None:
    rendered = rendering.render()
    selectors = [
        rendered.one("Service", name)["spec"]["selector"] for name in rendered.names("Service")
    ]
    for job in rendered.names("Job"):
        labels = rendered.pod("Job", job)["metadata"]["labels"]
        assert not any(selector.items() <= labels.items() for selector in selectors)


@pytest.mark.parametrize(
    ("values", "scheduler", "webhook"),
    [
        (
            {},
            {
                "http": {"port": 443, "targetPort": 8443},
                "monitor": {"port": 31993, "targetPort": 9395, "nodePort": 31993},
            },
            {
                "http": {"port": 443, "targetPort": 8443, "nodePort": 31998},
                "monitor": {"port": 31993, "targetPort": 9395},
            },
        ),
        (
            {"scheduler.service.schedulerPort": None, "scheduler.metricsBindAddress": ""},
            {"http": {"port": 443, "targetPort": 8443}},
            {"http": {"port": 443, "targetPort": 8443}},
        ),
        (
            {
                "scheduler.service.type": "ClusterIP",
                "scheduler.service.httpPort": 8443,
                "scheduler.service.httpTargetPort": 9443,
                "scheduler.service.monitorTargetPort": "metrics",
            },
            {
                "http": {"port": 8443, "targetPort": 9443},
                "monitor": {"port": 31993, "targetPort": "metrics"},
            },
            {
                "http": {"port": 8443, "targetPort": 9443},
                "monitor": {"port": 31993, "targetPort": "metrics"},
            },
        ),
    ],
)
def test_ports_are_those_of_the_values(
    values: dict[str, Any], scheduler: Object, webhook: Object
) -> None:
    rendered = rendering.render(values)
    assert ports(rendered.one("Service", "hami-scheduler")) == scheduler
    assert ports(rendered.one("Service", "hami-webhook")) == webhook


def test_services_carry_what_their_platform_asks_for() -> None:
    values = {
        "scheduler.service.type": "LoadBalancer",
        "scheduler.service.labels": {"a": "b"},
        "scheduler.service.annotations": {"c": "d"},
    }
    rendered = rendering.render(values)
    for name in ("hami-scheduler", "hami-webhook"):
        service = rendered.one("Service", name)
        assert service["spec"]["type"] == "LoadBalancer"
        assert service["metadata"]["labels"]["a"] == "b"
        assert service["metadata"]["annotations"] == {"c": "d"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {},
            {
                "monitorport": {"port": 31992, "targetPort": "monitorport", "nodePort": 31992},
                "agent": {"port": 9396, "targetPort": "agent"},
            },
        ),
        (
            {
                "devicePlugin.service.type": "ClusterIP",
                "devicePlugin.service.httpPort": 9394,
                "devicePlugin.metricsBindAddress": "0.0.0.0:9000",
            },
            {
                "monitorport": {"port": 9394, "targetPort": "monitorport"},
                "agent": {"port": 9000, "targetPort": "agent"},
            },
        ),
    ],
)
def test_a_nodes_metrics_are_those_of_the_node_that_is_asked(
    values: dict[str, Any], expected: Object
) -> None:
    rendered = rendering.render(values)
    service = rendered.one("Service", "hami-device-plugin-monitor")
    assert ports(service) == expected
    labels = rendered.pod("DaemonSet", "hami-device-plugin")["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    local = service["spec"].get("externalTrafficPolicy") == "Local"
    assert local is (service["spec"]["type"] == "NodePort")
    # Also while its agent has no cards to offer: then its log is needed most.
    assert service["spec"]["publishNotReadyAddresses"] is True


def monitored(rendered: Rendered, name: str) -> list[str]:
    """Name the Services that a ServiceMonitor reads."""
    chosen = rendered.one("ServiceMonitor", name)["spec"]["selector"]["matchLabels"]
    services = [rendered.one("Service", each) for each in rendered.names("Service")]
    return [
        each["metadata"]["name"]
        for each in services
        if chosen.items() <= each["metadata"]["labels"].items()
    ]


def test_prometheus_reads_the_cluster_once_and_admission_on_every_replica() -> None:
    rendered = rendering.render({"prometheus.enabled": True})

    assert monitored(rendered, "hami-scheduler") == ["hami-scheduler"]
    assert monitored(rendered, "hami-webhook") == ["hami-webhook"]
    [endpoint] = rendered.one("ServiceMonitor", "hami-webhook")["spec"]["endpoints"]
    assert endpoint["port"] == "monitor"
    assert endpoint["relabelings"][0]["action"] == "drop"
    assert endpoint["metricRelabelings"][0]["regex"].startswith("gpu_webhook_")


def test_prometheus_reads_agent_and_monitor_of_every_node() -> None:
    rendered = rendering.render({"prometheus.enabled": True})
    assert monitored(rendered, "hami-device-plugin") == ["hami-device-plugin-monitor"]
    endpoints = rendered.one("ServiceMonitor", "hami-device-plugin")["spec"]["endpoints"]
    assert [each["port"] for each in endpoints] == ["monitorport", "agent"]
    for endpoint in endpoints:
        # The pod in a sample is the one that uses the card, not the one that tells.
        assert endpoint["honorLabels"] is True
        assert endpoint["relabelings"][0]["targetLabel"] == "node"
    silent = rendering.render({"prometheus.enabled": True, "devicePlugin.metricsBindAddress": ""})
    endpoints = silent.one("ServiceMonitor", "hami-device-plugin")["spec"]["endpoints"]
    assert [each["port"] for each in endpoints] == ["monitorport"]


def test_a_cluster_without_prometheus_operator_gets_no_monitor() -> None:
    assert rendering.render({"prometheus.enabled": True}, knows=()).names("ServiceMonitor") == []
    assert rendering.render().names("ServiceMonitor") == []
