"""Informers of the scheduler: API objects applied to the cluster's state.

Each kind has a reader, an informer and a handler. A reader makes of an object the small struct that
is kept; the objects themselves are not. The handlers here are the first ones: all later handlers,
and every decision, see the cluster's state as new as the informer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping

import msgspec

from hami.admission import edits
from hami.admission.mig_offer import MigOffer
from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import PodInfo, Verify
from hami.cluster.quota import QuotaLimits
from hami.cluster.state import Cluster
from hami.kube import listwatch, paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.scheduler.expiring_pods import ExpiringPods
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, codec, node_marks, objects, text_values
from hami.wire import errors as wire_errors
from hami.wire.pod_marks import MARKS, PodMarks

_NOTHING: Mapping[str, int] = {}


class WatchedNode(msgspec.Struct, frozen=True):
    """The part of a Node that the scheduler keeps."""

    name: str
    uid: str
    version: int
    #: Value of HAMi's lock, or empty.
    lock: str
    #: UID of the pod that holds the lock; empty: unknown, as where HAMi's scheduler took it.
    lock_uid: str
    #: Names of the vendors whose agent on this node needs no lock.
    late: frozenset[str]
    #: The forms of grants that its agent verifies, as it is written.
    grant_forms: str
    #: (vendor name, value or None) of HAMi's handshake, where the vendor has cards.
    handshakes: tuple[tuple[str, str | None], ...]
    info: NodeInfo
    #: Resource -> number to allocate, for MIG fallback.
    offered: Mapping[str, int]
    #: Digest of its labels and taints: another one may make it eligible for other pods.
    admits: int
    #: Nodes have none.
    namespace: str = ""


class WatchedPod(msgspec.Struct, frozen=True, gc=False):
    """The part of a Pod with our resources that the scheduler keeps.

    There may be 100,000 of them, so Python's gc skips them.
    """

    uid: str
    namespace: str
    name: str
    version: int
    #: Node that it is bound to, or empty.
    node: str
    finished: bool
    deleting: bool
    #: What kube-scheduler wrote when it gave the pod up, and the node that it wants to try first;
    #: both empty for bound pods.
    not_scheduled: str
    nominated_node: str
    #: The cards that it holds by its annotations, and what of them could not be read.
    info: PodInfo | None
    problems: tuple[str, ...]
    #: When a decision was made that is only in annotations, in seconds since the epoch.
    decided_at: float | None
    #: The explanation that an unbound pod carries, as it is written.
    explanation: str
    #: (resource, schedulerName) of a pod that is bound without the cards that it asks for.
    bypassed: tuple[str, str] | None
    #: Why a bound pod that asks for cards has no valid grant; empty: it has one.
    unproven: str
    #: Resource -> number that it holds, for MIG fallback.
    held: Mapping[str, int]
    #: What its node wrote on it, for an eviction.
    marks: PodMarks | None


class WatchedQuota(msgspec.Struct, frozen=True):
    """The part of a ResourceQuota that the scheduler keeps."""

    uid: str
    version: int
    limits: QuotaLimits

    @property
    def namespace(self) -> str:
        return self.limits.namespace

    @property
    def name(self) -> str:
        return self.limits.name


class Room(msgspec.Struct, frozen=True):
    """Where a pod may fit now that did not: on a node, or (by quota) in a namespace."""

    #: Empty is any.
    node: str
    namespace: str
    #: Whether the node may be eligible now for pods that it was not offered to.
    for_all: bool = False


class WatchedCluster:
    """The informers of nodes, pods and quotas, and the cluster's state that they fill."""

    def __init__(
        self,
        client: Client,
        vendors: Iterable[Vendor],
        *,
        reservation_timeout: float,
        now: Callable[[], float],
        node_label_selector: str = "",
        resync_interval: float = 900.0,
        mig_offer: MigOffer | None = None,
        pod_marks: Iterable[str] = (),
        verify: Verify | None = None,
    ) -> None:
        """Build the informers; `pod_marks` are in the JSON of pods that count for MIG fallback.

        `verify` None: grants are taken as they are.
        """
        self.cluster = cluster = Cluster(vendors, verify=verify)
        self._expiring = ExpiringPods(cluster, reservation_timeout=reservation_timeout, now=now)
        self._room: dict[Room, None] = {}
        #: How often room was noted since start.
        self.rooms = 0
        pod_marks = tuple(pod_marks)
        self.nodes: Informer[WatchedNode] = Informer(
            client,
            paths.nodes(),
            _NodeReader(cluster, mig_offer),
            kind="nodes",
            query={"labelSelector": node_label_selector} if node_label_selector else {},
            resync_interval=resync_interval,
        )
        self.pods: Informer[WatchedPod] = Informer(
            client,
            paths.pods(),
            _PodReader(cluster, mig_offer if pod_marks else None, pod_marks),
            kind="pods",
            resync_interval=resync_interval,
        )
        self.quotas: Informer[WatchedQuota] = Informer(
            client,
            paths.quotas(),
            _QuotaReader(cluster),
            kind="quotas",
            resync_interval=resync_interval,
        )
        self.nodes.add_handler(self._on_node)
        self.pods.add_handler(self._on_pod)
        self.quotas.add_handler(self._on_quota)
        if mig_offer is not None:
            self.nodes.add_handler(mig_offer.on_node)
            self.pods.add_handler(mig_offer.on_pod)

    def has_ended(self, uid: str) -> bool:
        """Return whether a pod is known to be deleted or finished."""
        pod = self.pods.get(uid)
        return pod.finished if pod is not None else self.pods.is_deleted(uid)

    # Room for unschedulable pods.

    def room(self, node: str, namespace: str) -> None:
        """Note that there is more room on a node, or (by quota) for a namespace; "" is any."""
        self._note_room(Room(node, namespace))

    def _note_room(self, room: Room) -> None:
        self._room[room] = None
        self.rooms += 1

    def take_room(self) -> list[Room]:
        """Return where there is more room since the last call."""
        taken, self._room = list(self._room), {}
        return taken

    # What is held for a time only.

    def end_expired(self) -> list[str]:
        """Free what unbound or deleted pods hold for too long; returns UIDs of the unbound."""
        unbound, deleted = self._expiring.end()
        for info in (*unbound, *deleted):
            self._note_freed(info, None)
        return [info.uid for info in unbound]

    # Handlers.

    def _on_node(self, old: WatchedNode | None, new: WatchedNode | None) -> None:
        if new is not None:
            changed = self.cluster.set_node(new.info) is not None
            # A node without cards may have been refused, or not asked about, for that alone.
            first_cards = old is not None and not old.info.cards and bool(new.info.cards)
            if old is None or old.admits != new.admits or first_cards:
                self._note_room(Room(new.name, "", for_all=True))
            elif changed:
                self.room(new.name, "")
        elif old is not None:
            self.cluster.forget_node(old.name)

    def _on_pod(self, old: WatchedPod | None, new: WatchedPod | None) -> None:
        pod = new or old
        assert pod is not None
        before = self.cluster.pods.get(pod.uid)
        if new is None:
            node = self.nodes.by_key(pod.node) if pod.node and not pod.finished else None
            self._expiring.delete(pod.uid, node.info if node and node.grant_forms else None)
        else:
            if old is not None and old.node and not new.node:
                self.cluster.forget_pod(new.uid)  # only a restore of etcd unbinds a pod
            lapsed = self._expiring.has_lapsed(new.uid, new.decided_at)
            info = None if lapsed else new.info
            self.cluster.set_pod(new.uid, info, new.problems, finished=new.finished)
        if before is not None:
            self._note_freed(before, self.cluster.pods.get(pod.uid))

    def _on_quota(self, old: WatchedQuota | None, new: WatchedQuota | None) -> None:
        if new is not None:
            changed = self.cluster.set_quota(new.limits)
        else:
            assert old is not None
            changed = self.cluster.forget_quota(old.namespace, old.name)
        if changed is not None:
            self.room("", (new or old).namespace)  # type: ignore[union-attr]

    def _note_freed(self, before: PodInfo, after: PodInfo | None) -> None:
        if before == after:
            return
        same_cards = after is not None and (
            (before.node, before.shares, before.closed, before.unproven)
            == (after.node, after.shares, after.closed, after.unproven)
        )
        if same_cards and after is not None and before.init_done == after.init_done:
            return  # a reservation became a bound pod
        self.room(before.node, before.namespace)


