"""A pod as the scheduler needs it: read once when it comes, with the bytes for the extenders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Mapping

import msgspec

from hami.wire import codec, objects
from hami_sandbox.kube_scheduler import requests
from hami_sandbox.kube_scheduler.kept import Kept
from hami_sandbox.kube_scheduler.selectors import LabelSelector, NodeSelector
from hami_sandbox.kube_scheduler.tolerations import Toleration

_DEFAULT = "default-scheduler"
#: Seen in place of nothing when nodes are compared: an empty pod is not free.
_LEAST_CPU, _LEAST_MEMORY = 100, 200 * 2**20


class PodTerm(codec.Object, frozen=True):
    """Near to, or far from, pods like these: in the same part of the cluster."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: LabelSelector | None = None


class _NodeAffinity(codec.Object, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class _PodAffinity(codec.Object, frozen=True):
    required_during_scheduling_ignored_during_execution: tuple[PodTerm, ...] | None = None


class _Affinity(codec.Object, frozen=True):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Spec(requests.PodResources, frozen=True):
    node_name: str | None = None
    scheduler_name: str | None = None
    priority: int | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    affinity: _Affinity | None = None
    scheduling_gates: tuple[msgspec.Raw, ...] | None = None


class Condition(codec.Object, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None
    observed_generation: int | None = None


class _Status(codec.Object, frozen=True):
    conditions: tuple[Condition, ...] | None = None


class _Metadata(objects.Metadata, frozen=True):
    generation: int | None = None


class _Pod(codec.Object, frozen=True):
    metadata: _Metadata | None = None
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: _Status | None = None


class _Whole(codec.Object, frozen=True, omit_defaults=False):
    metadata: dict[str, msgspec.Raw]
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


@dataclasses.dataclass(slots=True, frozen=True, eq=False, kw_only=True)
class Pod(Kept):
    #: Of its spec.
    generation: int | None
    #: Empty until it has a node, when nobody needs them any more.
    raw: bytes
    #: What a change of the pod itself changes; the status is not of it.
    own: tuple[object, ...]
    node_name: str
    scheduler_name: str
    priority: int
    #: What is taken from a node, but for what only extenders count.
    needs: Mapping[str, int]
    #: Every resource that it names.
    names: frozenset[str]
    ports: frozenset[str]
    node_selector: Mapping[str, str]
    node_affinity: NodeSelector | None
    near: tuple[PodTerm, ...]
    far: tuple[PodTerm, ...]
    tolerations: tuple[Toleration, ...]
    gated: bool
    scheduled: Condition | None
    #: All that decides which nodes take it, but for its neighbours: alike pods have the same.
    kind: Hashable

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def created(self) -> str:
        return self.metadata.creation_timestamp or ""

    @property
    def deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def weight(self) -> tuple[int, int]:
        """Cpu and memory as they count when nodes are compared."""
        cpu, memory = self.needs.get(requests.CPU), self.needs.get(requests.MEMORY)
        return cpu or _LEAST_CPU, memory or _LEAST_MEMORY

    def for_extender(self) -> bytes:
        """Return its JSON as kube-scheduler sends it: no kind, no version, no managed fields."""
        whole = codec.decode(self.raw, _Whole, what="pod")
        whole.metadata.pop("managedFields", None)
        return codec.encode(whole)


def decoder(ignored: Collection[str]) -> Callable[[bytes], Pod]:
    """Return what reads pods; `ignored` resources are none of the scheduler's business."""

    def decode(body: bytes) -> Pod:
        pod = codec.decode(body, _Pod, what="pod")
        spec = codec.decode(bytes(pod.spec), _Spec, what="pod, spec")
        metadata = pod.metadata or _Metadata()
        affinity = spec.affinity or _Affinity()
        nodes = affinity.node_affinity or _NodeAffinity()
        near = affinity.pod_affinity or _PodAffinity()
        far = affinity.pod_anti_affinity or _PodAffinity()
        conditions = (pod.status and pod.status.conditions) or ()
        needs = {k: v for k, v in spec.requests().items() if v > 0 and k not in ignored}
        selector = spec.node_selector or {}
        node_affinity = nodes.required_during_scheduling_ignored_during_execution
        tolerations = spec.tolerations or ()
        return Pod(
            metadata=metadata,
            generation=metadata.generation,
            raw=b"" if spec.node_name else body,
            own=(metadata.labels, metadata.annotations, bytes(pod.spec)),
            node_name=spec.node_name or "",
            scheduler_name=spec.scheduler_name or _DEFAULT,
            priority=spec.priority or 0,
            needs=needs,
            names=spec.names,
            ports=spec.ports,
            node_selector=selector,
            node_affinity=node_affinity,
            near=near.required_during_scheduling_ignored_during_execution or (),
            far=far.required_during_scheduling_ignored_during_execution or (),
            tolerations=tolerations,
            gated=bool(spec.scheduling_gates),
            scheduled=next((c for c in conditions if c.type == "PodScheduled"), None),
            kind=(
                frozenset(needs.items()),
                frozenset(selector.items()),
                node_affinity,
                tolerations,
                spec.ports,
            ),
        )

    return decode
