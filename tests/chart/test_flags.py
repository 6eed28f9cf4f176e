"""Our own programs understand the command lines that the chart writes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami.admission.settings import Settings as WebhookSettings
from hami.cli import flags
from hami.cli import scheduler as cli_scheduler
from hami.cli import webhook as cli_webhook
from hami.scheduler.settings import Settings
from tests.chart import rendering
from tests.chart.rendering import Rendered

WEBHOOK = "scheduler.admissionWebhook"


def scheduler(rendered: Rendered) -> Settings:
    container = rendered.container("Deployment", "hami-scheduler", "vgpu-scheduler-extender")
    command, *arguments = container["args"]
    assert command == "scheduler"
    resolved = flags.resolve(cli_scheduler.TABLE, arguments, {})
    assert resolved.warnings == ()
    return resolved.settings


def webhook(rendered: Rendered) -> WebhookSettings:
    command, *arguments = rendered.container("Deployment", "hami-webhook", "hami-webhook")["args"]
    assert command == "webhook"
    resolved = flags.resolve(cli_webhook.TABLE, arguments, {})
    assert resolved.warnings == ()
    return resolved.settings


def changed(settings: msgspec.Struct) -> dict[str, Any]:
    """Give what differs from the program's own defaults."""
    usual = msgspec.structs.asdict(type(settings)())
    return {
        name: value
        for name, value in msgspec.structs.asdict(settings).items()
        if value != usual[name]
    }


def test_the_scheduler_gets_its_paths_and_keeps_its_other_defaults() -> None:
    assert changed(scheduler(rendering.render())) == {
        "http_bind": ":8443",
        "cert_file": "/etc/hami/tls/tls.crt",
        "key_file": "/etc/hami/tls/tls.key",
        "shutdown_delay": 5.0,
        "device_config_file": "/etc/hami/config/device-config.yaml",
        "leader_elect": True,
        "leader_elect_resource_name": "hami-scheduler",
        "leader_elect_resource_namespace": "hami-system",
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({f"{WEBHOOK}.enabled": False}, {"cert_file": "", "key_file": ""}),
        ({"fallback.mode": "off"}, {"mig_fallback": "off"}),
        ({"fallback.gpu": "whole"}, {"mig_fallback_gpu": "whole"}),
        (
            {"fallback.chains": [["1g.10gb"]]},
            {"mig_fallback_file": "/etc/hami/config/mig-fallback.yaml"},
        ),
        ({"schedulerName": "a"}, {"scheduler_name": "a", "leader_elect_resource_name": "a"}),
        ({"namespaceOverride": "a"}, {"leader_elect_resource_namespace": "a"}),
        (
            {"scheduler.leaderElect": False},
            {"leader_elect": False, "leader_elect_resource_name": ""},
        ),
        ({"scheduler.leaseDuration": "1m"}, {"leader_elect_lease_duration": 60.0}),
        ({"scheduler.renewDeadline": "7s"}, {"leader_elect_renew_deadline": 7.0}),
        ({"scheduler.retryPeriod": "2s"}, {"leader_elect_retry_period": 2.0}),
        (
            {"scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy": "spread"},
            {"node_scheduler_policy": "spread"},
        ),
        (
            {"scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy": "numa,binpack"},
            {"gpu_scheduler_policy": "numa,binpack"},
        ),
        (
            {"scheduler.forceOverwriteDefaultScheduler": False},
            {"force_overwrite_default_scheduler": False},
        ),
        ({"scheduler.nodeLockExpire": "9m"}, {"node_lock_timeout": 540.0}),
        ({"scheduler.overuse.action": "evict"}, {"overuse": "evict"}),
        ({"scheduler.overuse.grace": "5m"}, {"overuse_grace": 300.0}),
        (
            {"scheduler.overuse.exemptNamespaces": ["a", "b"]},
            {"overuse_exempt_namespaces": "a,b"},
        ),
        ({"devicePlugin.evictRefused": True}, {"evict_refused": True}),
        ({"scheduler.removeRejected": True}, {"remove_rejected": True}),
        ({"scheduler.nodeLockRetryTimeout": "28s"}, {"node_lock_retry_timeout": 28.0}),
        # No pod waits longer than kube-scheduler does.
        ({"scheduler.extenderHTTPTimeout": 30}, {"node_lock_retry_timeout": 30.0}),
        ({"scheduler.kubeQPS": 5}, {"kube_qps": 5.0}),
        ({"scheduler.kubeBurst": 10}, {"kube_burst": 10}),
        ({"scheduler.kubeTimeout": 7}, {"kube_timeout": 7.0}),
        ({"scheduler.kubeQPS": 0}, {"kube_qps": 0.0}),
        ({"scheduler.nodeLabelSelector": {"a": "b"}}, {"node_label_selector": "a=b"}),
        (
            {
                "scheduler.nodeLabelSelector": {"a": "b"},
                "global.managedNodeSelectorEnable": True,
                "global.managedNodeSelector": {"c": "d"},
            },
            {"node_label_selector": "a=b,c=d,usage=gpu"},
        ),
        (
            {f"{WEBHOOK}.highPriority.namespaces": ["*"]},
            {"high_priority_namespaces": "*"},
        ),
        (
            {f"{WEBHOOK}.highPriority.priorityClasses": ["a", "b"]},
            {"high_priority_classes": "a,b"},
        ),
        ({"legacyMetrics": True}, {"legacy_metrics": True}),
        (
            {
                "scheduler.metricsBindAddress": ":9000",
                "scheduler.service.monitorTargetPort": 9000,
            },
            {"metrics_bind_address": ":9000"},
        ),
        ({"scheduler.cardMetrics": False}, {"card_metrics": False}),
        ({"scheduler.containerMetricsLimit": 1_000_000}, {"container_metrics_limit": 1_000_000}),
        ({"scheduler.shutdownDelay": "0"}, {"shutdown_delay": 0.0}),
        ({"scheduler.drainTimeout": "1m"}, {"drain_timeout": 60.0}),
        ({"scheduler.service.httpTargetPort": 9443}, {"http_bind": ":9443"}),
        ({"scheduler.extender.extraArgs": ["--debug"]}, {"debug": True}),
        (
            {"scheduler.clientCASecret": "clients"},
            {"client_ca_file": "/etc/hami/client-ca/ca.crt", "leader_elect_own_lease": False},
        ),
        # Without a kube-scheduler in its pod it holds the lease itself.
        (
            {"scheduler.clientCASecret": "a", "scheduler.kubeScheduler.enabled": False},
            {"leader_elect_own_lease": True},
        ),
    ],
)
def test_a_value_becomes_a_setting_of_the_scheduler(
    values: dict[str, Any], expected: dict[str, Any]
) -> None:
    reply = msgspec.structs.asdict(scheduler(rendering.render(values)))
    assert {name: reply[name] for name in expected} == expected


