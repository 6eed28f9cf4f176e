"""Cards that pods hold for a time only: unbound decisions, deletions by force.

HAMi writes its decision into the pod first and binds later. If that bind never comes, the cards
would stay taken for ever. Here such a decision lasts as long as our own reservations
(`--reservation-timeout`), from the time it was made (`hami.io/vgpu-time`). A decision without a
readable time is as old as its pod.

A pod that is deleted by force may still have processes on its cards. With whole cards it has no
limiter, so they are kept for some seconds: in these its agent closes them
(`hami.io/node-nvidia-closed`) if there are such processes. kubelet removes other pods only after
their processes have ended, which their phase shows.
"""

from __future__ import annotations

from collections.abc import Callable

from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import Hold, PodInfo
from hami.cluster.state import Cluster

#: Seconds that an agent has to close the cards of a pod that was deleted by force.
CLOSED_WITHIN = 3.0


class ExpiringPods:
    """When pods that are not bound, or deleted, stop to hold cards."""

    def __init__(
        self, cluster: Cluster, *, reservation_timeout: float, now: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._reservation_timeout = reservation_timeout
        self._now = now
        #: UID -> when a decision that is only in annotations ends, in seconds since the epoch.
        self._annotated_until: dict[str, float] = {}
        #: UID -> when the cards of a deleted pod are free.
        self._deleted_until: dict[str, float] = {}

    def has_lapsed(self, uid: str, decided_at: float | None) -> bool:
        """Return whether the decision in a pod's annotations is too old to count."""
        self._deleted_until.pop(uid, None)
        if decided_at is None:
            self._annotated_until.pop(uid, None)
            return False
        now = self._now()
        # A time in the future gives no more than one that is now.
        known = self._annotated_until.get(uid, now + self._reservation_timeout)
        until = min(decided_at + self._reservation_timeout, known)
        self._annotated_until[uid] = until
        return until <= now

    def delete(self, uid: str, agents_node: NodeInfo | None) -> None:
        """Take a pod out that was deleted; whole cards on an agent's node are kept for a while.

        `agents_node`: where its agent closes such cards, and the pod had not ended; else None.
        """
        self._annotated_until.pop(uid, None)
        info = self._cluster.pods.get(uid)
        if info is not None and agents_node is not None and _has_whole_card(info, agents_node):
            self._deleted_until[uid] = self._now() + CLOSED_WITHIN
        else:
            self._cluster.forget_pod(uid)

    def end(self) -> tuple[list[PodInfo], list[PodInfo]]:
        """Free what is held for too long; returns unbound pods and deleted ones."""
        now = self._now()
        unbound = []
        for uid in [uid for uid, until in self._annotated_until.items() if until <= now]:
            info = self._cluster.pods.get(uid)
            if info is not None and info.hold is Hold.ANNOTATED:
                self._cluster.forget_pod(uid)
                unbound.append(info)
        deleted = []
        # A clock that was set back keeps nothing for longer.
        late = now + CLOSED_WITHIN
        for uid in [u for u, until in self._deleted_until.items() if not now < until <= late]:
            del self._deleted_until[uid]
            if (info := self._cluster.pods.get(uid)) is not None:
                self._cluster.forget_pod(uid)
                deleted.append(info)
        return unbound, deleted


def _has_whole_card(pod: PodInfo, node: NodeInfo) -> bool:
    """Return whether a bound pod has all memory of a card."""
    if pod.hold is not Hold.BOUND:
        return False
    sizes = {
        (vendor, card.id): card.devmem for vendor, cards in node.cards.items() for card in cards
    }
    return any(
        each.memory >= sizes.get((each.vendor, each.card), each.memory + 1)
        for each in pod.allocations()
    )