class _NodeReader:
    def __init__(self, cluster: Cluster, mig_offer: MigOffer | None) -> None:
        self._cluster = cluster
        self._mig_offer = mig_offer

    def __call__(self, body: bytes) -> WatchedNode:
        node = codec.decode(body, objects.Node, what="node")
        info = self._cluster.read_node(node)
        known = self._cluster.nodes.get(info.name)
        lock = node.annotation(annotation_keys.NODE_LOCK)
        late = set()
        handshakes = []
        for vendor in self._cluster.vendors.values():
            keys = vendor.annotations
            register = node.annotation(keys.register)
            if register and node_marks.is_late(node.annotation(keys.binding), register):
                late.add(vendor.name)
            elif register and keys.handshake:
                handshakes.append((vendor.name, node.annotations.get(keys.handshake)))
        return WatchedNode(
            name=node.name,
            uid=node.uid,
            version=node.version,
            lock=lock,
            lock_uid=node_marks.owner_uid(node.annotation(annotation_keys.NODE_LOCK_OWNER), lock),
            late=frozenset(late),
            grant_forms=node.annotation(annotation_keys.NODE_GRANT_FORMS),
            handshakes=tuple(handshakes),
            # Kept once: most updates of a node change nothing of its cards.
            info=known if known is not None and known == info else info,
            offered=self._mig_offer.offered(node) if self._mig_offer is not None else _NOTHING,
            admits=hash(node.admits),
        )


