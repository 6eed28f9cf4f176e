"""A pod as the scheduler needs it: requests, affinity, bytes for extenders.

It is read once, when it arrives. Amounts are whole numbers, cpu in thousandths.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

import msgspec

from hami.wire import codec, objects, quantity
from hami_sandbox.api_objects import Labels
from hami_sandbox.kube_scheduler.selection import LabelSelector, NodeSelector, Toleration

Amounts = dict[str, int]

CPU, MEMORY, PODS = "cpu", "memory", "pods"


class Port(codec.Object, frozen=True):
    host_port: int | None = None
    protocol: str | None = None


class Container(objects.Container, frozen=True):
    ports: tuple[Port, ...] | None = None


class PodResources(codec.Object, frozen=True):
    """Resources that kube-scheduler counts: containers, overhead, the pod's own."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: dict[str, objects.Amount] | None = None
    resources: objects.Resources | None = None

    @property
    def names(self) -> frozenset[str]:
        """Every resource that a container names."""
        return frozenset(
            name
            for container in self._all()
            if container.resources is not None
            for amounts in (container.resources.requests, container.resources.limits)
            for name in amounts or ()
        )

    @property
    def ports(self) -> frozenset[str]:
        """The ports of the node itself that its containers take."""
        return frozenset(
            f"{port.protocol or 'TCP'}:{port.host_port}"
            for container in self.containers or ()
            for port in container.ports or ()
            if port.host_port
        )

    def _all(self) -> Iterable[Container]:
        yield from self.containers or ()
        yield from self.init_containers or ()

    def requests(self) -> Amounts:
        """Return what a node must have free.

        Containers run together; init containers before, one after the other, but beside the
        sidecars that were started until then.
        """
        together: Amounts = {}
        for container in self.containers or ():
            _add(together, _of(container.resources))
        sidecars: Amounts = {}
        most: Amounts = {}
        for container in self.init_containers or ():
            own = _of(container.resources)
            if container.restart_policy == "Always":
                _add(together, own)
                _add(sidecars, own)
                _raise(most, sidecars)
            else:
                _add(own, sidecars)
                _raise(most, own)
        _raise(together, most)
        together.update(_of(self.resources))
        _add(together, amounts(self.overhead))
        return together


def amounts(given: Mapping[str, objects.Amount | None] | None) -> Amounts:
    return {
        name: _whole(amount, cpu=name == CPU)
        for name, amount in (given or {}).items()
        if amount is not None
    }


def _of(resources: objects.Resources | None) -> Amounts:
    if resources is None:
        return {}
    # A limit without a request is both: the API server writes it so.
    return amounts({**(resources.limits or {}), **(resources.requests or {})})


@functools.lru_cache(4096)
def _whole(amount: objects.Amount, *, cpu: bool) -> int:
    if cpu:
        value = quantity.parse(amount, what="cpu") * 1000
        return -(-value.numerator // value.denominator)
    return quantity.rounded_up(amount, what="amount")


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: Amounts, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        total[name] = max(total.get(name, 0), amount)


@dataclasses.dataclass(slots=True, frozen=True, eq=False, kw_only=True)
class Kept:
    metadata: objects.Metadata

    @property
    def uid(self) -> str:
        return self.metadata.uid or ""

    @property
    def name(self) -> str:
        return self.metadata.name or ""

    @property
    def labels(self) -> Labels:
        return self.metadata.labels or {}


_DEFAULT = "default-scheduler"
#: Counted for pods without requests when nodes are scored.
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


class _Spec(PodResources, frozen=True):
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
    #: Its JSON for extenders; empty once it has a node.
    raw: bytes
    #: Fields of the pod itself; a change of the status does not change them.
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
    #: All that decides which nodes fit, without pod affinity: equal for alike pods.
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
        cpu, memory = self.needs.get(CPU), self.needs.get(MEMORY)
        return cpu or _LEAST_CPU, memory or _LEAST_MEMORY

    def for_extender(self) -> bytes:
        """Return its JSON as kube-scheduler sends it: no kind, no version, no managed fields."""
        whole = codec.decode(self.raw, _Whole, what="pod")
        whole.metadata.pop("managedFields", None)
        return codec.encode(whole)


def decoder(ignored: Collection[str]) -> Callable[[bytes], Pod]:
    """Return a decoder of pods; `ignored` resources are counted by extenders only."""

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
