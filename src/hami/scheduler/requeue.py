"""Requeue pods: make kube-scheduler retry when cards become free.

kube-scheduler puts a refused pod aside until the cluster changes in a way that it watches, or for
minutes. A freed card is no such change, and when the event that freed it made kube-scheduler
retry, our own watch may have been behind. So when cards become free the unschedulable pods are
tried, and where one fits, one annotation of the node is changed: an event to kube-scheduler, which
then retries every pod. One pod that fits is enough. At most one change per node and second.

Old kube-schedulers do not watch that (`hami.scheduler.kube_scheduler`): there the pods that fit are
changed, too, and so is a pod that was not retried although its node was changed.

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
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.kube_scheduler import KubeVersion
from hami.scheduler.readiness import Readiness
from hami.scheduler.unschedulable import AGAIN_S, UnschedulablePod, UnschedulablePods
from hami.wire import annotation_keys, codec
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

ROUND_S = 0.05
PER_NODE_S = 1.0
#: Longest time in seconds until a pod is tried again; the interval doubles up to it.
AGAIN_AT_MOST_S = 300.0
_DOUBLINGS = 10
#: Seconds in which a pod is filtered again if its kube-scheduler has seen the node's change.
CONFIRM_S = 1.0
#: Distinct requests tried per round; the others follow in the next rounds.
TRIED_PER_ROUND = 32
#: Pods of one request that are changed one by one; each that is placed requeues the next.
PODS_AT_ONCE = 8

#: Where cards became free: on a node, or (by quota) in a namespace; ("", "") is anywhere.
Place = tuple[str, str]


class Requeue:
    """Find unschedulable pods that fit now, and change their nodes."""

    def __init__(
        self,
        client: Client,
        watched: WatchedCluster,
        unschedulable: UnschedulablePods,
        readiness: Readiness,
        kube_version: KubeVersion,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._watched = watched
        self._unschedulable = unschedulable
        self._readiness = readiness
        self._kube_version = kube_version
        self._clock = clock
        self._now = now
        #: Shapes that have not been tried yet, by place; the first are tried first. None: all.
        self._untried: dict[Place, dict[Hashable, None] | None] = {}
        #: Node -> when it was last changed.
        self._changed: dict[str, float] = {}
        #: Changes of nodes since start.
        self.sent = 0

    def _on_room(self, node: str, namespace: str) -> None:
        if not len(self._unschedulable):
            return
        if node:
            self._try_all((node, ""))
        if namespace:
            self._try_all(("", namespace))

    def _try_all(self, place: Place) -> None:
        if self._untried.get(place) is None:
            self._untried[place] = None
        else:
            self._try_later(place, self._unschedulable.shapes(place[1]))

    def _try_later(self, place: Place, shapes: Iterable[Hashable]) -> None:
        """Queue shapes behind those that have not been tried in that place yet."""
        untried = self._untried.setdefault(place, {})
        if untried is not None:
            untried.update(dict.fromkeys(shapes))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.run_round()

    async def run_round(self) -> None:
        """Change the nodes on which an unschedulable pod fits now."""
        for place in self._watched.take_room():
            self._on_room(*place)
        if not self._readiness.ready:
            return
        self._queue_overdue()
        for node, pod in self._find().items():
            await self._change_node(node, pod)

    def _queue_overdue(self) -> None:
        """Queue the pods for which no free card was announced for long."""
        now = self._clock()
        for pod in self._unschedulable:
            if pod.try_from <= now:
                pod.tries += 1
                wait = AGAIN_S * 2 ** min(pod.tries, _DOUBLINGS)
                pod.try_from = self._clock() + min(wait, AGAIN_AT_MOST_S)
                self._try_later(("", ""), [pod.shape])

    def _find(self) -> dict[str, UnschedulablePod]:
        """Return nodes, each with a pod that fits there; one such pod per place is enough."""
        found: dict[str, UnschedulablePod] = {}
        left = TRIED_PER_ROUND
        for place in tuple(self._untried):
            node, namespace = place
            if node and not self._may_change(node):
                continue
            shapes = self._untried.pop(place)
            if shapes is None:
                shapes = dict.fromkeys(self._unschedulable.shapes(namespace))
            while shapes and left > 0:
                shape = next(iter(shapes))
                del shapes[shape]
                pod = self._unschedulable.one_of(shape)
                if pod is None:
                    continue
                left -= 1
                names = [node] if node else None
                winner = decide.decide(self._watched.cluster, pod.wanted, names).winner
                if winner is not None:
                    found.setdefault(winner.node, pod)
                    shapes.clear()
            if shapes:
                self._untried[place] = shapes  # now the last in the queue
                break
        return found

    def _may_change(self, node: str) -> bool:
        return self._clock() - self._changed.get(node, -math.inf) >= PER_NODE_S

    async def _change_node(self, node: str, pod: UnschedulablePod) -> None:
        if not self._may_change(node):
            self._try_later((node, ""), [pod.shape])
            return
        now = self._clock()
        self._changed = {n: at for n, at in self._changed.items() if now - at < PER_NODE_S}
        self._changed[node] = now
        try:
            body = await self._client.patch(paths.nodes(node), self._patch())
            self._watched.nodes.offer(body)
        except (errors.KubeError, wire_errors.WireError) as error:
            _log.warning("cannot requeue, retrying", extra={"node": node, "error": str(error)})
            self._try_later((node, ""), [pod.shape])
            return
        self.sent += 1
        _log.info("requeued: an unschedulable pod fits", extra={"node": node, "pod": pod.key})
        if pod.tries or not self._kube_version.node_events_requeue:
            for alike in self._unschedulable.all_of(pod.shape)[:PODS_AT_ONCE]:
                await self._change_pod(alike)
        if not pod.tries:
            # A kube-scheduler that saw the node's change filters the pod at once; if it does not,
            # the pod is changed next.
            pod.tries = 1
            pod.try_from = now + CONFIRM_S

    async def _change_pod(self, pod: UnschedulablePod) -> None:
        body = self._patch(uid=pod.wanted.uid)  # another pod of this name must not be changed
        try:
            await self._client.patch(paths.pods(pod.wanted.namespace, pod.wanted.name), body)
        except errors.KubeError as error:
            _log.info("cannot requeue pod", extra={"pod": pod.key, "error": str(error)})

    def _patch(self, **metadata: str) -> bytes:
        annotations = {annotation_keys.REQUEUE: f"{self._now():.3f}"}
        return codec.encode({"metadata": {"annotations": annotations, **metadata}})
