"""/preempt: a veto against evictions that would not help.

kube-scheduler evicts pods for one of higher priority where cpu, ports or the like are short. It
does not count cards, so it would also evict on nodes where the pod's cards do not fit afterwards. A
node stays a candidate if they fit once the listed victims are evicted. No victim is added, and none
is taken away: whether the rest fits is kube-scheduler's to say.

A pod that ends makes kube-scheduler ask again at once, perhaps before our watch shows the end.
After a veto no event brings the pod back for minutes: it was short of cpu, so kube-scheduler waits
for changes of cpu. So before the last candidate is refused, the asking pod is changed, and the
check is repeated when our watch shows that change: it comes after all that kube-scheduler has seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hami.cluster import state
from hami.kube import errors as kube_errors
from hami.kube import listwatch, paths
from hami.kube.client import Client
from hami.placement.request import PodRequest
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.placer import Placer
from hami.scheduler.precedence import Precedence
from hami.scheduler.readiness import Readiness
from hami.wire import annotation_keys, codec, errors, extender_api, objects
from hami.wire.extender_api import MetaVictims, PreemptionArgs

_log = logging.getLogger(__name__)

#: Seconds that our watch gets to show what kube-scheduler has seen.
CATCH_UP_S = 1.0


class Preemption:
    def __init__(
        self,
        client: Client,
        watched: WatchedCluster,
        placer: Placer,
        precedence: Precedence,
        readiness: Readiness,
        *,
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._now = now
        self._watched = watched
        self._placer = placer
        self._precedence = precedence
        self._readiness = readiness

    async def answer(self, args: PreemptionArgs) -> bytes:
        """Answer with the nodes on which evictions help; none if that is not known now.

        Without a candidate kube-scheduler evicts no pod, and tries the pod again later.
        """
        if args.pod is None:
            return extender_api.encode_preemption_result({})
        key = f"{args.pod.namespace}/{args.pod.name}"
        try:
            wanted = self._placer.parse(args.pod)
        except errors.WireError as error:
            _log.warning("preemption refused", extra={"pod": key, "error": str(error)})
            return extender_api.encode_preemption_result({})
        if wanted is None:
            return extender_api.encode_preemption_result(args.victims)
        kept = await self._useful(args, wanted)
        refused = args.victims and not kept and self._readiness.ready
        if refused and await self._catch_up(args.pod):
            kept = await self._useful(args, wanted)
        extra = {"pod": key, "nodes": len(args.victims), "kept": len(kept)}
        _log.info("preemption checked", extra=extra)
        return extender_api.encode_preemption_result(kept)

    async def _useful(self, args: PreemptionArgs, wanted: PodRequest) -> dict[str, MetaVictims]:
        """Return the candidates on which evictions help; none if this replica may not say so."""
        assert args.pod is not None
        kept = {}
        for node, victims in args.victims.items():
            if not self._readiness.ready:
                extra = {"pod": f"{wanted.namespace}/{wanted.name}"}
                extra["error"] = self._readiness.why_not()
                _log.warning("preemption refused", extra=extra)
                return {}
            if self._fits(wanted, args.pod.priority, node, victims):
                kept[node] = victims
            await asyncio.sleep(0)  # other requests need not wait for all nodes
        return kept

    async def _catch_up(self, pod: objects.Pod) -> bool:
        """Wait until our pods are as new as this moment; returns whether they are."""
        annotations = {annotation_keys.REQUEUE: f"{self._now():.3f}"}
        body = codec.encode({"metadata": {"annotations": annotations, "uid": pod.uid}})
        try:
            async with asyncio.timeout(CATCH_UP_S):
                answer = await self._client.patch(paths.pods(pod.namespace, pod.name), body)
                await self._watched.pods.wait_version(listwatch.identity(answer)[1])
        except (TimeoutError, kube_errors.KubeError, errors.WireError) as error:
            extra = {"pod": f"{pod.namespace}/{pod.name}", "error": str(error) or "timed out"}
            _log.warning("cannot check a preemption again", extra=extra)
            return False
        return True

    def _fits(self, wanted: PodRequest, priority: int, node: str, victims: MetaVictims) -> bool:
        """Return whether a pod fits on a node once the victims there are evicted."""
        cluster = self._watched.cluster
        listed = {victim.uid for victim in victims.pods or () if victim is not None}
        with self._precedence.before(priority):
            on_node = {info.uid for info in cluster.pods_on(node)}
            evicted = [cluster.apply(state.DropPod(uid)) for uid in on_node & listed]
            try:
                return self._placer.decide(wanted, [node]).winner is not None
            finally:
                for operation in reversed(evicted):
                    cluster.apply(operation)
