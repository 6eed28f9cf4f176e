"""Informers of the scheduler: API objects applied to the cluster's state.

Decisions that stand in a pod's annotations, though the pod was never bound.
HAMi writes its decision into the pod first and binds later. If that bind never comes, the cards
stay taken for ever. Here such a decision lives as long as our own reservations do
(`--reservation-timeout`), from the time it was made (`hami.io/vgpu-time`). A decision without a
readable time is as old as its pod.

What the API server shows, turned into the cluster's state at once.
Each watched kind has a sink (`nodes`, `pods`, `quotas`) that the reflectors of `hami.kube` fill.
Objects are not kept: a pod becomes its ledger row, a node its facts and a small record of what
binding needs. Whoever waits for room, for a lock or for the fate of a pod listens to the signals
here. Everything runs in the loop's thread and nothing awaits, so a decision sees a whole state.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Generic, ParamSpec

import msgspec

from hami.cluster.pod_info import Hold, PodInfo
from hami.cluster.state import Cluster
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, node_marks, objects, text_values
from hami.wire import errors as wire_errors


def end_of(pod: objects.Pod, life: float) -> float | None:
    """Return when the decision ends, in seconds since the epoch; None: there is nothing to end."""
    if pod.node_name or pod.finished or not pod.annotation(annotation_keys.ASSIGNED_NODE):
        return None
    return _made(pod) + life


def without(pod: objects.Pod) -> objects.Pod:
    """Return the pod as if the decision had never been written."""
    assert pod.metadata is not None
    kept = {k: v for k, v in pod.annotations.items() if k != annotation_keys.ASSIGNED_NODE}
    metadata = msgspec.structs.replace(pod.metadata, annotations=kept)
    return msgspec.structs.replace(pod, metadata=metadata)


def _made(pod: objects.Pod) -> float:
    value = pod.annotation(annotation_keys.ASSIGNED_TIME)
    try:
        return float(text_values.parse_int32(value, what=annotation_keys.ASSIGNED_TIME))
    except wire_errors.WireError:
        created = (pod.metadata and pod.metadata.creation_timestamp) or ""
    try:
        return dt.datetime.fromisoformat(created).timestamp()
    except ValueError:
        return 0.0


P = ParamSpec("P")

_GONE_REMEMBERED = 20_000


class Signal(Generic[P]):
    """Callbacks to run when something has happened; they must not raise and never await."""

    def __init__(self) -> None:
        self._listeners: list[Callable[P, None]] = []

    def listen(self, listener: Callable[P, None]) -> None:
        self._listeners.append(listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for listener in self._listeners:
            listener(*args, **kwargs)


class NodeRecord(msgspec.Struct, frozen=True):
    """What binding needs to know of a node, beside its cards."""

    name: str
    uid: str
    #: Of the object these values were read from.
    version: int
    #: Value of HAMi's lock, or empty.
    lock: str
    #: Words of the vendors whose agent on this node needs no lock.
    late: frozenset[str]
    #: (vendor word, value or None) of the old liveness conversation, where the vendor has cards.
    handshakes: tuple[tuple[str, str | None], ...]


class World:
    """The cluster as the API server shows it, and who wants to know of changes."""

    def __init__(
        self, vendors: Iterable[Vendor], *, reservation_timeout: float, now: Callable[[], float]
    ) -> None:
        self.cluster = Cluster(vendors)
        #: A pod was seen as the API server has it; after the ledger has taken it over.
        self.pod_seen: Signal[[objects.Pod]] = Signal()
        #: A pod is gone: its UID.
        self.pod_gone: Signal[[str]] = Signal()
        #: There is more room than before on a node, or (by quota) for a namespace; "" is any.
        self.room: Signal[[str, str]] = Signal()
        #: A node was seen or is gone.
        self.node_seen: Signal[[str]] = Signal()
        self.nodes = NodeSink(self)
        self.pods = PodSink(self, reservation_timeout, now)
        self.quotas = QuotaSink(self)


class _Gone:
    """UIDs that will never come back, the latest last: late answers must not bring them back."""

    def __init__(self) -> None:
        self._uids: dict[str, None] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def add(self, uid: str) -> None:
        self._uids[uid] = None
        if len(self._uids) > _GONE_REMEMBERED:
            del self._uids[next(iter(self._uids))]


class NodeSink:
    def __init__(self, world: World) -> None:
        self._world = world
        self._gone = _Gone()
        self._records: dict[str, NodeRecord] = {}
        self._names: dict[str, str] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    def get(self, name: str) -> NodeRecord | None:
        return self._records.get(name)

    def records(self) -> Iterable[NodeRecord]:
        return self._records.values()

    def put(self, node: objects.Node) -> None:
        record = self._read(node)
        if record.uid in self._gone:
            return
        known = self._records.get(record.name)
        # Answers to our own writes overtake the watch: what is older says nothing new.
        if known is not None and known.uid == record.uid and known.version > record.version:
            return
        if known is not None:
            self._names.pop(known.uid, None)
        self._records[record.name] = record
        self._names[record.uid] = record.name
        changed = self._world.cluster.observe_node(node) is not None
        self._tell(record.name)
        if changed:
            self._world.room(record.name, "")

    def drop(self, uid: str) -> None:
        self._gone.add(uid)
        name = self._names.pop(uid, None)
        if name is None:
            return
        del self._records[name]
        self._world.cluster.forget_node(name)
        self._tell(name)

    def retain(self, uids: AbstractSet[str]) -> None:
        for uid in [uid for uid in self._names if uid not in uids]:
            self.drop(uid)

    async def changed(self, name: str, *, within: float, unless: asyncio.Future[None]) -> None:
        """Wait until a node is seen anew, `unless` is done, or so many seconds have passed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(name, []).append(waiter)
        try:
            await asyncio.wait(
                [waiter, unless], timeout=within, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting = self._waiters.get(name, [])
            if waiter in waiting:
                waiting.remove(waiter)
            if not waiting:
                self._waiters.pop(name, None)

    def _tell(self, name: str) -> None:
        for waiter in self._waiters.pop(name, ()):
            if not waiter.done():
                waiter.set_result(None)
        self._world.node_seen(name)

    def _read(self, node: objects.Node) -> NodeRecord:
        late = set()
        handshakes = []
        for vendor in self._world.cluster.vendors.values():
            keys = vendor.annotations
            register = node.annotation(keys.register)
            if register and node_marks.is_late(node.annotation(keys.binding), register):
                late.add(vendor.name)
            elif register and keys.handshake:
                handshakes.append((vendor.name, node.annotations.get(keys.handshake)))
        return NodeRecord(
            name=node.name,
            uid=node.uid,
            version=version_of(node.metadata),
            lock=node.annotation(annotation_keys.NODE_LOCK),
            late=frozenset(late),
            handshakes=tuple(handshakes),
        )


class PodSink:
    """Pods with our resources. Reservations of pods that were never seen here are left alone."""

    def __init__(self, world: World, reservation_timeout: float, now: Callable[[], float]) -> None:
        self._world = world
        self._reservation_timeout = reservation_timeout
        self._now = now
        self._seen: set[str] = set()
        #: Deleted, or finished for good.
        self._gone = _Gone()
        #: UID -> when a decision that only stands in annotations ends, in seconds since the epoch.
        self._annotated_until: dict[str, float] = {}

    def put(self, pod: objects.Pod) -> None:
        uid = pod.uid
        if not uid or uid in self._gone:
            return
        self._seen.add(uid)
        if pod.finished:
            self._gone.add(uid)
        cluster = self._world.cluster
        before = cluster.pods.get(uid)
        until = end_of(pod, self._reservation_timeout)
        if until is None:
            self._annotated_until.pop(uid, None)
        else:
            # A time in the future buys no more than one that is now.
            known = self._annotated_until.get(uid, self._now() + self._reservation_timeout)
            self._annotated_until[uid] = until = min(until, known)
            if until <= self._now():
                pod = without(pod)
        cluster.observe_pod(pod)
        self._world.pod_seen(pod)
        self._tell_room(before, cluster.pods.get(uid))

    def is_gone(self, uid: str) -> bool:
        """Whether a pod is known to be deleted or finished."""
        return uid in self._gone

    def drop(self, uid: str) -> None:
        self._gone.add(uid)
        self._seen.discard(uid)
        self._annotated_until.pop(uid, None)
        before = self._world.cluster.pods.get(uid)
        self._world.cluster.forget_pod(uid)
        self._world.pod_gone(uid)
        self._tell_room(before, None)

    def retain(self, uids: AbstractSet[str]) -> None:
        for uid in [uid for uid in self._seen if uid not in uids]:
            self.drop(uid)

    def end_stale_annotations(self) -> list[str]:
        """Free what pods hold by annotations alone for too long; returns their UIDs."""
        now = self._now()
        ended = []
        for uid in [uid for uid, until in self._annotated_until.items() if until <= now]:
            row = self._world.cluster.pods.get(uid)
            if row is not None and row.hold is Hold.ANNOTATED:
                self._world.cluster.forget_pod(uid)
                self._tell_room(row, None)
                ended.append(uid)
        return ended

    def _tell_room(self, before: PodInfo | None, after: PodInfo | None) -> None:
        if before is None or before == after:
            return
        same_cards = after is not None and (before.node, before.shares, before.closed) == (
            after.node,
            after.shares,
            after.closed,
        )
        if same_cards and after is not None and before.init_done == after.init_done:
            return  # a reservation became a bound pod
        self._world.room(before.node, before.namespace)


class QuotaSink:
    def __init__(self, world: World) -> None:
        self._world = world
        self._keys: dict[str, tuple[str, str]] = {}

    def put(self, quota: objects.ResourceQuota) -> None:
        self._keys[quota.uid] = (quota.namespace, quota.name)
        if self._world.cluster.observe_quota(quota) is not None:
            self._world.room("", quota.namespace)

    def drop(self, uid: str) -> None:
        namespace, name = self._keys.pop(uid, ("", ""))
        # Deleted and made again under the same name: the new one stays.
        if (namespace, name) in self._keys.values():
            return
        if self._world.cluster.forget_quota(namespace, name) is not None:
            self._world.room("", namespace)

    def retain(self, uids: AbstractSet[str]) -> None:
        for uid in [uid for uid in self._keys if uid not in uids]:
            self.drop(uid)


def version_of(metadata: objects.Metadata | None) -> int:
    """Return a resource version as a number; 0 where there is none that could be compared."""
    text = (metadata and metadata.resource_version) or ""
    return int(text) if text.isascii() and text.isdigit() else 0
