"""Pods, nodes and a world without a cluster, for tests of the demo."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from hami.wire import codec, node_marks, node_register, objects, shares
from hami_sandbox.demo import cluster_view
from hami_sandbox.demo.cards import SeenPod

MIB = 1 << 20


def grant(card: str, memory: int = 1000, cores: int = 0) -> shares.Share:
    return shares.Share(card=card, vendor="NVIDIA", memory_mib=memory, cores=cores)


def pod(
    name: str,
    *grants: shares.Share,
    phase: str = "Running",
    node: str = "gpu-a",
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
    created: str = "2026-01-01T00:00:00Z",
) -> SeenPod:
    noted = dict(annotations or {})
    if grants:
        noted["hami.io/vgpu-devices-allocated"] = shares.encode([grants])
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    body = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "resourceVersion": "1",
            "creationTimestamp": created,
            "labels": dict(labels or {}),
            "annotations": noted,
        },
        "spec": {"nodeName": node, "containers": [{"name": "work", "env": variables}]},
        "status": {"phase": phase, **(status or {})},
    }
    return codec.decode(codec.encode(body), SeenPod, what="pod")


def node(name: str, *memory: int, late: bool = True, reason: str = "") -> objects.Node:
    """Return a node with a card for each amount of memory, named <node>-<index>."""
    devices = [
        node_register.RegisteredCard(
            id=f"{name}-{index}",
            index=index,
            count=10,
            devmem=amount,
            devcore=100,
            type="NVIDIA-NVIDIA H100 80GB HBM3",
            health=True,
        )
        for index, amount in enumerate(memory)
    ]
    register = node_register.encode_json(devices)
    notes = {"hami.io/node-nvidia-register": register}
    if late:
        notes["hami.io/node-nvidia-binding"] = node_marks.late_binding_mark(register)
    if reason:
        notes["hami.io/node-nvidia-lock-reason"] = reason
    body = {"metadata": {"name": name, "uid": name, "annotations": notes}}
    return codec.decode(codec.encode(body), objects.Node, what="node")


def used(pod_name: str, mib: float, *, node_name: str = "gpu-a") -> cluster_view.Sample:
    labels = {"namespace": "default", "pod": pod_name, "container": "work"}
    return cluster_view.Sample(node_name, cluster_view.SHARE_USED, labels, mib * MIB)


class FakeWorld:
    """What checks look at, set by the test."""

    def __init__(
        self,
        *pods: SeenPod,
        refusals: Mapping[str, str] | None = None,
        logs: Mapping[str, str] | None = None,
        samples: Sequence[cluster_view.Sample] = (),
        explanations: Mapping[str, str] | None = None,
    ) -> None:
        self.pods = list(pods)
        self.refusals = dict(refusals or {})
        self._logs = dict(logs or {})
        self._samples = list(samples)
        self._explanations = dict(explanations or {})

    def find_pods(self, namespace: str, name: str, labels: Mapping[str, str]) -> list[SeenPod]:
        return [
            each
            for each in self.pods
            if each.namespace == namespace
            if (each.name == name if name else labels.items() <= each.labels.items())
        ]

    async def log(self, namespace: str, pod: str, container: str) -> str:
        await asyncio.sleep(0)
        return self._logs.get(f"{namespace}/{pod}", "")

    async def samples(self) -> list[cluster_view.Sample]:
        await asyncio.sleep(0)
        return self._samples

    async def explanation(self, namespace: str, pod: str) -> str:
        await asyncio.sleep(0)
        return self._explanations.get(f"{namespace}/{pod}", "")