class _PodReader:
    def __init__(
        self, cluster: Cluster, mig_offer: MigOffer | None, pod_marks: Iterable[str]
    ) -> None:
        self._cluster = cluster
        self._mig_offer = mig_offer
        vendors = cluster.vendors.values()
        # The annotation first: it is near the beginning of a pod's JSON, and most pods have it.
        words = [w for v in vendors for w in (v.annotations.allocated, v.resources.count) if w]
        # Pods without any resource of ours, and without a mark of their node, are not even decoded.
        self._decode = listwatch.pods_with([*(f'"{w}"' for w in (*words, *MARKS)), *pod_marks])

    def __call__(self, body: bytes) -> WatchedPod | None:
        pod = self._decode(body)
        if pod is None:
            return None
        info, problems = self._cluster.read_pod(pod)
        known = self._cluster.pods.get(pod.uid)
        if known is not None and known == info:
            info = known  # kept once: most updates of a pod change nothing of its cards
        kept = info or pod
        # Most pods ask for one vendor's cards, and have them.
        complete = not problems and info is not None and not info.unproven
        bound = bool(pod.node_name)
        finished = pod.finished
        return WatchedPod(
            uid=kept.uid,
            namespace=kept.namespace,
            name=kept.name,
            version=pod.version,
            node=info.node if bound and info is not None else pod.node_name,
            finished=finished,
            deleting=pod.deleting,
            not_scheduled="" if bound else pod.not_scheduled,
            nominated_node="" if bound else pod.nominated_node,
            info=info,
            problems=problems,
            decided_at=None if bound or finished else _decided_at(pod),
            explanation="" if bound else pod.annotation(annotation_keys.EXPLANATION),
            bypassed=self._bypassed(pod) if bound and not finished and not complete else None,
            unproven=_why_unproven(pod, info) if info is not None and info.unproven else "",
            held=self._mig_offer.held(pod) if self._mig_offer is not None else _NOTHING,
            marks=None if finished else PodMarks.of(pod),
        )

    def _bypassed(self, pod: objects.Pod) -> tuple[str, str] | None:
        for vendor in self._cluster.vendors.values():
            if pod.annotation(vendor.annotations.allocated):
                continue
            if any(edits.wants(container, vendor) for _, container in pod.containers()):
                return vendor.resources.count, (pod.spec and pod.spec.scheduler_name) or "none"
        return None


class _QuotaReader:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __call__(self, body: bytes) -> WatchedQuota:
        quota = codec.decode(body, objects.ResourceQuota, what="resource quota")
        return WatchedQuota(quota.uid, quota.version, self._cluster.read_quota(quota))


def _why_unproven(pod: objects.Pod, info: PodInfo) -> str:
    """Return why a pod's cards are not what its annotations say, for its owner."""
    (vendor, _), *_ = info.unproven
    if vendor not in dict(info.shares) and not pod.annotation(annotation_keys.GRANT_MAC):
        return f"on {info.node} without a grant of the {vendor} cards that it asks for"
    if not pod.annotation(annotation_keys.GRANT_MAC):
        return f"its grant is not signed: it has no annotation {annotation_keys.GRANT_MAC}"
    return (
        f"its {annotation_keys.SIGNED_DEVICES} is not what {annotation_keys.GRANT_MAC} was made "
        "for: one of them was removed or changed, or its key or form is not accepted here any more"
    )


def _decided_at(pod: objects.Pod) -> float | None:
    """Return when the decision of an unbound pod was made; None: there is none."""
    if not pod.annotation(annotation_keys.ASSIGNED_NODE):
        return None
    value = pod.annotation(annotation_keys.ASSIGNED_TIME)
    try:
        return float(text_values.parse_int32(value, what=annotation_keys.ASSIGNED_TIME))
    except wire_errors.WireError:
        created = (pod.metadata and pod.metadata.creation_timestamp) or ""
    try:
        return dt.datetime.fromisoformat(created).timestamp()
    except ValueError:
        return 0.0
