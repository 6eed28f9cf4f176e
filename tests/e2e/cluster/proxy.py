"""kube-proxy: service addresses work on every machine."""

from __future__ import annotations

import json

from tests.e2e.cluster.layout import POD_RANGE
from tests.e2e.cluster.machines import Machine

CONFIGURATION = "/etc/kubernetes/kube-proxy-config.json"


def start(machine: Machine, address: str) -> None:
    configuration = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": "0.0.0.0",  # noqa: S104 (inside the machine's own network)
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/kube-proxy.conf"},
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": machine.name,
        "nodeIPOverride": [address],
        "mode": "iptables",
        # Zero leaves the machine-wide limits of connection tracking alone.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "iptables": {"syncPeriod": "30s", "minSyncPeriod": "0s"},
    }
    (machine.root / CONFIGURATION.lstrip("/")).write_text(json.dumps(configuration))
    machine.start("kube-proxy", ["kube-proxy", f"--config={CONFIGURATION}"])
