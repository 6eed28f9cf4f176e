"""One scrape: every container read anew, then written. Others have their turn in between."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator

from hami.monitor import metrics, usage
from hami.monitor.audit import Audit, Latest
from hami.monitor.collect import rows
from hami.monitor.containers import Container
from hami.monitor.metrics import NodeSnapshot
from hami.monitor.pods import Pods
from hami.monitor.usage import Readings, Usage

#: Seconds of reading after which others have their turn.
_TURN = 0.002
#: Seconds after which what the driver said is not true any more.
_STALE = 30.0

_Reading = tuple[Container, Usage | None]


class Scrape:
    def __init__(
        self,
        *,
        node: str,
        readings: Readings,
        rounds: Audit,
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
        found: list[_Reading] = []
        begun = self._clock()
        # Ours come last: a container that has both is shown by ours.
        for reading in itertools.chain(self._hami(), self._ours()):
            if reading is not None:
                found.append(reading)
            if self._clock() - begun > _TURN:
                await asyncio.sleep(0)
                begun = self._clock()
        latest = self._latest()
        picture = NodeSnapshot(
            node=self._node,
            rows=rows(found, latest, now=self._now()),
            latest=latest,
            pods=self._pods,
        )
        for family in metrics.families(picture, legacy=self._legacy):
            yield family

    def _hami(self) -> Iterator[_Reading | None]:
        for each in self._readings.hami():
            container = self._readings.named(each)
            yield None if container is None else (container, usage.of_region(each.region))

    def _ours(self) -> Iterator[_Reading | None]:
        for container in self._readings.prepared():
            over = self._readings.over(container)
            yield None if over else (container, self._readings.use(container))

    def _latest(self) -> Latest | None:
        latest = self._rounds.latest
        if latest is None or self._clock() - latest.taken > _STALE:
            return None
        return latest
