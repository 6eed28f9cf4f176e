"""Nodes by the thousand that exist only in the API, kept alive by kwok.

They are for the scheduler's side: a pod bound to one is Running at once and disappears when it is
deleted. They carry a taint, so that nothing lands on them that does not ask for it.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machines import Machine
from tests.e2e.parts import catalogue
from tests.kubeapi.client import ApiError, Client, wait_for
from tests.kubeapi.paths import nodes

MARK = "hami.test/simulated"
TAINT = {"key": MARK, "value": "true", "effect": "NoSchedule"}
TOLERATION = {"key": MARK, "operator": "Exists"}
KUBECONFIG = "/etc/kubernetes/admin.conf"
STAGES = "/etc/kubernetes/kwok-stages.yaml"
WRITERS = 8
LEASES_S = 120
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "250", "ephemeral-storage": "1Ti"}

POD_STATUS = """
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
{{ $m := .metadata }}{{ $host := or .spec.hostNetwork false }}
podIP: {{ PodIPWith .spec.nodeName $host $m.uid $m.name $m.namespace | Quote }}
conditions:
{{ range (list "Initialized" "ContainersReady" "Ready" "PodScheduled") }}
- type: {{ . | Quote }}
  status: "True"
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state:
    running:
      startedAt: {{ $now | Quote }}
{{ end }}
"""


def add(
    cluster: Cluster,
    count: int,
    *,
    capacity: Mapping[str, str] = CAPACITY,
    annotations: Mapping[str, str] | None = None,
    say: Callable[[str], None],
) -> list[str]:
    """Add nodes and wait until all of them live; give their names."""
    catalogue.provide(catalogue.kwok())
    started = time.monotonic()
    names = [f"simulated-{number}" for number in range(1, count + 1)]
    with cluster.joined_network():
        start_kwok(cluster.control_plane)
        client = cluster.client
        with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
            bodies = (_node(name, capacity, annotations or {}) for name in names)
            list(pool.map(lambda body: _create(client, body), bodies))
        wait_for(f"{count} nodes to be kept alive", lambda: _alive(client, names), LEASES_S, 0.5)
    say(f"{count} simulated nodes Ready after {time.monotonic() - started:.1f} s")
    return names


def remove(cluster: Cluster) -> None:
    """Take all of them away again, with the program that keeps them."""
    with cluster.joined_network(), cluster.client as client:
        found = client.get(nodes(), labelSelector=f"{MARK}=true")["items"]
        names = [node["metadata"]["name"] for node in found]
        with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda name: client.delete(nodes(name)), names))
    cluster.control_plane.end("kwok")


def start_kwok(machine: Machine) -> None:
    if any(daemon.program == "kwok" and daemon.alive() for daemon in machine.daemons()):
        return
    (machine.root / STAGES.lstrip("/")).write_text(yaml.safe_dump_all(_stages()))
    machine.start(
        "kwok",
        [
            "kwok",
            f"--kubeconfig={KUBECONFIG}",
            f"--config={STAGES}",
            f"--manage-nodes-with-label-selector={MARK}=true",
            "--manage-all-nodes=false",
            "--node-lease-duration-seconds=40",
            "--cidr=10.248.0.0/13",
        ],
    )


def _create(client: Client, body: dict[str, Any]) -> None:
    try:
        client.create(nodes(), body)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise


def _alive(client: Client, names: list[str]) -> bool:
    """Look for their leases: a node without one would be NotReady in a minute."""
    leases = client.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
    return set(names) <= {lease["metadata"]["name"] for lease in leases["items"]}


def _node(name: str, capacity: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Simulated",
        "message": "exists only in the API",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {MARK: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
            "annotations": dict(annotations),
        },
        "spec": {"taints": [TAINT]},
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "conditions": [ready],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": "simulated",
                **dict.fromkeys(
                    (
                        "bootID",
                        "containerRuntimeVersion",
                        "kernelVersion",
                        "kubeProxyVersion",
                        "machineID",
                        "osImage",
                        "systemUUID",
                    ),
                    "",
                ),
            },
        },
    }


def _stages() -> list[dict[str, Any]]:
    """Say what a simulated node and its pods do, in kwok's language."""

    def stage(name: str, kind: str, conditions: list[dict[str, Any]], then: object) -> Any:
        return {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": "Stage",
            "metadata": {"name": name},
            "spec": {
                "resourceRef": {"apiGroup": "v1", "kind": kind},
                "selector": {"matchExpressions": conditions},
                "next": then,
            },
        }

    deleted = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
    living = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    unset = {"key": ".status.podIP", "operator": "DoesNotExist"}
    idle = {"key": ".metadata.name", "operator": "DoesNotExist"}
    return [
        stage("node-stays", "Node", [idle], {"statusTemplate": ""}),
        stage("pod-runs", "Pod", [living, unset], {"statusTemplate": POD_STATUS}),
        stage("pod-goes", "Pod", [deleted], {"finalizers": {"empty": True}, "delete": True}),
    ]
