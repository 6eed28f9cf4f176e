"""Pods of this node: names, container ids, and which containers have ended.

Without the API server the monitor continues: the agent's files name its containers. What needs pods
is left out then: names of containers that HAMi's plugin started, and of those that are not ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from hami.kube import paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.monitor.containers import Key
from hami.wire import annotation_keys, codec, objects, quantity, shares

#: Annotation of a static pod's mirror pod in the API: the UID that kubelet runs it under.
_STATIC_UID = "kubernetes.io/config.hash"
_BY_STATIC_UID = "static UID"
#: HAMi's name, which its webhook sets on containers that ask for a priority.
_PRIORITY = "CUDA_TASK_PRIORITY"
#: Pods in one page of a list: few are in memory at once.
_PAGE = 50
#: Seconds that our watch may be behind the agent's.
_LATE = 60.0


class _State(codec.Object, frozen=True):
    terminated: dict[str, object] | None = None


class _Status(codec.Object, frozen=True):
    name: str | None = None
    container_id: str | None = msgspec.field(name="containerID", default=None)
    state: _State | None = None


class _PodStatus(codec.Object, frozen=True):
    phase: str | None = None
    container_statuses: list[_Status | None] | None = None
    init_container_statuses: list[_Status | None] | None = None
    ephemeral_container_statuses: list[_Status | None] | None = None

    def containers(self) -> Iterator[_Status]:
        for statuses in (
            self.init_container_statuses,
            self.container_statuses,
            self.ephemeral_container_statuses,
        ):
            yield from (status for status in statuses or () if status is not None)


class NodePod(objects.Pod, frozen=True):
    """A pod with the fields of its containers' status that only the monitor reads."""

    status: _PodStatus | None = None  # type: ignore[assignment]


class WatchedPod(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a Pod that the monitor keeps."""

    uid: str
    namespace: str
    name: str
    version: int
    #: Init containers first.
    containers: tuple[str, ...]
    #: The runtime's id -> the container's name.
    ids: dict[str, str]
    #: Names of the containers that have ended.
    ended: frozenset[str]
    finished: bool
    mig_allocations: str
    #: The UID that kubelet runs a static pod under; empty for other pods.
    static_uid: str = ""
    #: Names of the containers that ask for a card, or for another device.
    asking: frozenset[str] = frozenset()
    #: Value of its mark, as it is written; empty: none.
    overuse: str = ""
    #: Cards of its grant; empty: it has none that can be read.
    cards: frozenset[str] = frozenset()
    #: By container, the priority that HAMi's library takes from the spec (0 is high); None: the
    #: spec says that it comes from elsewhere.
    priorities: dict[str, int | None] = {}


def read(body: bytes) -> WatchedPod:
    """Return what is kept of a pod."""
    pod = codec.decode(body, NodePod, what="pod")
    statuses = list(pod.status.containers()) if pod.status else []
    granted, _ = shares.salvage(pod.annotation(annotation_keys.SIGNED_DEVICES))
    return WatchedPod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        version=pod.version,
        containers=tuple(container.name or "" for _, container in pod.containers()),
        ids={
            # containerd://5f2c..., cri-o://..., docker://...
            (status.container_id or "").rpartition("/")[2]: status.name or ""
            for status in statuses
            if status.container_id
        },
        ended=frozenset(
            status.name or ""
            for status in statuses
            if status.state is not None and status.state.terminated is not None
        ),
        finished=pod.finished,
        mig_allocations=pod.annotation(annotation_keys.MIG_ALLOCATIONS),
        static_uid=pod.annotation(_STATIC_UID),
        asking=_asking(pod),
        overuse=pod.annotation(annotation_keys.OVERUSE),
        cards=frozenset(share.card for each in granted for share in each),
        priorities=dict(_priorities(pod)) if granted else {},
    )


def _priorities(pod: objects.Pod) -> Iterator[tuple[str, int | None]]:
    for _, container in pod.containers():
        for variable in container.env or ():
            if variable is not None and variable.name == _PRIORITY:
                text = (variable.value or "").strip()
                number = int(text) if text.isascii() and text.isdigit() else 0  # as C's atoi
                yield container.name or "", None if variable.value_from else number


def _asking(pod: objects.Pod) -> frozenset[str]:
    claims = bool(pod.spec and pod.spec.resource_claims)
    return frozenset(
        container.name or ""
        for _, container in pod.containers()
        # Devices have the name of their vendor's domain, whatever it is.
        if claims or any("/" in resource for resource in _resources(container))
    )


def _resources(container: objects.Container) -> Iterator[str]:
    """Yield the resources that a container asks for; an amount of 0 asks for none."""
    resources = container.resources
    for part in (resources.limits, resources.requests) if resources else ():
        for name, amount in (part or {}).items():
            if amount is not None and not quantity.is_zero(amount):
                yield name


class Pods:
    """The informer of this node's pods; `synced`: a pod that is not here does not exist."""

    def __init__(self, client: Client, *, node: str, resync_interval: float) -> None:
        self.informer: Informer[WatchedPod] = Informer(
            client,
            paths.pods(),
            read,
            kind="pods",
            query={"fieldSelector": f"spec.nodeName={node}"},
            indexes={_BY_STATIC_UID: _static_uids},
            resync_interval=resync_interval,
            page_size=_PAGE,
        )

    def __iter__(self) -> Iterator[WatchedPod]:
        return iter(self.informer)

    @property
    def synced(self) -> bool:
        """Whether the pods of this node have been listed since the start."""
        return self.informer.synced

    def get(self, uid: str) -> WatchedPod | None:
        """Return a pod by its UID; a static pod also by the one that kubelet runs it under."""
        found = self.informer.get(uid)
        return found or next(iter(self.informer.by_index(_BY_STATIC_UID, uid)), None)

    def over(self, key: Key, *, age: float) -> bool:
        """Return whether the API server shows that a container of that age in seconds has ended."""
        pod = self.informer.get(key.uid)
        if pod is None:
            # The agent may know a pod some moments earlier than we do.
            return self.synced and age > _LATE
        return pod.finished or key.container in pod.ended


def _static_uids(pod: WatchedPod) -> Iterable[str]:
    return (pod.static_uid,) if pod.static_uid else ()
