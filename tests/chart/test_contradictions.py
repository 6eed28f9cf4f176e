"""Values that contradict each other are refused, with rule and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart import rendering

WEBHOOK = "scheduler.admissionWebhook"
CUSTOM = {f"{WEBHOOK}.customURL.enabled": True}

CASES: list[tuple[dict[str, Any], str, str]] = [
    (
        {"webhookOnly.enabled": True, "fallback.mode": "off"},
        "the webhook alone does nothing but the fallback",
        "set fallback.mode to type or available, or webhookOnly.enabled=false",
    ),
    (
        {"webhookOnly.enabled": True, f"{WEBHOOK}.enabled": False},
        "nothing would be installed",
        "set scheduler.admissionWebhook.enabled=true",
    ),
    (
        {"simulatedDevices.enabled": True},
        "there is no card to offer",
        "describe some, for example nodes: [{devices: [{model: A100-40GB, cards: 2}]}]",
    ),
    (
        {"scheduler.replicas": 2, "scheduler.leaderElect": False},
        "scheduler.replicas=2 with scheduler.leaderElect=false",
        "set scheduler.leaderElect=true, or scheduler.replicas=1",
    ),
    (
        {"scheduler.kubeScheduler.enabled": False},
        "no kube-scheduler could call the extender",
        "set scheduler.clientCASecret",
    ),
    (
        {"scheduler.clientCASecret": "a", f"{WEBHOOK}.enabled": False},
        "there is no TLS",
        "set scheduler.admissionWebhook.enabled=true",
    ),
    (
        {"scheduler.patch.enabled": False},
        "without a certificate",
        "set scheduler.patch.enabled=true",
    ),
    (
        {"scheduler.certManager.enabled": True, f"{WEBHOOK}.existingSecret": "a"},
        "only one can be served",
        "set scheduler.certManager.enabled=false",
    ),
    (
        {f"{WEBHOOK}.caBundle": "Q0E="},
        "has a CA of its own",
        "set scheduler.admissionWebhook.existingSecret",
    ),
    ({**CUSTOM, f"{WEBHOOK}.customURL.host": ""}, "without a host", "set customURL.host"),
    (
        {**CUSTOM, f"{WEBHOOK}.customURL.path": "webhook"},
        "a path begins with /",
        "set it to /webhook",
    ),
    (
        {
            f"{WEBHOOK}.manageNamespaceSelector": False,
            f"{WEBHOOK}.whitelistNamespaces": ["a"],
        },
        "they would have no effect",
        "set manageNamespaceSelector=true",
    ),
    (
        {
            f"{WEBHOOK}.manageNamespaceSelector": False,
            f"{WEBHOOK}.namespaceSelector.matchLabels": {"a": "b"},
        },
        "they would have no effect",
        "set manageNamespaceSelector=true",
    ),
    ({"scheduler.leaseDuration": "6s"}, "two could lead at once", "set for example 8s, 6s, 1s"),
    # kube-scheduler itself asks for a fifth more.
    ({"scheduler.retryPeriod": "5s"}, "1.2 times retryPeriod", "set for example 8s, 6s, 1s"),
    ({"scheduler.retryPeriod": "0s"}, "two could lead at once", "set for example 8s, 6s, 1s"),
    ({"scheduler.overuse.grace": "9s"}, "one look proves nothing", "set it to 10s or more"),
    (
        {"scheduler.nodeLockRetryTimeout": "1m", "scheduler.extenderHTTPTimeout": 59},
        "kube-scheduler would give up while a pod still waits",
        "set extenderHTTPTimeout to more seconds",
    ),
    (
        {"scheduler.service.httpTargetPort": 443},
        "ports below 1024 are closed to them",
        "set it to 8443",
    ),
    (
        {"scheduler.metricsBindAddress": ":9000"},
        "the Service would point at a closed port",
        "set monitorTargetPort=9000",
    ),
    (
        {"scheduler.service.httpTargetPort": 9395},
        "each port of a pod can be used once",
        "set for example 8443 and :9395",
    ),
    (
        {"scheduler.service.httpTargetPort": 10259},
        "each port of a pod can be used once",
        "set for example 8443 and :9395",
    ),
    (
        {"scheduler.service.schedulerPort": 31993},
        "are the same NodePort",
        "set for example 31998 and 31993",
    ),
    (
        {"prometheus.enabled": True, "scheduler.metricsBindAddress": ""},
        "there is nothing to read",
        "set metricsBindAddress=:9395",
    ),
    (
        {"global.gpuHookPath": "/opt"},
        "the library is looked for in <gpuHookPath>/vgpu",
        "set devicePlugin.libPath=/opt/vgpu",
    ),
    ({"device-config.content": "nvidia: ["}, "device-config.content is no YAML", "write it as"),
    ({"resourceName": ""}, "no pod could ask for a card", "set it to nvidia.com/gpu"),
    (
        {"device-config.content": "nvidia: {resourceCountName: ''}"},
        "no pod could ask for a card",
        "set it to nvidia.com/gpu",
    ),
    *(
        (
            {f"{place}.image.repository": "projecthami/hami"},
            f"{place}.image.repository=projecthami/hami is HAMi's own image",
            "build ours with `hami image build`",
        )
        for place in ("scheduler.extender", "devicePlugin", "devicePlugin.monitor")
    ),
    (
        {"devicePlugin.hostPID": False},
        "a process that evades its limit would stay unnoticed",
        "set devicePlugin.hostPID=true",
    ),
    (
        {"devicePlugin.pluginPath": "/var/lib/kubelet/plugins"},
        "kubelet's folder for plugins is always called device-plugins",
        "usually /var/lib/kubelet/device-plugins",
    ),
    *(
        ({"devicePlugin.stateDir": folder}, "is empty after a reboot", "usually /var/lib/hami")
        for folder in ("/run/ledger", "/var/run/hami", "/tmp/hami", "/dev/shm/hami")  # noqa: S108 - on a node
    ),
    (
        {"devicePlugin.stateDir": "/usr/local/vgpu/state"},
        "/usr/local/vgpu/state lies within /usr/local/vgpu",
        "folders of their own",
    ),
    (
        {"devicePlugin.runDir": "/var/run/cdi"},
        "Two of the folders on nodes are the same",
        "folders of their own",
    ),
    (
        {"devicePlugin.metricsBindAddress": ":9394"},
        "9394 is the monitor's port",
        "set metricsBindAddress=:9396",
    ),
    (
        {"devicePlugin.service.httpPort": 9396},
        "is the port of devicePlugin.metricsBindAddress",
        "set httpPort=31992",
    ),
    (
        {"devicePlugin.service.httpPort": 31993},
        "is a NodePort of the scheduler's Services",
        "set for example httpPort=31992",
    ),
    (
        {
            "devicePlugin.nodeConfiguration.config": "{}",
            "devicePlugin.nodeConfiguration.externalConfigName": "mine",
        },
        "only one can be read",
        'externalConfigName=""',
    ),
    (
        {"devicePlugin.nodeConfiguration.config": "nodeconfig: []"},
        "devicePlugin.nodeConfiguration.config is no JSON",
        'write {"nodeconfig": [{"name"',
    ),
]


@pytest.mark.parametrize(("values", "rule", "remedy"), CASES)
def test_a_contradiction_names_the_rule_and_the_remedy(
    values: dict[str, Any], rule: str, remedy: str
) -> None:
    refusal = rendering.refusal(values)
    assert rule in refusal
    assert remedy in refusal


def test_where_namespaces_do_not_carry_their_names_they_must_be_labelled() -> None:
    values = {f"{WEBHOOK}.whitelistNamespaces": ["a", "b"]}
    refusal = rendering.refusal(values, kube="1.20.0")
    assert "kubectl label namespace a b hami.io/webhook=ignore" in refusal
    rendering.render(values, kube="1.21.0")


def test_a_kubernetes_that_is_too_old_is_refused() -> None:
    assert "1.17.0" in rendering.refusal({}, kube="1.17.0")


@pytest.mark.parametrize(
    "values",
    [
        {"scheduler.certManager.enabled": True, "scheduler.patch.enabled": True},
        {"scheduler.certManager.enabled": True, "scheduler.patch.enabled": False},
        {"scheduler.patch.enabled": False, f"{WEBHOOK}.enabled": False},
        {"scheduler.patch.enabled": False, f"{WEBHOOK}.existingSecret": "mine"},
        {"scheduler.leaderElect": False},
        {"scheduler.service.schedulerPort": 31993, "scheduler.service.type": "ClusterIP"},
        {"scheduler.metricsBindAddress": ""},
        {"devicePlugin.service.httpPort": 31993, "devicePlugin.service.type": "ClusterIP"},
        # A part that is not installed cannot be wrong.
        {"devicePlugin.enabled": False, "devicePlugin.hostPID": False},
    ],
)
def test_what_only_looks_like_a_contradiction_is_accepted(values: dict[str, Any]) -> None:
    assert rendering.render(values).has("Deployment", "hami-scheduler")
