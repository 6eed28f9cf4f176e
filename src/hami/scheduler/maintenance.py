"""What has to be looked at from time to time: ends, doubts, gauges, and whether the sums are right.

Once a second reservations that nobody came for end, and Bindings that no watch has shown are
looked up. The tables are held against the ledger node by node, a few nodes a second: the whole
fleet once per interval, at a cost that nobody notices.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import math
from collections.abc import Mapping
from typing import Protocol

from hami.cluster import drift, state
from hami.kube import events
from hami.kube.events import EventRecorder
from hami.kube.store import Stats
from hami.scheduler.assumed_pods import AssumedPods, LostAnswers, Stage
from hami.scheduler.informers import World
from hami.scheduler.leadership import Leadership
from hami.scheduler.metrics import Metrics
from hami.scheduler.readiness import Readiness
from hami.scheduler.requeue import Requeue
from hami.scheduler.unschedulable import UnschedulablePods

_log = logging.getLogger(__name__)

ROUND_S = 1.0


class Counted(Protocol):
    @property
    def stats(self) -> Stats: ...


class Maintenance:
    def __init__(
        self,
        *,
        world: World,
        bookings: AssumedPods,
        waiting: UnschedulablePods,
        wake_ups: Requeue,
        fates: LostAnswers,
        leadership: Leadership,
        readiness: Readiness,
        caches: Mapping[str, Counted],
        recorder: EventRecorder,
        instruments: Metrics,
        interval: float,
    ) -> None:
        self._world = world
        self._bookings = bookings
        self._waiting = waiting
        self._wake_ups = wake_ups
        self._fates = fates
        self._leadership = leadership
        self._readiness = readiness
        self._caches = caches
        self._recorder = recorder
        self._instruments = instruments
        self._interval = interval
        self._unchecked: collections.deque[str] = collections.deque()
        self._table_drift = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            self.look()

    def look(self) -> None:
        self._leadership.tick()
        for booking in self._bookings.lapse():
            _log.info(
                "reservation ended: nobody asked to bind it",
                extra={"pod": f"{booking.namespace}/{booking.name}", "node": booking.node},
            )
        for uid in self._world.end_stale_annotations():
            _log.info("decision of an unbound pod ended by its age", extra={"uid": uid})
        self._fates.ask_overdue()
        self._check_tables()
        self.count()

    def _check_tables(self) -> None:
        if not self._unchecked:
            self._unchecked.extend(self._world.cluster.nodes)
        number = math.ceil(len(self._world.cluster.nodes) * ROUND_S / max(self._interval, ROUND_S))
        for _ in range(min(number, len(self._unchecked))):
            self._check_node(self._unchecked.popleft())

    def _check_node(self, name: str) -> None:
        cluster = self._world.cluster
        found = drift.node_drift(cluster, name)
        for line in found:
            self._table_drift += 1
            _log.error("tables do not add up", extra={"difference": line})
        if found:
            # Taken up anew, its tables are the sum of its rows.
            cluster.apply(state.PutNode(cluster.nodes[name]))
            self._world.room(name, "")

    def count(self) -> None:
        """Bring the gauges up to date."""
        gauges = self._instruments
        stages = collections.Counter(booking.stage for booking in self._bookings)
        for stage in Stage:
            if stage is not Stage.OVER:
                gauges.reservations.labels(stage.value).set(stages[stage])
        gauges.waiting_pods.set(len(self._waiting))
        gauges.wake_ups.set(self._wake_ups.sent)
        gauges.leading.set(self._leadership.leading)
        gauges.ready.set(self._readiness.ready)
        gauges.unreadable.set(len(self._world.cluster.problems()))
        gauges.drift.labels("tables").set(self._table_drift)
        for outcome in events.Stats.__struct_fields__:
            gauges.events.labels(outcome).set(getattr(self._recorder.stats, outcome))
        for kind, cache in self._caches.items():
            gauges.drift.labels(kind).set(cache.stats.repaired)
            for what in Stats.__struct_fields__:
                gauges.watch.labels(kind, what).set(getattr(cache.stats, what))