@pytest.mark.parametrize(("version", "known"), [("1.20.0", False), ("1.21.0", True)])
def test_refusals_are_in_a_field_that_the_kube_scheduler_knows(
    version: str, *, known: bool
) -> None:
    assert scheduler(rendering.render(kube=version)).unresolvable_nodes is known


def test_the_webhook_alone_gets_what_it_needs() -> None:
    values = {"webhookOnly.enabled": True, "fallback.mode": "available"}
    assert changed(webhook(rendering.render(values))) == {
        "cert_file": "/etc/hami/tls/tls.crt",
        "key_file": "/etc/hami/tls/tls.key",
        "shutdown_delay": 5.0,
        "mig_fallback": "available",
        "device_config_file": "/etc/hami/config/device-config.yaml",
    }


@pytest.mark.parametrize("values", [{}, {"webhookOnly.enabled": True}])
def test_every_file_that_a_flag_names_is_mounted(values: dict[str, Any]) -> None:
    """Flags name files in folders; volumes name their content."""
    chains = {"fallback.chains": [["1g.10gb"]]}
    rendered = rendering.render({**values, **chains})
    alone = bool(values)
    name = "hami-webhook" if alone else "hami-scheduler"
    container = "hami-webhook" if alone else "vgpu-scheduler-extender"
    reply = rendered.flags("Deployment", name, container)
    mounted = {
        mount["mountPath"]: mount["name"]
        for mount in rendered.container("Deployment", name, container)["volumeMounts"]
    }
    volumes = {each["name"]: each for each in rendered.pod("Deployment", name)["spec"]["volumes"]}

    for flag in ("cert_file", "key_file", "device-config-file", "mig-fallback-file"):
        folder, _, file = reply[flag].rpartition("/")
        volume = volumes[mounted[folder]]
        if "configMap" in volume:
            assert file in rendered.one("ConfigMap", volume["configMap"]["name"])["data"]
        else:
            assert volume["secret"]["secretName"] == f"{name}-tls"
