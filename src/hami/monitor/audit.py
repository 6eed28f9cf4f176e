"""Compare the driver's processes with limits of containers, every five seconds.

The driver is asked first and the state files after it, and a process that seems to be unmanaged is
looked for once more. So a process that starts or ends in between is never reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from hami.monitor import findings, hami, processes
from hami.monitor.containers import Containers, Key, PreparedContainers
from hami.monitor.driver import CardProcesses, DriverSample, Sampler
from hami.monitor.events import AuditEvents
from hami.monitor.findings import Findings, OwnedProcess
from hami.monitor.hami import HamiContainers
from hami.monitor.overuse import OveruseMarks
from hami.monitor.pods import Pods
from hami.monitor.processes import Processes, Trace
from hami.monitor.usage import UsageReader
from hami.serving import lifetime

_log = logging.getLogger(__name__)

INTERVAL = 5.0
#: Audits in which the driver named processes and none was found in /proc, until that is logged.
_BLIND = 3


class Audit:
    """One node's audit; `latest` are the findings of the last one."""

    def __init__(
        self,
        *,
        sampler: Sampler,
        processes: Processes,
        prepared: PreparedContainers,
        usage: UsageReader,
        hami_containers: HamiContainers,
        pods: Pods,
        events: AuditEvents,
        marks: OveruseMarks,
    ) -> None:
        self._sampler = sampler
        self._processes = processes
        self._prepared = prepared
        self._usage = usage
        self._hami = hami_containers
        self._pods = pods
        self._events = events
        self._marks = marks
        self._blind = 0
        self.latest: Findings | None = None

    async def run(self) -> NoReturn:
        while True:
            await self.audit()
            await asyncio.sleep(INTERVAL)

    async def audit(self) -> Findings:
        """Take a sample, find what breaks a rule, and report it."""
        sample = await lifetime.in_thread(self._sampler.take)
        traces = await asyncio.to_thread(self._traces, sample)
        containers = self._prepared.read()
        owned = [
            _owned(each, process.memory, traces[process.pid], containers, self._pods)
            for each in sample.processes
            for process in each.processes
            if process.pid in traces
        ]
        living = self._living(containers)
        self._report_missing(owned, living)
        given = {share.card for container in containers for share in container.shares}
        found = findings.find(sample, owned, living=living, given=given)
        resized = {each.key: each.generation for each in containers if each.generation > 1}
        found = msgspec.structs.replace(found, resized=resized)
        if found.unmanaged:
            found = await lifetime.in_thread(self._still_there, found)
        self.latest = found
        self._events.report(found)
        self._marks.observe(found)
        return found

    def _traces(self, sample: DriverSample) -> dict[int, Trace]:
        pids = {process.pid for each in sample.processes for process in each.processes}
        self._processes.retain(pids)
        found = {pid: self._processes.trace(pid) for pid in pids}
        traces = {pid: trace for pid, trace in found.items() if trace is not None}
        self._blind = self._blind + 1 if pids and not traces else 0
        if self._blind == _BLIND:
            _log.warning(
                "cannot find the processes that the driver names; run the monitor in the host's "
                "PID namespace (hostPID), as the chart does",
                extra={"pids": sorted(pids)[:10]},
            )
        return traces

    def _living(self, containers: Containers) -> dict[Key, frozenset[int]]:
        living = {each.folder.key: hami.usage_of(each.region).pids for each in self._hami.read()}
        for container in containers:
            pids = self._usage.living_pids(container)
            if pids is not None:
                living[container.key] = pids
        return living

    def _report_missing(
        self, owned: Sequence[OwnedProcess], living: dict[Key, frozenset[int]]
    ) -> None:
        for container in {each.owner.container for each in owned}:
            if container is not None and container.limited and container.key not in living:
                self._usage.report_missing(container)

    def _still_there(self, found: Findings) -> Findings:
        """Leave out processes that have ended since the driver was first asked, or are ending.

        A card that does not answer the second question was not sampled.
        """
        asked = {process.card for process in found.unmanaged}
        there = self._sampler.still_there(sorted(asked))
        traces = {process.pid: self._processes.trace(process.pid) for process in found.unmanaged}
        unmanaged = tuple(
            process
            for process in found.unmanaged
            if process.pid in there.get(process.card, ())
            and (trace := traces[process.pid]) is not None
            and trace.start == process.start
        )
        silent = asked - there.keys()
        memory = {card: used for card, used in found.memory.items() if card not in silent}
        return msgspec.structs.replace(found, unmanaged=unmanaged, memory=memory)


def _owned(
    on: CardProcesses, memory: int | None, trace: Trace, containers: Containers, pods: Pods
) -> OwnedProcess:
    return OwnedProcess(
        card=on.uuid,
        card_index=on.index,
        mig=on.mig,
        pid=trace.pid,
        start=trace.start,
        inner_pid=trace.inner_pid,
        memory=memory,
        owner=processes.owner_of(trace, containers, pods),
    )
