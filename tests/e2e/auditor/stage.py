"""A place for planted faults in the API: a node without kubelet, and its pods.

Nothing runs there, so nothing of the real nodes is touched, and taking it down is deleting it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tests.e2e.auditor.node_annotations import NVIDIA_REGISTER
from tests.e2e.auditor.pod_annotations import ALLOCATED, NODE

CARD = "GPU-plant-0"
GPU = "nvidia.com/gpu"


class Api(Protocol):
    """What is needed of tests.kubeapi.client.Client."""

    def get(self, path: str, **query: str | float) -> dict[str, Any]: ...
    def create(self, path: str, body: object, **query: str | float) -> dict[str, Any]: ...
    def patch(self, path: str, body: object) -> dict[str, Any]: ...
    def delete(self, path: str, body: object = None, **query: str | float) -> dict[str, Any]: ...


def register(**changes: object) -> str:
    """Return the register annotation of one card: two slots, 8000 MiB, 100 % of cores."""
    card = {
        "id": CARD,
        "count": 2,
        "devmem": 8000,
        "devcore": 100,
        "type": "NVIDIA A100-SXM4-40GB",
        "mode": "hami-core",
        "health": True,
        **changes,
    }
    return json.dumps([card])


def grant(memory: int, cores: int, card: str = CARD) -> str:
    """Return the device list of a pod with one container."""
    return f"{card},NVIDIA,{memory},{cores}:;"


class Stage:
    def __init__(self, client: Api, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = f"auditor-plant-{uuid.uuid4().hex[:8]}"
        self._pods: list[str] = []
        self._has_node = False

    @property
    def node(self) -> str:
        return self._name

    def set_node(self, annotations: Mapping[str, str] | None = None) -> None:
        """Make the node, with one card unless the annotations say otherwise."""
        kept = {NVIDIA_REGISTER: register(), **(annotations or {})}
        self._client.create(
            "/api/v1/nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": self._name, "annotations": kept},
                "spec": {
                    "unschedulable": True,
                    "taints": [{"key": "auditor.hami.io/plant", "effect": "NoSchedule"}],
                },
            },
        )
        self._has_node = True

    def add_pod(
        self,
        devices: str | None,
        annotations: Mapping[str, str] | None = None,
        *,
        bound: bool = True,
        containers: Sequence[str] = ("main",),
        asks: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Make a pod that never starts; with `bound` on our node, else on none."""
        name = f"{self._name}-{len(self._pods)}"
        kept = {NODE: self._name, **({} if devices is None else {ALLOCATED: devices})}
        kept.update(annotations or {})
        limits = {GPU: "1"} if asks is None and devices is not None else dict(asks or {})
        spec: dict[str, Any] = {
            "automountServiceAccountToken": False,
            "schedulerName": "auditor-plant",  # nobody's
            "containers": [
                {"name": one, "image": "auditor/plant", "resources": {"limits": limits}}
                for one in containers
            ],
        }
        if bound:
            spec["nodeName"] = self._name
        made = self._client.create(
            f"/api/v1/namespaces/{self._namespace}/pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "annotations": kept},
                "spec": spec,
            },
        )
        self._pods.append(name)
        return made

    def annotate(self, pod: Mapping[str, Any], annotations: Mapping[str, str]) -> None:
        self._client.patch(self._path(pod), {"metadata": {"annotations": dict(annotations)}})

    def set_running(self, pod: Mapping[str, Any]) -> None:
        """Say what its kubelet would say."""
        statuses = [
            {
                "name": one["name"],
                "image": one["image"],
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
            for one in pod["spec"]["containers"]
        ]
        status = {"phase": "Running", "containerStatuses": statuses}
        self._client.patch(f"{self._path(pod)}/status", {"status": status})

    def remove(self, pod: Mapping[str, Any]) -> None:
        self._client.delete(self._path(pod), gracePeriodSeconds=0)
        self._pods.remove(pod["metadata"]["name"])

    def take_down(self) -> None:
        for name in list(self._pods):
            self.remove({"metadata": {"name": name}})
        if self._has_node:
            self._client.delete(f"/api/v1/nodes/{self._name}")
            self._has_node = False

    def _path(self, pod: Mapping[str, Any]) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods/{pod['metadata']['name']}"
