"""Ways to install; together they make every object of the chart."""

from __future__ import annotations

from typing import Any

WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything on": {
        "scheduler.replicas": 2,
        "scheduler.nodeName": "node-1",
        "scheduler.nodeSelector": {"a": "b"},
        "scheduler.tolerations": [{"operator": "Exists"}],
        "scheduler.topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
            }
        ],
        "scheduler.clientCASecret": "clients",
        "scheduler.podAnnotations": {"a": "b"},
        "scheduler.extender.resources": {"limits": {"memory": "1Gi"}},
        "scheduler.kubeScheduler.resources": {"requests": {"cpu": "100m"}},
        "scheduler.service.annotations": {"a": "b"},
        "scheduler.admissionWebhook.namespaceSelector.matchLabels": {"a": "b"},
        "scheduler.admissionWebhook.objectSelector.matchExpressions": [
            {"key": "a", "operator": "Exists"}
        ],
        "scheduler.patch.tolerations": [{"operator": "Exists"}],
        "scheduler.patch.nodeSelector": {"a": "b"},
        "fallback.chains": [["3g.40gb", {"profile": "1g.10gb", "memory": 9000, "cores": 14}]],
        "global.imagePullSecrets": ["registry"],
        "global.labels": {"team": "gpu"},
        "global.annotations": {"team": "gpu"},
        "prometheus.enabled": True,
        "grafana.dashboards": True,
        "podSecurityPolicy.enabled": True,
        "devicePlugin.nodeConfiguration.config": '{"nodeconfig": [{"name": "node-1"}]}',
        "devicePlugin.nvidiaDriverRoot": "/run/nvidia/driver",
        "devicePlugin.runtimeClassName": "nvidia",
        "devicePlugin.createRuntimeClass": True,
        "devicePlugin.gpuOperatorToolkitReady.enabled": True,
        "devicePlugin.migStrategy": "mixed",
        "devicePlugin.evictRefused": True,
        "scheduler.overuse.action": "evict",
        "scheduler.removeRejected": True,
        "devicePlugin.tolerations": [{"operator": "Exists"}],
        "devicePlugin.hostNetwork": True,
        "devicePlugin.resources": {"limits": {"memory": "128Mi"}},
        "devicePlugin.monitor.resources": {"limits": {"memory": "128Mi"}},
        "devicePlugin.extraEnvs": {"A": 1},
        "devicePlugin.extraVolumes": [{"name": "more", "hostPath": {"path": "/opt/more"}}],
        "devicePlugin.extraVolumeMounts": [{"name": "more", "mountPath": "/opt/more"}],
        "devicePlugin.service.labels": {"a": "b"},
        "simulatedDevices.enabled": True,
        "simulatedDevices.nodes": [{"devices": [{"model": "T4"}]}],
    },
    "cert-manager": {"scheduler.certManager.enabled": True},
    "own address": {"scheduler.admissionWebhook.customURL.enabled": True},
    "no webhook": {"scheduler.admissionWebhook.enabled": False},
    "no leader": {"scheduler.leaderElect": False, "scheduler.runAsUser": None},
    "no device plugin": {"devicePlugin.enabled": False},
    "webhook only": {"webhookOnly.enabled": True, "fallback.mode": "available"},
}
