"""Another setting for each value of the chart, with what makes it visible.

A value that is in values.yaml and not here fails a test, and so does one whose other value changes
nothing: no value may be dead.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.chart import rendering
from tests.chart.rendering import Values


@dataclasses.dataclass(frozen=True)
class Other:
    value: Any
    beside: Values = dataclasses.field(default_factory=dict)
    """Values without which it has no meaning; they hold in both renderings."""
    kube: str = rendering.NEWEST


WEBHOOK = "scheduler.admissionWebhook"
CUSTOM = {f"{WEBHOOK}.customURL.enabled": True}
OWN_SECRET = {f"{WEBHOOK}.existingSecret": "mine"}
LABELS = {"team": "gpu"}
RESOURCES = {"limits": {"memory": "1Gi"}}
EXPRESSION = [{"key": "team", "operator": "Exists"}]
TOLERATION = [{"operator": "Exists"}]
SPREAD = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
IMAGE = {
    "registry": "registry.example",
    "repository": "gpu/hami",
    "tag": "v9",
    "pullPolicy": "Always",
    "pullSecrets": ["key"],
}

_NODES = {"simulatedDevices.nodes": [{"devices": [{"model": "T4"}]}]}
ACCOUNT = ["system:serviceaccount:a:b"]

_OWN_KEYS = {
    "scheduler.grantKey.existingSigningSecret": "signing",
    "scheduler.grantKey.existingPublicSecret": "public",
}

ALTERNATIVES: dict[str, Other] = {
    "global.imageRegistry": Other("registry.example"),
    "global.imagePullSecrets": Other(["key"]),
    "global.imageTag": Other("v9"),
    "global.gpuHookPath": Other("/opt"),
    "global.labels": Other(LABELS),
    "global.annotations": Other(LABELS),
    "global.managedNodeSelectorEnable": Other(value=True),
    "global.managedNodeSelector.usage": Other("ai", {"global.managedNodeSelectorEnable": True}),
    "nameOverride": Other("gpu"),
    "fullnameOverride": Other("gpu"),
    "namespaceOverride": Other("elsewhere"),
    "resourceName": Other("example.com/gpu"),
    "resourceMem": Other("example.com/mem"),
    "resourceMemPercentage": Other("example.com/percent"),
    "resourceCores": Other("example.com/cores"),
    "resourcePriority": Other("example.com/priority"),
    "mluResourceName": Other("example.com/other"),
    "mluResourceMem": Other("example.com/other"),
    "mluResourceCores": Other("example.com/other"),
    "dcuResourceName": Other("example.com/other"),
    "dcuResourceMem": Other("example.com/other"),
    "dcuResourceCores": Other("example.com/other"),
    "enflameResourceNameDRSGCU": Other("example.com/other"),
    "enflameResourceNameGCUMemory": Other("example.com/other"),
    "enflameResourceNameGCUCore": Other("example.com/other"),
    "enflameResourceNameVGCU": Other("example.com/other"),
    "enflameResourceNameVGCUPercentage": Other("example.com/other"),
    "birenResourceName": Other("example.com/other"),
    "metaxResourceName": Other("example.com/other"),
    "metaxResourceCore": Other("example.com/other"),
    "metaxResourceMem": Other("example.com/other"),
    "metaxsGPUTopologyAware": Other("true"),
    "kunlunResourceName": Other("example.com/other"),
    "kunlunResourceVCountName": Other("example.com/other"),
    "kunlunResourceVMemoryName": Other("example.com/other"),
    "vastaiResourceName": Other("example.com/other"),
    "schedulerName": Other("mine"),
    "legacyMetrics": Other(value=True),
    "prometheus.enabled": Other(value=True),
    "grafana.dashboards": Other(value=True),
    "podSecurityPolicy.enabled": Other(value=True, kube="1.24.17"),
    "fallback.mode": Other("available"),
    "fallback.gpu": Other("whole"),
    "fallback.chains": Other([["2g.20gb", "1g.10gb"]]),
    "admissionPolicy.enabled": Other(value=False),
    "admissionPolicy.trustedAccounts": Other(ACCOUNT),
    "webhookOnly.enabled": Other(value=True),
    "webhookOnly.replicas": Other(5, {"webhookOnly.enabled": True}),
    "scheduler.replicas": Other(2),
    "scheduler.leaderElect": Other(value=False),
    "scheduler.leaseDuration": Other("30s"),
    "scheduler.renewDeadline": Other("5s"),
    "scheduler.retryPeriod": Other("2s"),
    "scheduler.nodeName": Other("node-1"),
    "scheduler.nodeSelector": Other(LABELS),
    "scheduler.tolerations": Other(TOLERATION),
    "scheduler.affinity": Other({"nodeAffinity": {}}),
    "scheduler.topologySpreadConstraints": Other(SPREAD),
    "scheduler.priorityClassName": Other("high"),
    "scheduler.podAnnotations": Other(LABELS),
    "scheduler.runAsUser": Other(1000),
    "scheduler.nodeLabelSelector": Other(LABELS),
    "scheduler.overwriteEnv": Other(value=True),
    "scheduler.overuse.action": Other("evict"),
    "scheduler.removeRejected": Other(value=True),
    "scheduler.overuse.grace": Other("10m"),
    "scheduler.overuse.exemptNamespaces": Other(["monitoring"]),
    "scheduler.forceOverwriteDefaultScheduler": Other(value=False),
    "scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy": Other("spread"),
    "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy": Other("numa,binpack"),
    "scheduler.nodeLockExpire": Other("9m"),
    "scheduler.nodeLockRetryTimeout": Other("30s"),
    "scheduler.extenderHTTPTimeout": Other(30),
    "scheduler.kubeQPS": Other(50),
    "scheduler.kubeBurst": Other(100),
    "scheduler.kubeTimeout": Other(20),
    "scheduler.metricsBindAddress": Other(
        ":9000", {"scheduler.service.monitorTargetPort": "metrics"}
    ),
    "scheduler.cardMetrics": Other(value=False),
    "scheduler.containerMetricsLimit": Other(1_000_000),
    "scheduler.livenessProbe": Other(value=False),
    "scheduler.shutdownDelay": Other("20s"),
    "scheduler.drainTimeout": Other("30s"),
    "scheduler.clientCASecret": Other("clients"),
    "scheduler.grantKey.acceptForms": Other(["v3"]),
    "scheduler.grantKey.existingSigningSecret": Other("mine", beside=_OWN_KEYS),
    "scheduler.grantKey.existingPublicSecret": Other("mine", beside=_OWN_KEYS),
    "scheduler.grantKey.existingSecret": Other("mine"),
    "scheduler.kubeScheduler.enabled": Other(
        value=False, beside={"scheduler.clientCASecret": "clients"}
    ),
    "scheduler.kubeScheduler.image.registry": Other("registry.example"),
    "scheduler.kubeScheduler.image.repository": Other("kube/scheduler"),
    "scheduler.kubeScheduler.image.tag": Other("v1.2.3"),
    "scheduler.kubeScheduler.image.pullPolicy": Other("Always"),
    "scheduler.kubeScheduler.image.pullSecrets": Other(["key"]),
    "scheduler.kubeScheduler.resources": Other(RESOURCES),
    "scheduler.kubeScheduler.extraArgs": Other(["-v=4"]),
    "scheduler.kubeScheduler.extraNewArgs": Other(["-v=4"]),
    "scheduler.extender.image.registry": Other("registry.example"),
    "scheduler.extender.image.repository": Other("gpu/hami"),
    "scheduler.extender.image.tag": Other("v9"),
    "scheduler.extender.image.pullPolicy": Other("Always"),
    "scheduler.extender.image.pullSecrets": Other(["key"]),
    "scheduler.extender.resources": Other(RESOURCES),
    "scheduler.extender.extraArgs": Other(["--debug"]),
    f"{WEBHOOK}.enabled": Other(value=False),
    f"{WEBHOOK}.failurePolicy": Other("Fail"),
    f"{WEBHOOK}.reinvocationPolicy": Other("IfNeeded"),
    f"{WEBHOOK}.timeoutSeconds": Other(5),
    f"{WEBHOOK}.whitelistNamespaces": Other(["default"]),
    f"{WEBHOOK}.manageNamespaceSelector": Other(value=False),
    f"{WEBHOOK}.namespaceSelector.matchLabels": Other(LABELS),
    f"{WEBHOOK}.namespaceSelector.matchExpressions": Other(EXPRESSION),
    f"{WEBHOOK}.objectSelector.matchLabels": Other(LABELS),
    f"{WEBHOOK}.objectSelector.matchExpressions": Other(EXPRESSION),
    f"{WEBHOOK}.customURL.enabled": Other(value=True),
    f"{WEBHOOK}.customURL.host": Other("gpu.example", CUSTOM),
    f"{WEBHOOK}.customURL.port": Other(8443, CUSTOM),
    f"{WEBHOOK}.customURL.path": Other("/gpu/webhook", CUSTOM),
    f"{WEBHOOK}.existingSecret": Other("mine"),
    f"{WEBHOOK}.caBundle": Other("Q0E=", OWN_SECRET),
    f"{WEBHOOK}.highPriority.namespaces": Other(["urgent"]),
    f"{WEBHOOK}.highPriority.priorityClasses": Other(["urgent"]),
    "scheduler.certManager.enabled": Other(value=True),
    "scheduler.patch.enabled": Other(value=False, beside=OWN_SECRET),
    "scheduler.patch.lifetime": Other("8760h"),
    "scheduler.patch.priorityClassName": Other("high"),
    "scheduler.patch.podAnnotations": Other(LABELS),
    "scheduler.patch.nodeSelector": Other(LABELS),
    "scheduler.patch.tolerations": Other(TOLERATION),
    "scheduler.patch.runAsUser": Other(1000),
    "scheduler.service.type": Other("ClusterIP"),
    "scheduler.service.httpPort": Other(8443),
    "scheduler.service.schedulerPort": Other(30443),
    "scheduler.service.httpTargetPort": Other(9443),
    "scheduler.service.monitorPort": Other(30993),
    "scheduler.service.monitorTargetPort": Other("metrics"),
    "scheduler.service.labels": Other(LABELS),
    "scheduler.service.annotations": Other(LABELS),
    "devicePlugin.enabled": Other(value=False),
    **{
        f"{image}.{part}": Other(value)
        for image in ("devicePlugin.image", "devicePlugin.monitor.image")
        for part, value in IMAGE.items()
    },
    "devicePlugin.deviceSplitCount": Other(5),
    "devicePlugin.deviceMemoryScaling": Other(1.5),
    "devicePlugin.deviceCoreScaling": Other(2),
    "devicePlugin.preConfiguredDeviceMemory": Other(24576),
    "devicePlugin.disablecorelimit": Other(value=True),
    "devicePlugin.enableNumaTopology": Other(value=True),
    "devicePlugin.migStrategy": Other("single"),
    "devicePlugin.nodeConfiguration.config": Other('{"nodeconfig": [{"name": "node-1"}]}'),
    "devicePlugin.nodeConfiguration.externalConfigName": Other("mine"),
    "devicePlugin.enableGetPreferredAllocation": Other(value=False),
    "devicePlugin.advertiseShares": Other(value=True),
    "devicePlugin.binding": Other("lock"),
    "devicePlugin.driverInjection": Other("cdi"),
    "devicePlugin.allowUnsignedGrants": Other(value=True),
    "devicePlugin.evictRefused": Other(value=True),
    "devicePlugin.uncontrolledNamespaces": Other(["lab"]),
    "devicePlugin.quarantine": Other("1h"),
    "devicePlugin.disableHealthChecks": Other("13,31"),
    "devicePlugin.enableHealthChecks": Other("31"),
    "devicePlugin.pluginPath": Other("/data/kubelet/device-plugins"),
    "devicePlugin.cdiDir": Other("/var/run/our-cdi"),
    "devicePlugin.nvidiaCdiDirs": Other(["/opt/cdi"]),
    "devicePlugin.stateDir": Other("/data/hami"),
    "devicePlugin.runDir": Other("/run/cards"),
    "devicePlugin.runtimeEndpoint": Other("/run/cri-dockerd.sock"),
    "devicePlugin.nvidiaDriverRoot": Other("/run/nvidia/driver"),
    "devicePlugin.runtimeClassName": Other("nvidia"),
    "devicePlugin.createRuntimeClass": Other(value=True),
    "devicePlugin.gpuOperatorToolkitReady.enabled": Other(value=True),
    "devicePlugin.gpuOperatorToolkitReady.hostPath": Other(
        "/opt/validations", {"devicePlugin.gpuOperatorToolkitReady.enabled": True}
    ),
    "devicePlugin.nvidiaNodeSelector.gpu": Other("yes"),
    "devicePlugin.tolerations": Other(TOLERATION),
    "devicePlugin.priorityClassName": Other("high"),
    "devicePlugin.updateStrategy.type": Other("OnDelete"),
    "devicePlugin.updateStrategy.rollingUpdate.maxUnavailable": Other("10%"),
    "devicePlugin.podAnnotations": Other(LABELS),
    # Its effect is a refusal, too: the monitor needs it.
    "devicePlugin.hostPID": Other(value=False),
    "devicePlugin.hostNetwork": Other(value=True),
    "devicePlugin.resources": Other(RESOURCES),
    "devicePlugin.extraArgs": Other(["--debug"]),
    "devicePlugin.extraEnvs": Other({"A": "b"}),
    "devicePlugin.extraVolumes": Other([{"name": "a", "emptyDir": {}}]),
    "devicePlugin.extraVolumeMounts": Other([{"name": "config", "mountPath": "/a"}]),
    "devicePlugin.metricsBindAddress": Other(":9000"),
    "devicePlugin.monitor.resyncInterval": Other("1h"),
    "devicePlugin.monitor.overuseTolerance": Other(0),
    "devicePlugin.monitor.securityContext": Other({"privileged": True}),
    "devicePlugin.monitor.resources": Other(RESOURCES),
    "devicePlugin.monitor.extraArgs": Other(["--debug"]),
    "devicePlugin.monitor.extraEnvs": Other({"A": "b"}),
    "devicePlugin.service.type": Other("ClusterIP"),
    "devicePlugin.service.httpPort": Other(30992),
    "devicePlugin.service.labels": Other(LABELS),
    "devicePlugin.service.annotations": Other(LABELS),
    "simulatedDevices.enabled": Other(value=True, beside=_NODES),
    **{
        f"simulatedDevices.{name}": Other(value, {"simulatedDevices.enabled": True, **_NODES})
        for name, value in {
            **{f"image.{part}": value for part, value in IMAGE.items()},
            "nodes": [{"devices": [{"model": "Z100"}]}],
            "nodeSelector": LABELS,
            "tolerations": TOLERATION,
            "resources": RESOURCES,
        }.items()
    },
    # Its effect is a refusal: it must follow gpuHookPath.
    "devicePlugin.libPath": Other("/opt/vgpu"),
    "devices.nvidia.gpuCorePolicy": Other("force"),
    "devices.nvidia.libCudaLogLevel": Other(3),
    **{
        f"devices.{vendor}.enabled": Other(value=False)
        for vendor in (
            *("amd", "awsneuron", "biren", "cambricon", "enflame", "hygon", "kunlun", "metax"),
            *("mthreads", "vastai"),
        )
    },
    "devices.ascend.enabled": Other(value=True),
    "devices.ascend.hamiVnpuCore": Other("true", {"devices.ascend.enabled": True}),
    "devices.ascend.runtimeClassName": Other("ascend", {"devices.ascend.enabled": True}),
    "devices.iluvatar.enabled": Other(value=True),
    **{
        f"devices.{vendor}.pluginAccounts": Other(ACCOUNT)
        for vendor in ("amd", "biren", "cambricon", "enflame", "hygon")
    },
    "devices.iluvatar.pluginAccounts": Other(ACCOUNT, {"devices.iluvatar.enabled": True}),
    "device-config.content": Other("nvidia: {resourceCountName: example.com/gpu}\n"),
}
