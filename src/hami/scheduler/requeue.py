"""Requeue pods: make kube-scheduler retry when cards become free.

kube-scheduler puts a refused pod aside until the cluster changes in a way that it watches, or for
minutes. A freed card is no such change, and when the event that freed it made kube-scheduler
retry, our own watch may have been behind. So when cards become free the unschedulable pods are
tried, and where one fits, one annotation of the node is changed: an event to kube-scheduler, which
then retries every pod. One pod that fits is enough. At most one change per node and second.

Room counts for the pods to which kube-scheduler offered that node. If the node's labels or taints
have changed, or it is new or has its first cards, it may be offered to others from now on, so all
pods are tried there. A node is not changed again for the same pods before one of them was
refused again or placed.

Old kube-schedulers do not watch nodes (`hami.scheduler.kube_scheduler`): there the pods that fit
are changed, too, and so is a pod that was not retried although its node was changed.

A pod that was requeued and neither filtered again nor placed is tried again, less and less often:
another resource keeps it away (its CPU, its volumes), or the event was lost. The same net catches
free cards that no event announced.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Hashable, Iterable

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.placement import decide
from hami.scheduler.informers import Room, WatchedCluster
from hami.scheduler.kube_scheduler import KubeVersion
from hami.scheduler.precedence import Precedence
from hami.scheduler.readiness import Readiness
from hami.scheduler.unschedulable import Group, UnschedulablePod, UnschedulablePods
from hami.wire import annotation_keys, codec
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

ROUND_S = 0.05
PER_NODE_S = 1.0
#: Seconds in which a pod is filtered again if its kube-scheduler has seen the node's change.
CONFIRM_S = 1.0
#: Groups tried per round; the others follow in the next rounds.
TRIED_PER_ROUND = 32
#: Pods of one group that are changed one by one; each that is placed requeues the next.
PODS_AT_ONCE = 8

_ANYWHERE = Room("", "")


class Requeue:
    """Find unschedulable pods that fit now, and change their nodes."""

    def __init__(
        self,
        client: Client,
        watched: WatchedCluster,
        unschedulable: UnschedulablePods,
        *,
        precedence: Precedence,
        readiness: Readiness,
        kube_version: KubeVersion,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._watched = watched
        self._unschedulable = unschedulable
        self._precedence = precedence
        self._readiness = readiness
        self._kube_version = kube_version
        self._clock = clock
        self._now = now
        #: Keys of groups that have not been tried yet, by room; the first are tried first. None:
        #: all groups.
        self._untried: dict[Room, dict[Hashable, None] | None] = {}
        #: Node -> when it was last changed.
        self._changed: dict[str, float] = {}
        #: Changes of nodes since start.
        self.sent = 0

    def _on_room(self, room: Room) -> None:
        """Queue what there is room for; a pod that ends makes room on its node and in its quota."""
        if not len(self._unschedulable):
            return
        if room.node:
            self._try_all(Room(room.node, "", for_all=room.for_all))
        if room.namespace:
            self._try_all(Room("", room.namespace))

    def _try_all(self, room: Room) -> None:
        if self._untried.get(room) is None:
            self._untried[room] = None
        else:
            self._try_later(room, (group.key for group in self._unschedulable.groups()))

    def _try_later(self, room: Room, keys: Iterable[Hashable]) -> None:
        """Queue groups behind those that have not been tried there yet."""
        untried = self._untried.setdefault(room, {})
        if untried is not None:
            untried.update(dict.fromkeys(keys))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.run_round()

    async def run_round(self) -> None:
        """Change the nodes on which an unschedulable pod fits now."""
        self._precedence.expire()
        for room in self._watched.take_room():
            self._on_room(room)
        if not self._readiness.ready:
            return
        self._queue_overdue()
        for node, (group, room) in (await self._find()).items():
            await self._change_node(node, group, room)

    def _queue_overdue(self) -> None:
        """Queue the groups for which no free card was announced for long."""
        now = self._clock()
        for group in self._unschedulable.groups():
            if group.try_from <= now:
                group.back_off(now)
                self._try_later(_ANYWHERE, [group.key])

    async def _find(self) -> dict[str, tuple[Group, Room]]:
        """Return nodes, each with a group that fits there; one such group per room is enough."""
        found: dict[str, tuple[Group, Room]] = {}
        left = TRIED_PER_ROUND
        for room in tuple(self._untried):
            if room.node and not self._may_change(room.node):
                continue
            keys = self._untried.pop(room)
            if keys is None:
                keys = {group.key: None for group in self._unschedulable.groups()}
            left, node, group = await self._first_fit(room, keys, left)
            if group is not None:
                found.setdefault(node, (group, room))
            elif keys:
                self._untried[room] = keys  # now the last in the queue
                break
        return found

    async def _first_fit(
        self, room: Room, keys: dict[Hashable, None], left: int
    ) -> tuple[int, str, Group | None]:
        """Take groups off `keys` until one fits; returns how many tries are left, and that one."""
        unfit: set[Hashable] = set()
        while keys and left > 0:
            key = next(iter(keys))
            del keys[key]
            if self._look_up(key):
                left -= 1
                await asyncio.sleep(0)  # it cost as much as a try
            group = self._unschedulable.group(key)
            if group is None or not self._concerns(room, group):
                continue
            if room.node and group.alike in unfit:
                continue
            left -= 1
            node = self._fits(group, room)
            if node is None:
                unfit.add(group.alike)
            elif room == _ANYWHERE or node not in group.changed_nodes:
                return left, node, group
            await asyncio.sleep(0)  # a request need not wait for all tries
        return left, "", None

    def _look_up(self, key: Hashable) -> bool:
        """Find the offered nodes of a group again if nodes came or went; returns whether so."""
        group, cluster = self._unschedulable.group(key), self._watched.cluster
        if group is None:
            return False
        asked = cluster.ask(group.offered)
        if asked is group.offered:
            return False
        group.offer.asked = cluster.compact(asked)
        return True

    def _concerns(self, room: Room, group: Group) -> bool:
        """Return whether room may help a group that has not been requeued for it yet."""
        if room.namespace:
            return self._unschedulable.first(group).wanted.namespace == room.namespace
        if not room.node:
            return True
        return room.for_all or self._watched.cluster.asks_about(group.offered, room.node)

    def _fits(self, group: Group, room: Room) -> str | None:
        """Return the node on which a pod of the group fits; None: none."""
        wanted = self._unschedulable.first(group).wanted
        names = [room.node] if room.node else group.offered
        with self._precedence.lifted(group.priority):
            winner = decide.decide(self._watched.cluster, wanted, names).winner
        return winner.node if winner is not None else None

    def _may_change(self, node: str) -> bool:
        return self._clock() - self._changed.get(node, -math.inf) >= PER_NODE_S

    async def _change_node(self, node: str, group: Group, room: Room) -> None:
        if not self._may_change(node):
            self._try_later(Room(node, "", for_all=room.for_all), [group.key])
            return
        now = self._clock()
        self._changed = {n: at for n, at in self._changed.items() if now - at < PER_NODE_S}
        self._changed[node] = now
        announced = room != _ANYWHERE
        # Before the write: its pods may be filtered again while it is on its way.
        group.changed_nodes.add(node)
        if announced:
            # A kube-scheduler that saw the node's change filters the pod at once; if it does not,
            # the pod is changed next.
            group.had_room = True
            group.tries, group.try_from = 1, now + CONFIRM_S
        try:
            body = await self._client.patch(paths.nodes(node), self._patch())
            self._watched.nodes.offer(body)
        except (errors.KubeError, wire_errors.WireError) as error:
            _log.warning("cannot requeue, retrying", extra={"node": node, "error": str(error)})
            group.changed_nodes.discard(node)
            self._try_later(Room(node, "", for_all=room.for_all), [group.key])
            return
        self.sent += 1
        members = self._unschedulable.members(group)[:PODS_AT_ONCE]
        extra = {"node": node, "pods": [pod.key for pod in members]}
        _log.info("requeued: an unschedulable pod fits", extra=extra)
        if not announced or not self._kube_version.node_events_requeue:
            for pod in members:
                await self._change_pod(pod)

    async def _change_pod(self, pod: UnschedulablePod) -> None:
        body = self._patch(uid=pod.wanted.uid)  # another pod of this name must not be changed
        try:
            await self._client.patch(paths.pods(pod.wanted.namespace, pod.wanted.name), body)
        except errors.KubeError as error:
            _log.info("cannot requeue pod", extra={"pod": pod.key, "error": str(error)})

    def _patch(self, **metadata: str) -> bytes:
        annotations = {annotation_keys.REQUEUE: f"{self._now():.3f}"}
        return codec.encode({"metadata": {"annotations": annotations, **metadata}})
