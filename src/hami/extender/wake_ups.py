"""Room has appeared for a waiting pod: make kube-scheduler try again.

kube-scheduler puts a refused pod aside until something in the cluster changes, or for minutes. A
freed card changes nothing that it looks at, and when the event that freed the card made it try,
our own watch may have been behind. So when cells become free we ask ourselves who of the waiting
would fit, and change one annotation on the node, which is an event to kube-scheduler. One change
wakes every pod, so one pod that fits is enough. At most one change per node and second.

A pod that was woken and neither came back nor was placed is looked at again, less and less often:
what keeps it away is not ours (its cpu, its volumes), or the event was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from hami.extender.readiness import Readiness
from hami.extender.waiting import Waiting, WaitingPod
from hami.extender.world import World
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.placement import decide
from hami.wire import annotation_keys, codec, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

ROUND_S = 0.05
PER_NODE_S = 1.0
#: Seconds until a woken pod is looked at again; doubled each time.
AGAIN_S, AGAIN_AT_MOST_S = 5.0, 300.0
#: Distinct requests tried per round; the rest has its turn in the next ones.
TRIED_PER_ROUND = 32


class WakeUps:
    def __init__(
        self,
        client: Client,
        world: World,
        waiting: Waiting,
        readiness: Readiness,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._world = world
        self._waiting = waiting
        self._readiness = readiness
        self._clock = clock
        self._now = now
        #: Nodes with more room, and namespaces with more quota, not looked at yet.
        self._nodes: dict[str, None] = {}
        self._namespaces: dict[str, None] = {}
        #: Node -> when it was last touched.
        self._touched: dict[str, float] = {}
        self.sent = 0
        world.room.listen(self._on_room)

    def _on_room(self, node: str, namespace: str) -> None:
        if not len(self._waiting):
            return
        if node:
            self._nodes[node] = None
        if namespace:
            self._namespaces[namespace] = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.look()

    async def look(self) -> None:
        """Touch the nodes on which somebody who waits fits now."""
        if not self._readiness.ready:
            return
        if not len(self._waiting):
            self._nodes.clear()
            self._namespaces.clear()
            return
        now = self._clock()
        found: dict[str, WaitingPod] = {}
        for node in [n for n in self._nodes if now - self._touched.get(n, -1e9) >= PER_NODE_S]:
            del self._nodes[node]
            self._find(found, self._waiting, [node])
        for namespace in tuple(self._namespaces):
            del self._namespaces[namespace]
            self._find(found, (p for p in self._waiting if p.wanted.namespace == namespace), None)
        self._find(found, (p for p in self._waiting if self._is_due(p, now)), None)
        for node, pod in found.items():
            await self._touch(node, pod)

    def _find(
        self, found: dict[str, WaitingPod], pods: Iterable[WaitingPod], names: list[str] | None
    ) -> None:
        """Find a node for a pod; with one name, one pod that fits there is enough."""
        tried: dict[object, None] = {}
        for pod in pods:
            shape = pod.shape
            if shape in tried:
                continue
            if len(tried) == TRIED_PER_ROUND:
                self._later(names)
                return
            tried[shape] = None
            winner = decide.decide(self._world.cluster, pod.wanted, names).winner
            if winner is not None:
                found.setdefault(winner.node, pod)
                if names is not None:
                    return

    def _later(self, names: list[str] | None) -> None:
        if names is not None:
            self._nodes.update(dict.fromkeys(names))

    def _is_due(self, pod: WaitingPod, now: float) -> bool:
        wait = min(AGAIN_S * 2.0**pod.wake_ups, AGAIN_AT_MOST_S)
        return bool(now - max(pod.woken_at, pod.refused_at) >= wait)

    async def _touch(self, node: str, pod: WaitingPod) -> None:
        now = self._clock()
        pod.wake_ups += 1
        pod.woken_at = now
        if now - self._touched.get(node, -1e9) < PER_NODE_S:
            self._nodes[node] = None
            return
        self._touched = {n: at for n, at in self._touched.items() if now - at < PER_NODE_S}
        self._touched[node] = now
        patch = {"metadata": {"annotations": {annotation_keys.WAKE_UP: f"{self._now():.3f}"}}}
        try:
            body = await self._client.patch(paths.nodes(node), codec.encode(patch))
            self._world.nodes.put(codec.decode(body, objects.Node, what=f"node {node}"))
        except (errors.KubeError, wire_errors.WireError) as error:
            _log.warning("wake-up not written", extra={"node": node, "error": str(error)})
            return
        self.sent += 1
        _log.info("room for a waiting pod", extra={"node": node, "pod": pod.key})
