"""/preempt: a veto against evictions that would not help.

kube-scheduler evicts pods for one of higher priority where cpu, ports or the like are short. It
does not count cards, so it would also evict on nodes where the pod's cards do not fit afterwards. A
node stays a candidate if they fit once the listed victims are evicted. No victim is added, and none
is taken away: whether the rest fits is kube-scheduler's to say.
"""

from __future__ import annotations

import asyncio
import logging

from hami.cluster import state
from hami.placement.request import PodRequest
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.placer import Placer
from hami.scheduler.precedence import Precedence
from hami.scheduler.readiness import Readiness
from hami.wire import errors, extender_api
from hami.wire.extender_api import MetaVictims, PreemptionArgs

_log = logging.getLogger(__name__)


class Preemption:
    def __init__(
        self,
        watched: WatchedCluster,
        placer: Placer,
        precedence: Precedence,
        readiness: Readiness,
    ) -> None:
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
        kept = {}
        for node, victims in args.victims.items():
            if not self._readiness.ready:
                why = self._readiness.why_not()
                _log.warning("preemption refused", extra={"pod": key, "error": why})
                return extender_api.encode_preemption_result({})
            if self._fits(wanted, args.pod.priority, node, victims):
                kept[node] = victims
            await asyncio.sleep(0)  # other requests need not wait for all nodes
        extra = {"pod": key, "nodes": len(args.victims), "kept": len(kept)}
        _log.info("preemption checked", extra=extra)
        return extender_api.encode_preemption_result(kept)

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
