"""Room has appeared for a waiting pod: make kube-scheduler try again.

kube-scheduler puts a refused pod aside until something in the cluster changes, or for minutes. A
freed card changes nothing that it looks at, and when the event that freed the card made it try,
our own watch may have been behind. So when cells become free we ask ourselves who of the waiting
would fit, and change one annotation on the node, which is an event to kube-scheduler. One change
wakes every pod, so one pod that fits is enough. At most one change per node and second.

Old kube-schedulers do not hear that (`hami.scheduler.kube_scheduler`): there the pods that fit are
changed, too, and so is a pod that did not come back although its node was touched.

A pod that was woken and neither came back nor was placed is looked at again, less and less often:
what keeps it away is not ours (its cpu, its volumes), or the event was lost. The same net catches
room that nobody told of.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Hashable, Iterable

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.placement import decide
from hami.scheduler.informers import World
from hami.scheduler.readiness import Readiness
from hami.scheduler.unschedulable import AGAIN_S, UnschedulablePod, UnschedulablePods
from hami.wire import annotation_keys, codec
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

ROUND_S = 0.05
PER_NODE_S = 1.0
#: Seconds until a pod is looked at again at the latest; the distance doubles up to it.
AGAIN_AT_MOST_S = 300.0
_DOUBLINGS = 10
#: Seconds in which a pod comes back whose kube-scheduler has heard of its node.
CONFIRM_S = 1.0
#: Distinct requests tried per round; the rest has its turn in the next ones.
TRIED_PER_ROUND = 32
#: Pods of one request that are woken one by one; each that is placed wakes the next.
PODS_AT_ONCE = 8

#: Where there is more room: on a node, or for a namespace; ("", "") is for anybody, anywhere.
Place = tuple[str, str]


class Requeue:
    def __init__(
        self,
        client: Client,
        world: World,
        waiting: UnschedulablePods,
        readiness: Readiness,
        *,
        node_events_wake: Callable[[], bool],
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._world = world
        self._waiting = waiting
        self._readiness = readiness
        self._node_events_wake = node_events_wake
        self._clock = clock
        self._now = now
        #: Shapes that have not been tried yet, by place; the first are tried first. None: all.
        self._untried: dict[Place, dict[Hashable, None] | None] = {}
        #: Node -> when it was last touched.
        self._touched: dict[str, float] = {}
        self.sent = 0

    def _on_room(self, node: str, namespace: str) -> None:
        if not len(self._waiting):
            return
        if node:
            self._try_all((node, ""))
        if namespace:
            self._try_all(("", namespace))

    def _try_all(self, place: Place) -> None:
        if self._untried.get(place) is None:
            self._untried[place] = None
        else:
            self._try_later(place, self._waiting.shapes(place[1]))

    def _try_later(self, place: Place, shapes: Iterable[Hashable]) -> None:
        """Have shapes tried, after those that have not had their turn in that place yet."""
        untried = self._untried.setdefault(place, {})
        if untried is not None:
            untried.update(dict.fromkeys(shapes))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.look()

    async def look(self) -> None:
        """Touch the nodes on which somebody who waits fits now."""
        for place in self._world.take_room():
            self._on_room(*place)
        if not self._readiness.ready:
            return
        self._look_again()
        for node, pod in self._find().items():
            await self._touch(node, pod)

    def _look_again(self) -> None:
        """Have those tried whom nobody has told of room for long."""
        now = self._clock()
        for pod in self._waiting:
            if pod.look_from <= now:
                self._looked_at(pod)
                self._try_later(("", ""), [pod.shape])

    def _looked_at(self, pod: UnschedulablePod) -> None:
        pod.looks += 1
        wait = AGAIN_S * 2 ** min(pod.looks, _DOUBLINGS)
        pod.look_from = self._clock() + min(wait, AGAIN_AT_MOST_S)

    def _find(self) -> dict[str, UnschedulablePod]:
        """Return nodes with somebody who fits there; in each place, one who fits is enough."""
        found: dict[str, UnschedulablePod] = {}
        left = TRIED_PER_ROUND
        for place in tuple(self._untried):
            node, namespace = place
            if node and not self._may_touch(node):
                continue
            shapes = self._untried.pop(place)
            if shapes is None:
                shapes = dict.fromkeys(self._waiting.shapes(namespace))
            while shapes and left > 0:
                shape = next(iter(shapes))
                del shapes[shape]
                pod = self._waiting.one_of(shape)
                if pod is None:
                    continue
                left -= 1
                names = [node] if node else None
                winner = decide.decide(self._world.cluster, pod.wanted, names).winner
                if winner is not None:
                    found.setdefault(winner.node, pod)
                    shapes.clear()
            if shapes:
                self._untried[place] = shapes  # now the last in line
                break
        return found

    def _may_touch(self, node: str) -> bool:
        return self._clock() - self._touched.get(node, -math.inf) >= PER_NODE_S

    async def _touch(self, node: str, pod: UnschedulablePod) -> None:
        if not self._may_touch(node):
            self._try_later((node, ""), [pod.shape])
            return
        now = self._clock()
        self._touched = {n: at for n, at in self._touched.items() if now - at < PER_NODE_S}
        self._touched[node] = now
        try:
            body = await self._client.patch(paths.nodes(node), self._change())
            self._world.nodes.offer(body)
        except (errors.KubeError, wire_errors.WireError) as error:
            _log.warning("wake-up not written", extra={"node": node, "error": str(error)})
            self._try_later((node, ""), [pod.shape])
            return
        self.sent += 1
        _log.info("room for a waiting pod", extra={"node": node, "pod": pod.key})
        if pod.looks or not self._node_events_wake():
            for alike in self._waiting.all_of(pod.shape)[:PODS_AT_ONCE]:
                await self._touch_pod(alike)
        if not pod.looks:
            # Whoever heard comes back at once; who does not is woken in the other way.
            pod.looks = 1
            pod.look_from = now + CONFIRM_S

    async def _touch_pod(self, pod: UnschedulablePod) -> None:
        body = self._change(uid=pod.wanted.uid)  # a namesake is another pod
        try:
            await self._client.patch(paths.pods(pod.wanted.namespace, pod.wanted.name), body)
        except errors.KubeError as error:
            _log.info("pod not woken", extra={"pod": pod.key, "error": str(error)})

    def _change(self, **metadata: str) -> bytes:
        annotations = {annotation_keys.WAKE_UP: f"{self._now():.3f}"}
        return codec.encode({"metadata": {"annotations": annotations, **metadata}})
