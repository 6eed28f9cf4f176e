"""A node: containerd (2.4 or 1.6), kubelet, kube-proxy and a bridge for its pods."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.cluster import certificates, programs, proxy
from tests.e2e.cluster.layout import API_SERVER, NAME_SERVICE_ADDRESS, Layout, Node, Runtime
from tests.e2e.cluster.machines import Machine, MachineError
from tests.e2e.parts import catalogue
from tests.e2e.parts.image_archives import PAUSE
from tests.kubeapi.waiting import wait_for

RUNTIME_SOCKET = "/run/containerd/containerd.sock"
CNI_CONFIGURATION = "/etc/cni/net.d/10-pods.conflist"
MOST_PODS = 250
RUNTIME_S = 60

CONTAINERD_2 = f"""
version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{PAUSE}'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/usr/lib/cni']
    conf_dir = '/etc/cni/net.d'
"""
CONTAINERD_1 = f"""
version = 2
[plugins.'io.containerd.grpc.v1.cri']
  sandbox_image = '{PAUSE}'
  restrict_oom_score_adj = true
  [plugins.'io.containerd.grpc.v1.cri'.cni]
    bin_dir = '/usr/lib/cni'
    conf_dir = '/etc/cni/net.d'
"""


def etc(cluster: Layout, authority: certificates.Authority, node: Node) -> dict[str, Path]:
    """Files of the machine's /etc/kubernetes, the node's own identity among them."""
    secrets = cluster.secrets
    identity = certificates.issue(
        secrets,
        authority,
        node.name,
        f"system:node:{node.name}",
        ["system:nodes"],
        addresses=[node.name, node.address],
    )
    config = certificates.write_kubeconfig(
        secrets / f"{node.name}.conf", API_SERVER, authority, identity
    )
    return {
        "ca.crt": authority.file,
        "kubelet.conf": config,
        "kubelet.crt": identity[0],
        "kubelet.key": identity[1],
        "kube-proxy.conf": secrets / "kube-proxy.conf",
    }


def start_runtime(machine: Machine, node: Node) -> None:
    folder = _runtime_folder(node)
    configuration = CONTAINERD_1 if node.runtime is Runtime.CONTAINERD_1 else CONTAINERD_2
    _write(machine, "/etc/containerd/config.toml", configuration)
    _write(machine, CNI_CONFIGURATION, json.dumps(_pod_network(node)))
    machine.start(
        "containerd",
        [f"{folder}/containerd", "--config=/etc/containerd/config.toml", "--log-level=info"],
        # Its shims must be found beside it: both versions lie in every machine.
        env={"PATH": f"{folder}:/usr/sbin:/usr/bin"},
    )


def await_runtime(machine: Machine, node: Node) -> None:
    """Wait until the runtime answers; the socket alone appears before it does."""

    def answers() -> bool:
        try:
            machine.run(*ctr(node), "images", "list", "--quiet")
        except MachineError:
            daemon = machine.daemon("containerd")
            if not daemon.alive():
                raise MachineError(
                    f"containerd on {machine.name} died:\n  {daemon.last_lines()}"
                ) from None
            return False
        return True

    wait_for(f"containerd on {machine.name} to answer", answers, RUNTIME_S)


def ctr(node: Node) -> list[str]:
    """Its own ctr: the two versions do not read each other's stores."""
    return [f"{_runtime_folder(node)}/ctr", "--address", RUNTIME_SOCKET, "-n", "k8s.io"]


def _runtime_folder(node: Node) -> str:
    if node.runtime is Runtime.CONTAINERD_1:
        return "/usr/bin"
    return programs.inside(catalogue.containerd())


def start_kubelet(machine: Machine, node: Node) -> None:
    _write(machine, "/etc/kubernetes/kubelet.json", json.dumps(_kubelet(machine.cluster, node)))
    machine.start(
        "kubelet",
        [
            "kubelet",
            "--config=/etc/kubernetes/kubelet.json",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--node-labels=hami.test/runtime={node.runtime}",
        ],
    )
    proxy.start(machine, node.address)


def _kubelet(cluster: Layout, node: Node) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": "/etc/kubernetes/kubelet.crt",
        "tlsPrivateKeyFile": "/etc/kubernetes/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{RUNTIME_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cluster.group}/{node.name}",
        "failCgroupV1": False,
        "localStorageCapacityIsolation": False,
        "failSwapOn": False,
        "maxPods": MOST_PODS,
        # There is no name service; without an address kubelet would complain of each pod.
        "clusterDNS": [NAME_SERVICE_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        # The disk is shared with everything else on the machine; its state is not the node's.
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "shutdownGracePeriod": "0s",
        "logging": {"format": "text", "verbosity": 2},
    }


def _pod_network(node: Node) -> dict[str, object]:
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": True,
                "ipMasq": False,  # other machines have routes to the pods
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": node.pod_range}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/run/cni",
                },
            },
        ],
    }


def _write(machine: Machine, path: str, text: str) -> None:
    place = machine.root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
