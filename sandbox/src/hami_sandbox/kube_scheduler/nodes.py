"""A node, and the pods that are placed on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import msgspec

from hami.wire import codec, objects
from hami_sandbox.kube_scheduler import pods
from hami_sandbox.kube_scheduler.pods import Kept, Pod
from hami_sandbox.kube_scheduler.selection import Taint


class _Spec(codec.Object, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class _Condition(codec.Object, frozen=True):
    type: str = ""
    status: str = ""


class _Status(codec.Object, frozen=True):
    allocatable: dict[str, objects.Amount | None] | None = None
    conditions: tuple[_Condition, ...] | None = None


class _Node(codec.Object, frozen=True):
    metadata: objects.Metadata | None = None
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Whole(codec.Object, frozen=True, omit_defaults=False):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


@dataclasses.dataclass(slots=True, frozen=True, eq=False, kw_only=True)
class Node(Kept):
    #: For extenders that want whole nodes; else empty.
    raw: bytes
    #: Fields whose change may make a pod fit; a heartbeat is not among them.
    properties: tuple[object, ...]
    unschedulable: bool
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, int]

    #: Nodes have none; the caches ask for it.
    namespace = ""

    def for_extender(self) -> bytes:
        """Return its JSON as kube-scheduler sends it: neither kind nor version."""
        return codec.encode(codec.decode(self.raw, _Whole, what="node"))


def decoder(*, whole: bool) -> Callable[[bytes], Node]:
    """Return what reads nodes; `whole` keeps their bytes."""

    def decode(body: bytes) -> Node:
        node = codec.decode(body, _Node, what="node")
        metadata = node.metadata or objects.Metadata()
        return Node(
            metadata=metadata,
            raw=body if whole else b"",
            properties=(metadata.labels, metadata.annotations, node.spec, node.status),
            unschedulable=bool(node.spec.unschedulable),
            taints=(*(node.spec.taints or ()), *_implied(node.status)),
            allocatable=pods.amounts(node.status.allocatable),
        )

    return decode


def _implied(status: _Status) -> Iterator[Taint]:
    """Yield the taints that a node controller would write; the sandbox has none."""
    for condition in status.conditions or ():
        if condition.type == "Ready" and condition.status != "True":
            unknown = condition.status == "Unknown"
            word = "unreachable" if unknown else "not-ready"
            yield Taint(key=f"node.kubernetes.io/{word}", effect="NoSchedule")


class Row:
    """A node and its pods, by name; pods may be known before their node is."""

    __slots__ = ("name", "node", "pods", "ports", "used", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: Node | None = None
        self.pods: dict[str, Pod] = {}
        self.used: dict[str, int] = {}
        #: Cpu and memory in use, where a pod that asks for nothing counts as well.
        self.weight = (0, 0)
        self.ports: dict[str, int] = {}

    def add(self, pod: Pod) -> None:
        """Count a pod, replacing its former state."""
        self.remove(pod.uid)
        self.pods[pod.uid] = pod
        self._count(pod, 1)

    def remove(self, uid: str) -> Pod | None:
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self._count(pod, -1)
        return pod

    def _count(self, pod: Pod, sign: int) -> None:
        for name, amount in pod.needs.items():
            self.used[name] = self.used.get(name, 0) + sign * amount
        cpu, memory = pod.weight
        self.weight = (self.weight[0] + sign * cpu, self.weight[1] + sign * memory)
        for port in pod.ports:
            self.ports[port] = self.ports.get(port, 0) + sign
