"""One scrape: every container read anew, then written. Others have their turn in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from hami.monitor import node_metrics, use
from hami.monitor.containers import Container
from hami.monitor.node_metrics import Picture
from hami.monitor.pods import Pods
from hami.monitor.readings import Readings
from hami.monitor.rounds import Latest, Rounds
from hami.monitor.rows import rows
from hami.monitor.use import Use

#: Containers that are read before others have their turn: a millisecond or two.
_AT_ONCE = 16
#: Seconds after which what the driver said is not true any more.
_STALE = 30.0


class Scrape:
    def __init__(
        self,
        *,
        node: str,
        readings: Readings,
        rounds: Rounds,
        pods: Pods,
        legacy: bool,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._readings = readings
        self._rounds = rounds
        self._pods = pods
        self._legacy = legacy
        self._clock = clock
        self._now = now

    async def families(self) -> AsyncIterator[bytes]:
        found: list[tuple[Container, Use | None]] = []
        for each in self._readings.hami():
            container = self._readings.named(each)
            if container is not None:
                found.append((container, use.of_region(each.region)))
        # Ours come last: a container that has both is shown by ours.
        for count, container in enumerate(self._readings.prepared()):
            if not self._readings.over(container):
                found.append((container, self._readings.use(container)))
            if count % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        latest = self._latest()
        picture = Picture(
            node=self._node,
            rows=rows(found, latest, now=self._now()),
            latest=latest,
            pods=self._pods,
        )
        for family in node_metrics.families(picture, legacy=self._legacy):
            yield family

    def _latest(self) -> Latest | None:
        latest = self._rounds.latest
        if latest is None or self._clock() - latest.taken > _STALE:
            return None
        return latest
