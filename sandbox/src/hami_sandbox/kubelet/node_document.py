"""The Node object of a stand-in node: machine, devices, conditions. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hami_sandbox import api_objects
from hami_sandbox.kubelet.pod import Object

ADDRESS = "127.0.0.1"
_PRESSURES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Values that do not change while kubelet runs."""

    name: str
    version: str
    architecture: str
    kernel: str
    boot_id: str
    runtime: str
    cpu: str
    memory: str
    storage: str
    pods: int
    labels: Mapping[str, str]
    #: The port that serves logs.
    port: int


def node(machine: Machine) -> Object:
    """Return the object as kubelet first makes it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": machine.name, "labels": labels(machine)},
        "spec": {},
    }


def labels(machine: Machine) -> dict[str, str]:
    built_in = {
        "kubernetes.io/hostname": machine.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine.architecture,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": machine.architecture,
    }
    return built_in | dict(machine.labels)


def resources(machine: Machine, devices: Mapping[str, int]) -> dict[str, str]:
    """Return capacity or allocatable: the machine's own, and what plugins list."""
    own = {
        "cpu": machine.cpu,
        "memory": machine.memory,
        "ephemeral-storage": machine.storage,
        "pods": str(machine.pods),
    }
    return own | {resource: str(count) for resource, count in devices.items()}


def status(
    machine: Machine,
    *,
    capacity: Mapping[str, int],
    allocatable: Mapping[str, int],
    ready_since: float,
    now: float,
) -> Object:
    """Return the part of the status that is kubelet's."""
    return {
        "capacity": resources(machine, capacity),
        "allocatable": resources(machine, allocatable),
        "conditions": _conditions(ready_since, now),
        "addresses": [
            {"type": "InternalIP", "address": ADDRESS},
            {"type": "Hostname", "address": machine.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": machine.port}},
        "nodeInfo": {
            "machineID": machine.boot_id.replace("-", ""),
            "systemUUID": machine.boot_id,
            "bootID": machine.boot_id,
            "kernelVersion": machine.kernel,
            "osImage": "hami sandbox",
            "containerRuntimeVersion": machine.runtime,
            "kubeletVersion": machine.version,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": machine.architecture,
        },
    }


def zeroed(node_object: Object, known: Mapping[str, int]) -> dict[str, int]:
    """Return the devices of a former node of this name, with 0: no plugin offers them now."""
    capacity = (node_object.get("status") or {}).get("capacity") or {}
    return {resource: 0 for resource in capacity if "/" in resource and resource not in known}


def lease(name: str, node_uid: str, now: str, seconds: int) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}
            ],
        },
        "spec": {"holderIdentity": name, "leaseDurationSeconds": seconds, "renewTime": now},
    }


def _conditions(since: float, now: float) -> list[Object]:
    dates = {
        "lastHeartbeatTime": api_objects.stamp_at(now),
        "lastTransitionTime": api_objects.stamp_at(since),
    }
    calm = [
        {"type": kind, "status": "False", "reason": reason, "message": message, **dates}
        for kind, (reason, message) in _PRESSURES.items()
    ]
    message = "kubelet is posting ready status"
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": message}
    return [*calm, {**ready, **dates}]
