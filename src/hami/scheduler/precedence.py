"""Urgent before patient: cards kept for more important pods just refused.

When a pod ends, kube-scheduler often knows it before our watch does. The most important of its pods
is refused then, although there is room; a moment later the room is seen here, and the next pod in
kube-scheduler's queue, a less important one, would get it. So for a moment after its refusal the
cards that now fit the more important pod are kept for it: they are held in the cluster's state like
a reservation, and pods of the same or a higher priority take them all the same. The search is made
when a less important pod asks, not before: without one there is nothing to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hami.cluster import state
from hami.cluster.pod_info import PodInfo
from hami.placement import decide
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.unschedulable import UnschedulablePod, UnschedulablePods

#: Seconds that cards are kept after a refusal: kube-scheduler retries a pod after at most 2 s
#: (podMaxBackoffSeconds), and looks once a second for pods to retry.
KEPT_S = 3.0
#: Placements that are searched at one request; more urgent pods at once wait for the next request.
SEARCHES = 16


class Precedence:
    """The cards that are kept, by the UID of their pod."""

    def __init__(
        self,
        watched: WatchedCluster,
        unschedulable: UnschedulablePods,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._watched = watched
        self._unschedulable = unschedulable
        self._clock = clock
        #: Refused within the last seconds, the longest ago first.
        self._recent: dict[str, UnschedulablePod] = {}
        #: UID -> priority of the pod, and what is kept for it.
        self._kept: dict[str, tuple[int, PodInfo]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def refused(self, pod: UnschedulablePod) -> None:
        """Keep cards for a pod that was refused just now, as soon as there are any."""
        uid = pod.wanted.uid
        self._recent.pop(uid, None)
        self._kept.pop(uid, None)
        self._recent[uid] = pod
        # It was refused on the cluster as it is.
        pod.group.searched_at = self._watched.rooms

    def placed(self, uid: str, priority: int, node: str) -> None:
        """Give up what was kept for a pod that is placed now, and what it may have taken."""
        self._recent.pop(uid, None)
        self._kept.pop(uid, None)
        for other, (kept, info) in tuple(self._kept.items()):
            if kept <= priority and info.node == node:
                self._release(other)

    @contextmanager
    def before(self, priority: int) -> Iterator[int]:
        """Keep cards for more important pods, and lift what is kept for others, for one decision.

        Yields for how many pods cards are kept.
        """
        self.expire()
        if self._recent:
            self._keep(priority)
        with self.lifted(priority) as kept:
            yield kept

    @contextmanager
    def lifted(self, priority: int) -> Iterator[int]:
        """Lift what is kept for pods that are not more important; yields what stays kept."""
        cluster = self._watched.cluster
        lifted = [
            cluster.apply(state.DropPod(uid))
            for uid, (kept, info) in self._kept.items()
            if kept <= priority and cluster.pods.get(uid) is info
        ]
        try:
            yield len(self._kept) - len(lifted)
        finally:
            for operation in reversed(lifted):
                cluster.apply(operation)

    def expire(self) -> None:
        """Give up what was kept for long enough, or for a pod that is unschedulable no more."""
        now = self._clock()
        for uid, pod in tuple(self._recent.items()):
            if self._unschedulable.get(uid) is not pod or pod.refused_at + KEPT_S <= now:
                del self._recent[uid]
            else:
                break  # the others were refused later
        for uid in [uid for uid in self._kept if uid not in self._recent]:
            self._release(uid)

    def leadership_changed(self, leading: bool) -> None:  # noqa: FBT001  a handler's only value
        """Give up everything when the lease is lost: the new leader decides."""
        if not leading:
            self._recent.clear()
            self.expire()

    def _keep(self, priority: int) -> None:
        """Search cards for the pods above this priority, the most important first."""
        waiting = [
            pod
            for uid, pod in self._recent.items()
            if pod.priority > priority and uid not in self._kept and self._holds_nothing(uid, pod)
        ]
        searches = 0
        for pod in sorted(waiting, key=lambda pod: -pod.priority):
            if searches == SEARCHES:
                return
            if pod.group.searched_at == self._watched.rooms:
                continue
            searches += 1
            wanted = pod.wanted
            winner = decide.decide(self._watched.cluster, wanted, pod.group.offered).winner
            if winner is None:
                pod.group.searched_at = self._watched.rooms
                continue
            info = decide.reservation(wanted, winner)
            self._watched.cluster.apply(state.PutPod(info))
            self._kept[wanted.uid] = (pod.priority, info)

    def _holds_nothing(self, uid: str, pod: UnschedulablePod) -> bool:
        """Return whether a pod still waits: kept cards would replace what /bind gave it."""
        return self._unschedulable.get(uid) is pod and uid not in self._watched.cluster.pods

    def _release(self, uid: str) -> None:
        _, info = self._kept.pop(uid)
        if self._watched.cluster.pods.get(uid) is info:  # and not what was reserved for it since
            self._watched.cluster.lapse(uid)
            self._watched.room(info.node, info.namespace)
