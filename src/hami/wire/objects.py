"""The fields of Kubernetes objects that we read.

Unknown fields are skipped. Every known one may be missing or null, because clients in many
languages write these objects; properties and methods (`pod.annotations`, `pod.containers()`) turn
null into empty. Quantities are kept as text; `hami.wire.quantity` reads them. The only object that
we create is a Binding.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator, Mapping

from hami.wire import annotation_keys, codec

Amount = str | int | float
"""A Kubernetes quantity as JSON carries it: mostly a string, sometimes a bare number."""

_NOTHING: Mapping[str, str] = {}
#: No resourceVersion is longer.
VERSION_DIGITS = 20


class ContainerKind(enum.IntEnum):
    """When a container runs within its pod; a pod's peak depends on it."""

    INIT = 0
    SIDECAR = 1
    APP = 2


class OwnerReference(codec.Object, frozen=True):
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


class Metadata(codec.Object, frozen=True):
    name: str | None = None
    namespace: str | None = None
    generate_name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str | None] | None = None
    labels: dict[str, str | None] | None = None
    owner_references: list[OwnerReference | None] | None = None


class Resources(codec.Object, frozen=True):
    limits: dict[str, Amount | None] | None = None
    requests: dict[str, Amount | None] | None = None

    def amount(self, resource: str) -> Amount | None:
        """Return the limit of `resource`, else its request, else None."""
        for amounts in (self.limits, self.requests):
            if amounts is not None:
                found = amounts.get(resource)
                if found is not None:
                    return found
        return None


_NO_RESOURCES = Resources()


class EnvVar(codec.Object, frozen=True):
    name: str | None = None
    #: The API server omits an empty one.
    value: str | None = None
    #: The source of the value, in place of `value`.
    value_from: dict[str, object] | None = None


class VolumeMount(codec.Object, frozen=True):
    name: str | None = None
    mount_path: str | None = None


class SecurityContext(codec.Object, frozen=True):
    privileged: bool | None = None


class Container(codec.Object, frozen=True):
    name: str | None = None
    resources: Resources | None = None
    env: list[EnvVar | None] | None = None
    volume_mounts: list[VolumeMount | None] | None = None
    security_context: SecurityContext | None = None
    restart_policy: str | None = None

    def amount(self, resource: str) -> Amount | None:
        """Return the limit of `resource`, else its request, else None."""
        return (self.resources or _NO_RESOURCES).amount(resource)


_NO_CONTAINER = Container()


class SchedulingGroup(codec.Object, frozen=True):
    pod_group_name: str | None = None


class Volume(codec.Object, frozen=True):
    """The sources of a volume that kube-scheduler may have to provision before it binds."""

    persistent_volume_claim: dict[str, object] | None = None
    ephemeral: dict[str, object] | None = None


class ResourceClaim(codec.Object, frozen=True):
    name: str | None = None


class PodSpec(codec.Object, frozen=True):
    node_name: str | None = None
    scheduler_name: str | None = None
    runtime_class_name: str | None = None
    priority_class_name: str | None = None
    priority: int | None = None
    containers: list[Container | None] | None = None
    init_containers: list[Container | None] | None = None
    scheduling_group: SchedulingGroup | None = None
    volumes: list[Volume | None] | None = None
    resource_claims: list[ResourceClaim | None] | None = None


class Terminated(codec.Object, frozen=True):
    exit_code: int | None = None


class ContainerState(codec.Object, frozen=True):
    terminated: Terminated | None = None


class ContainerStatus(codec.Object, frozen=True):
    name: str | None = None
    state: ContainerState | None = None


class Condition(codec.Object, frozen=True):
    type: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None


class PodStatus(codec.Object, frozen=True):
    phase: str | None = None
    #: Of a pod that has failed or was rejected.
    reason: str | None = None
    message: str | None = None
    #: When kubelet took the pod up; RFC 3339.
    start_time: str | None = None
    conditions: list[Condition | None] | None = None
    nominated_node_name: str | None = None
    init_container_statuses: list[ContainerStatus | None] | None = None


class _Named(codec.Object, frozen=True):
    """Metadata of Pod, Node, ResourceQuota and Lease."""

    metadata: Metadata | None = None

    @property
    def name(self) -> str:
        return (self.metadata and self.metadata.name) or ""

    @property
    def namespace(self) -> str:
        return (self.metadata and self.metadata.namespace) or ""

    @property
    def uid(self) -> str:
        return (self.metadata and self.metadata.uid) or ""

    @property
    def version(self) -> int:
        """The resourceVersion; 0 where there is none that could be compared."""
        text = (self.metadata and self.metadata.resource_version) or ""
        return int(text) if text.isascii() and text.isdigit() and len(text) <= VERSION_DIGITS else 0

    @property
    def annotations(self) -> Mapping[str, str | None]:
        return (self.metadata and self.metadata.annotations) or _NOTHING

    @property
    def labels(self) -> Mapping[str, str | None]:
        return (self.metadata and self.metadata.labels) or _NOTHING

    def annotation(self, key: str | None) -> str:
        """Return the value of an annotation; missing, null and unnamed ones are empty."""
        return (self.annotations.get(key) or "") if key else ""


