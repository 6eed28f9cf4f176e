"""API objects as the scheduler keeps them, and the readers that make them.

A reader makes of an object the small struct that is kept; the objects themselves are not.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping

import msgspec

from hami.admission.mig_offer import MigOffer
from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import PodInfo
from hami.cluster.quota import QuotaLimits
from hami.cluster.state import Cluster
from hami.kube import listwatch
from hami.vendors.family import Family
from hami.wire import annotation_keys, codec, node_marks, objects, text_values
from hami.wire import errors as wire_errors
from hami.wire.pod_marks import MARKS, PodMarks

_NOTHING: Mapping[str, int] = {}
_NO_LOCK = ("", "")
_FAILED = "failed"


class WatchedNode(msgspec.Struct, frozen=True):
    """The part of a Node that the scheduler keeps."""

    name: str
    uid: str
    version: int
    #: Annotation key of a lock -> its value, and the UID of the pod that holds it; the UID is empty
    #: where it is unknown, as where HAMi's scheduler took the lock.
    locks: Mapping[str, tuple[str, str]]
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

    def lock(self, key: str = annotation_keys.NODE_LOCK) -> str:
        """Return the value of a lock; empty: it is free."""
        return self.locks.get(key, _NO_LOCK)[0]

    def lock_uid(self, key: str = annotation_keys.NODE_LOCK) -> str:
        """Return the UID of the pod that holds a lock; empty: it is unknown, or free."""
        return self.locks.get(key, _NO_LOCK)[1]


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
    #: Names of the vendors whose plugins have yet to serve a pod with cards of several.
    unserved: frozenset[str] = frozenset()


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


class NodeReader:
    def __init__(self, cluster: Cluster, mig_offer: MigOffer | None) -> None:
        self._cluster = cluster
        self._mig_offer = mig_offer

    def __call__(self, body: bytes) -> WatchedNode:
        node = codec.decode(body, objects.Node, what="node")
        info = self._cluster.read_node(node)
        known = self._cluster.nodes.get(info.name)
        late = set()
        handshakes = []
        locks: dict[str, tuple[str, str]] = {}
        for vendor in self._cluster.vendors.values():
            keys = vendor.annotations
            register = node.annotation(keys.register)
            if keys.lock not in locks and (lock := node.annotation(keys.lock)):
                uid = node_marks.owner_uid(node.annotation(keys.lock_owner), lock)
                locks[keys.lock] = (lock, uid)
            if register and node_marks.is_late(node.annotation(keys.binding), register):
                late.add(vendor.name)
            elif register and keys.handshake:
                handshakes.append((vendor.name, node.annotations.get(keys.handshake)))
        return WatchedNode(
            name=node.name,
            uid=node.uid,
            version=node.version,
            locks=locks,
            late=frozenset(late),
            grant_forms=node.annotation(annotation_keys.NODE_GRANT_FORMS),
            handshakes=tuple(handshakes),
            # Kept once: most updates of a node change nothing of its cards.
            info=known if known is not None and known == info else info,
            offered=self._mig_offer.offered(node) if self._mig_offer is not None else _NOTHING,
            admits=hash(node.admits),
        )


class PodReader:
    def __init__(
        self, cluster: Cluster, mig_offer: MigOffer | None, pod_marks: Iterable[str]
    ) -> None:
        self._cluster = cluster
        self._mig_offer = mig_offer
        # The annotations first: they are near the beginning of a pod's JSON, most pods have them.
        words = cluster.families.words()
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
            unserved=self._unserved(pod, info)
            if info is not None and len(info.shares) > 1 and bound and not finished
            else frozenset(),
        )

    def _unserved(self, pod: objects.Pod, info: PodInfo) -> frozenset[str]:
        """Return the vendors whose device lists the node has yet to hand out."""
        if pod.phase != "Pending" or pod.annotation(annotation_keys.BIND_PHASE) == _FAILED:
            return frozenset()
        keys = {name: self._cluster.vendors[name].annotations for name, _ in info.shares}
        return frozenset(
            name for name, each in keys.items() if "," in pod.annotation(each.to_allocate)
        )

    def _bypassed(self, pod: objects.Pod) -> tuple[str, str] | None:
        containers = [container for _, container in pod.containers()]
        for family in self._cluster.families.of_pod(pod, containers):
            vendor = family.vendor
            if pod.annotation(vendor.annotations.allocated):
                continue
            if any(_asks(family, container) for container in containers):
                return vendor.resources.count, (pod.spec and pod.spec.scheduler_name) or "none"
        return None


class QuotaReader:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __call__(self, body: bytes) -> WatchedQuota:
        quota = codec.decode(body, objects.ResourceQuota, what="resource quota")
        return WatchedQuota(quota.uid, quota.version, self._cluster.read_quota(quota))


def _asks(family: Family, container: objects.Container) -> bool:
    """Return whether a container asks for cards; a request that cannot be read does."""
    try:
        return family.count(container) > 0
    except wire_errors.WireError:
        return True


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
