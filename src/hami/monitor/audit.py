"""Every five seconds: ask the driver who is on which card, and hold that against the policies.

The driver is asked first and the slots after it; who seems to be unmanaged is looked for once more.
So a process that starts or ends in between is never taken for one that hides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NoReturn

import msgspec

from hami.monitor import findings, processes, usage
from hami.monitor.containers import Containers, Key
from hami.monitor.driver import CardNow, DriverSample, Part, Sampler
from hami.monitor.events import AuditEvents
from hami.monitor.findings import Findings, OnCard
from hami.monitor.pods import Pods
from hami.monitor.processes import Processes, Trace
from hami.monitor.usage import Readings

_log = logging.getLogger(__name__)

INTERVAL = 5.0
#: Rounds in which the driver named processes and none was to be found, until that is said.
_BLIND = 3


class Latest(msgspec.Struct, frozen=True, kw_only=True):
    """What the last round found."""

    #: By the sampler's clock.
    taken: float
    cards: tuple[CardNow, ...] = ()
    parts: tuple[Part, ...] = ()
    verdict: Findings = Findings()
    #: Bytes by container and card, as the driver counts them.
    memory: Mapping[tuple[Key, str], int] = {}
    #: Percent of a card's compute by container and card, and the cards that tell it.
    compute: Mapping[tuple[Key, str], int] = {}
    computing: AbstractSet[str] = frozenset()


class Audit:
    def __init__(
        self,
        *,
        sampler: Sampler,
        processes: Processes,
        readings: Readings,
        pods: Pods,
        teller: AuditEvents,
    ) -> None:
        self._sampler = sampler
        self._processes = processes
        self._readings = readings
        self._pods = pods
        self._teller = teller
        self._blind = 0
        self.latest: Latest | None = None

    async def run(self) -> NoReturn:
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL)

    async def look(self) -> Latest:
        sample = await asyncio.to_thread(self._sampler.take)
        traces = await asyncio.to_thread(self._traces, sample)
        containers = self._readings.prepared()
        found = [
            _on_card(part, process.memory, traces[process.pid], containers, self._pods)
            for part in sample.parts
            for process in part.processes
            if process.pid in traces
        ]
        living = self._living(containers)
        for container in {each.owner.container for each in found}:
            if container is not None and container.limited and container.key not in living:
                self._readings.missing(container)
        verdict = findings.find(
            found,
            living=living,
            given={share.card for container in containers for share in container.shares},
        )
        verdict = await self._confirmed(verdict)
        self.latest = _latest(sample, found, verdict)
        self._teller.tell(verdict)
        return self.latest

    def _traces(self, sample: DriverSample) -> dict[int, Trace]:
        pids = {process.pid for part in sample.parts for process in part.processes}
        self._processes.retain(pids)
        found = {pid: self._processes.trace(pid) for pid in pids}
        traces = {pid: trace for pid, trace in found.items() if trace is not None}
        self._blind = self._blind + 1 if pids and not traces else 0
        if self._blind == _BLIND:
            _log.warning(
                "no process that the driver names is to be found, so none can be judged; run the "
                "monitor in the host's PID namespace (hostPID), as the chart does",
                extra={"pids": sorted(pids)[:10]},
            )
        return traces

    def _living(self, containers: Containers) -> dict[Key, frozenset[int]]:
        living = {
            found.folder.key: usage.of_region(found.region).pids for found in self._readings.hami()
        }
        for container in containers:
            known = self._readings.living(container)
            if known is not None:
                living[container.key] = known
        return living

    async def _confirmed(self, verdict: Findings) -> Findings:
        if not verdict.unmanaged:
            return verdict
        unmanaged = await asyncio.to_thread(self._still_there, verdict.unmanaged)
        return msgspec.structs.replace(verdict, unmanaged=unmanaged)

    def _still_there(self, found: Sequence[OnCard]) -> tuple[OnCard, ...]:
        """Leave out who has gone since the driver was first asked, or is about to."""
        there = self._sampler.still_there(sorted({process.uuid for process in found}))
        traces = {process.pid: self._processes.trace(process.pid) for process in found}
        return tuple(
            process
            for process in found
            if process.pid in there.get(process.uuid, ())
            and (trace := traces[process.pid]) is not None
            and trace.start == process.start
        )


def _on_card(
    part: Part, memory: int | None, trace: Trace, containers: Containers, pods: Pods
) -> OnCard:
    return OnCard(
        uuid=part.uuid,
        index=part.index,
        mig=part.mig,
        pid=trace.pid,
        start=trace.start,
        inner_pid=trace.inner_pid,
        memory=memory,
        owner=processes.owner_of(trace, containers, pods),
    )


def _latest(sample: DriverSample, found: list[OnCard], verdict: Findings) -> Latest:
    compute_of = {part.uuid: part.compute for part in sample.parts if part.compute is not None}
    memory: dict[tuple[Key, str], int] = {}
    compute: dict[tuple[Key, str], int] = {}
    for process in found:
        place = (process.owner.key, process.uuid)
        memory[place] = memory.get(place, 0) + (process.memory or 0)
        busy = compute_of.get(process.uuid)
        if busy is not None:
            compute[place] = compute.get(place, 0) + busy.get(process.pid, 0)
    return Latest(
        taken=sample.taken,
        cards=sample.cards,
        parts=sample.parts,
        verdict=verdict,
        memory=memory,
        compute=compute,
        computing=frozenset(compute_of),
    )
