"""Pods of this node, as far as the monitor needs them: names, ids of containers, and who has ended.

Without the API server the monitor goes on: the agent's files name its containers. What needs pods
is left out then: names of containers that HAMi's plugin started, and of those that are not ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import msgspec

from hami.kube import paths
from hami.kube.client import Client
from hami.kube.informer import Reflector
from hami.monitor.containers import Key
from hami.wire import annotation_keys, codec, objects

#: Annotation of a static pod's image in the API: the UID that kubelet runs it under.
_STATIC_UID = "kubernetes.io/config.hash"
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
    """A pod with the fields of its containers' status that nobody else reads."""

    status: _PodStatus | None = None  # type: ignore[assignment]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a pod."""

    uid: str
    namespace: str
    name: str
    #: Init containers first.
    containers: tuple[str, ...]
    #: The runtime's id to the container's name.
    ids: dict[str, str]
    ended: frozenset[str]
    finished: bool
    mig_allocations: str


def seen(pod: NodePod) -> Seen:
    statuses = list(pod.status.containers()) if pod.status else []
    return Seen(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
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
    )


class Pods:
    """A sink of the watch; `synced` says whether what is not here is not there either."""

    def __init__(self) -> None:
        self._pods: dict[str, Seen] = {}
        #: kubelet's own UIDs of static pods to those in the API.
        self._static: dict[str, str] = {}
        self.synced = False

    def __iter__(self) -> Iterator[Seen]:
        return iter(list(self._pods.values()))

    def get(self, uid: str) -> Seen | None:
        """Return a pod by its UID; a static pod also by the one that kubelet runs it under."""
        return self._pods.get(self._static.get(uid, uid))

    def over(self, key: Key, *, age: float) -> bool:
        """Tell whether the API server says that a container of that age in seconds has ended."""
        pod = self._pods.get(key.uid)
        if pod is None:
            # The agent may know a pod some moments earlier than we do.
            return self.synced and age > _LATE
        return pod.finished or key.container in pod.ended

    def put(self, obj: NodePod) -> None:
        self._pods[obj.uid] = seen(obj)
        static = obj.annotation(_STATIC_UID)
        if static:
            self._static[static] = obj.uid

    def drop(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._forget_static()

    def retain(self, uids: AbstractSet[str]) -> None:
        self._pods = {uid: pod for uid, pod in self._pods.items() if uid in uids}
        self._forget_static()
        self.synced = True  # a complete list has just been taken

    def _forget_static(self) -> None:
        self._static = {own: uid for own, uid in self._static.items() if uid in self._pods}


def reflector(client: Client, pods: Pods, *, node: str, resync: float) -> Reflector[NodePod]:
    return Reflector(
        client,
        paths.pods(),
        decode=lambda body: codec.decode(body, NodePod, what="pod"),
        sink=pods,
        kind="pods",
        query={"fieldSelector": f"spec.nodeName={node}"},
        resync_interval=resync,
        page_size=50,  # few lie in memory at once
    )
