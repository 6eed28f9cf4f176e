"""Periodic maintenance: expiry, self-check.

Once a second reservations that were never bound expire, and the pods of Bindings that no watch has
shown are read. The self-check compares the card tables with the sums of their pods, a few nodes a
second: the whole fleet once per resync interval, at a cost that does not delay requests.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import math

from hami.cluster import self_check, state
from hami.scheduler.assumed_pods import AssumedPods, LostAnswers
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.leadership import Leadership

_log = logging.getLogger(__name__)

ROUND_S = 1.0


class Maintenance:
    def __init__(
        self,
        *,
        watched: WatchedCluster,
        assumed_pods: AssumedPods,
        lost_answers: LostAnswers,
        leadership: Leadership,
        interval: float,
    ) -> None:
        self._watched = watched
        self._assumed_pods = assumed_pods
        self._lost_answers = lost_answers
        self._leadership = leadership
        #: Seconds in which every node is checked once.
        self._interval = interval
        self._unchecked: collections.deque[str] = collections.deque()
        #: Differences that the self-check has found and repaired since start.
        self.table_drift = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            self.run_round()
            await self.check_tables()

    def run_round(self) -> None:
        self._leadership.tick()
        for assumed in self._assumed_pods.expire():
            _log.info(
                "reservation expired: kube-scheduler did not bind the pod",
                extra={"pod": assumed.key, "node": assumed.node},
            )
        for uid in self._watched.end_expired():
            _log.info("decision of an unbound pod expired", extra={"uid": uid})
        self._lost_answers.resolve_overdue()

    async def check_tables(self) -> None:
        """Check the nodes whose turn it is; other tasks run after each."""
        if not self._unchecked:
            self._unchecked.extend(self._watched.cluster.nodes)
        number = math.ceil(
            len(self._watched.cluster.nodes) * ROUND_S / max(self._interval, ROUND_S)
        )
        for _ in range(min(number, len(self._unchecked))):
            self._check_node(self._unchecked.popleft())
            await asyncio.sleep(0)

    def _check_node(self, name: str) -> None:
        cluster = self._watched.cluster
        differences = self_check.node_drift(cluster, name)
        for difference in differences:
            self.table_drift += 1
            _log.error("card table is wrong, repairing it", extra={"difference": difference})
        if differences:
            # Applied again, the node's tables are the sum of its pods.
            cluster.apply(state.PutNode(cluster.nodes[name]))
            self._watched.room(name, "")