class Pod(_Named, frozen=True):
    spec: PodSpec | None = None
    status: PodStatus | None = None

    @property
    def node_name(self) -> str:
        return (self.spec and self.spec.node_name) or ""

    @property
    def phase(self) -> str:
        return (self.status and self.status.phase) or ""

    @property
    def finished(self) -> bool:
        """True: its containers have ended for good, and kubelet has freed their devices."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def deleting(self) -> bool:
        return bool(self.metadata and self.metadata.deletion_timestamp)

    @property
    def controller(self) -> OwnerReference | None:
        """The object that made it and replaces it; None: there is none."""
        owners = (self.metadata and self.metadata.owner_references) or ()
        return next((owner for owner in owners if owner and owner.controller), None)

    @property
    def priority(self) -> int:
        """The number of its PriorityClass."""
        return (self.spec and self.spec.priority) or 0

    @property
    def nominated_node(self) -> str:
        """The node that kube-scheduler wants to try first, or empty."""
        return (self.status and self.status.nominated_node_name) or ""

    @property
    def not_scheduled(self) -> str:
        """What kube-scheduler wrote when it last gave the pod up, or empty."""
        for condition in (self.status and self.status.conditions) or ():
            if condition and (condition.type, condition.status) == ("PodScheduled", "False"):
                return f"{condition.reason or ''}: {condition.message or ''}"
        return ""

    @property
    def binds_slowly(self) -> bool:
        """Whether kube-scheduler may have to wait for a volume or a claim before it binds."""
        volumes = (self.spec and self.spec.volumes) or ()
        return bool(self.spec and self.spec.resource_claims) or any(
            volume and (volume.persistent_volume_claim or volume.ephemeral) for volume in volumes
        )

    @property
    def pod_group(self) -> str:
        """Name of its gang, or empty."""
        group = self.spec and self.spec.scheduling_group
        label = self.labels.get(annotation_keys.POD_GROUP_LABEL)
        return (group and group.pod_group_name) or label or ""

    def containers(self) -> Iterator[tuple[ContainerKind, Container]]:
        """Yield every container with its kind: init containers first, then app containers."""
        if self.spec is None:
            return
        for init in self.spec.init_containers or ():
            container = init or _NO_CONTAINER
            restarts = container.restart_policy == "Always"
            yield (ContainerKind.SIDECAR if restarts else ContainerKind.INIT), container
        for app in self.spec.containers or ():
            yield ContainerKind.APP, app or _NO_CONTAINER

    @property
    def init_done(self) -> bool:
        """True: it has init containers that run once, and all ended with exit code 0.

        Sidecars do not count here: they never end.
        """
        if not (self.spec and self.spec.init_containers):
            return False
        running_once = {c.name for kind, c in self.containers() if kind is ContainerKind.INIT}
        statuses = (self.status and self.status.init_container_statuses) or ()
        ended = {
            status.name
            for status in statuses
            if status and status.state and status.state.terminated
            if status.state.terminated.exit_code == 0
        }
        return bool(running_once) and running_once <= ended


class Taint(codec.Object, frozen=True):
    key: str | None = None
    value: str | None = None
    effect: str | None = None


class NodeSpec(codec.Object, frozen=True):
    unschedulable: bool | None = None
    taints: list[Taint | None] | None = None


class NodeSystemInfo(codec.Object, frozen=True):
    """Versions that kubelet reports."""

    kubelet_version: str | None = None
    container_runtime_version: str | None = None


class NodeStatus(codec.Object, frozen=True):
    allocatable: dict[str, Amount | None] | None = None
    capacity: dict[str, Amount | None] | None = None
    node_info: NodeSystemInfo | None = None


class Node(_Named, frozen=True):
    spec: NodeSpec | None = None
    status: NodeStatus | None = None

    @property
    def allocatable(self) -> Mapping[str, Amount | None]:
        return (self.status and self.status.allocatable) or {}

    @property
    def capacity(self) -> Mapping[str, Amount | None]:
        return (self.status and self.status.capacity) or {}

    @property
    def admits(self) -> Hashable:
        """All of the node itself that decides which pods kube-scheduler offers it to."""
        spec = self.spec or NodeSpec()
        return (frozenset(self.labels.items()), tuple(spec.taints or ()), bool(spec.unschedulable))

    @property
    def kubelet_version(self) -> str:
        """Version of its kubelet, for example v1.36.3; empty: not reported."""
        info = self.status and self.status.node_info
        return (info and info.kubelet_version) or ""

    @property
    def runtime_version(self) -> str:
        """Name and version of its container runtime, for example containerd://2.1.4."""
        info = self.status and self.status.node_info
        return (info and info.container_runtime_version) or ""


class QuotaSpec(codec.Object, frozen=True):
    hard: dict[str, Amount | None] | None = None


class ResourceQuota(_Named, frozen=True):
    spec: QuotaSpec | None = None

    @property
    def hard(self) -> Mapping[str, Amount | None]:
        return (self.spec and self.spec.hard) or {}


class LeaseSpec(codec.Object, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(_Named, frozen=True):
    spec: LeaseSpec | None = None


class ObjectReference(codec.Object, frozen=True):
    kind: str | None = None
    name: str | None = None


class Binding(_Named, frozen=True):
    """The body of POST .../pods/<name>/binding: target, UID precondition, our annotations."""

    target: ObjectReference | None = None
    api_version: str | None = None
    kind: str | None = None


def binding(
    *, name: str, namespace: str, uid: str, node: str, annotations: Mapping[str, str]
) -> Binding:
    """Build the Binding that puts a pod on a node and records the decision in the same write.

    The API server merges the annotations into the pod. It refuses if the pod has another UID: a pod
    that was deleted and created again under the same name was never placed.
    """
    return Binding(
        api_version="v1",
        kind="Binding",
        metadata=Metadata(name=name, namespace=namespace, uid=uid, annotations=dict(annotations)),
        target=ObjectReference(kind="Node", name=node),
    )
