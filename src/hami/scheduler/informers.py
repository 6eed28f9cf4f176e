"""Informers of the scheduler: API objects applied to the cluster's state.

Each kind has a reader (`hami.scheduler.watched`), an informer and a handler. The handlers here are
the first ones: all later handlers, and every decision, see the cluster's state as new as the
informer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from hami.admission.mig_offer import MigOffer
from hami.cluster.pod_info import PodInfo, Verify
from hami.cluster.state import Cluster
from hami.kube import paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.scheduler.expiring_pods import ExpiringPods
from hami.scheduler.watched import (
    NodeReader,
    PodReader,
    QuotaReader,
    WatchedNode,
    WatchedPod,
    WatchedQuota,
)
from hami.vendors.table import Vendor


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
            NodeReader(cluster, mig_offer),
            kind="nodes",
            query={"labelSelector": node_label_selector} if node_label_selector else {},
            resync_interval=resync_interval,
        )
        self.pods: Informer[WatchedPod] = Informer(
            client,
            paths.pods(),
            PodReader(cluster, mig_offer if pod_marks else None, pod_marks),
            kind="pods",
            resync_interval=resync_interval,
        )
        self.quotas: Informer[WatchedQuota] = Informer(
            client,
            paths.quotas(),
            QuotaReader(cluster),
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
