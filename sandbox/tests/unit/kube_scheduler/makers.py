"""Pods and nodes for tests of the scheduler, as the API server would send them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hami.wire import codec
from hami_sandbox.kube_scheduler import nodes, pods
from hami_sandbox.kube_scheduler.nodes import Node, Row
from hami_sandbox.kube_scheduler.pods import Pod

Object = dict[str, Any]
SCHEDULER = "hami-scheduler"
GPU = "nvidia.com/gpu"


def pod_object(
    name: str,
    *,
    requests: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str = "default",
    uid: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    meta: Object = {"name": name, "namespace": namespace, **(metadata or {})}
    if labels is not None:
        meta["labels"] = dict(labels)
    if uid is not None:
        meta["uid"] = uid
    container = {"name": "main", "resources": {"requests": dict(requests or {})}}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": meta,
        "spec": {"schedulerName": SCHEDULER, "containers": [container], **spec},
        "status": {"phase": "Pending", **(status or {})},
    }


def node_object(
    name: str,
    *,
    cpu: str = "8",
    memory: str = "32Gi",
    pods: str = "110",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    unschedulable: bool = False,
    ready: str = "",
    **more: str,
) -> Object:
    metadata: Object = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    status: Object = {"allocatable": {"cpu": cpu, "memory": memory, "pods": pods, **more}}
    if ready:
        status["conditions"] = [{"type": "Ready", "status": ready}]
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {"taints": list(taints), "unschedulable": unschedulable},
        "status": status,
    }


def pod(name: str = "p", *, ignored: Collection[str] = (), **fields: Any) -> Pod:
    body = codec.encode(pod_object(name, **{"uid": f"uid-{name}", **fields}))
    return pods.decoder(ignored)(body)


def node(name: str = "n", **fields: Any) -> Node:
    made = node_object(name, **fields)
    made["metadata"]["uid"] = f"uid-{name}"
    return nodes.decoder(whole=True)(codec.encode(made))


def row(name: str = "n", *placed: Pod, **fields: Any) -> Row:
    made = Row(name)
    made.node = node(name, **fields)
    for there in placed:
        made.add(there)
    return made
