"""Mark pods that have more of a card than they were given (`hami.io/overuse`).

The scheduler's leader reads the marks, counts such pods and, with `--overuse=evict`, evicts them
after a grace. So a mark must be right: it needs two audits in a row, memory above the limit by
more than what is natural (the driver takes memory for loaded code before libvgpu can count it), and
the driver's account alone. It is written again while that lasts, and removed by the first audit in
which it does not. If the driver or one card does not answer, marks are neither renewed nor removed,
and the leader ignores those that are not renewed.

A container has too much above its limit (one whose limit was lowered: above what it had then, until
that is freed), or on a card that it was not given; one that asks for no device, with any memory. A
container that asks for devices and has no share of ours, such as one of HAMi's plugin, is not
judged. A process without libvgpu in a container that stays within its limit is reported
(`hami.monitor.events`), and no overuse.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import msgspec

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.monitor.containers import Key
from hami.monitor.findings import Findings
from hami.monitor.pods import Pods, WatchedPod
from hami.wire import annotation_keys, codec, pod_marks
from hami.wire import errors as wire_errors
from hami.wire.pod_marks import Overuse

_log = logging.getLogger(__name__)

#: Audits in a row after which a pod is marked.
TIMES = 2
#: Seconds after which a mark is written again; the leader ignores marks older than 45 s.
RENEW_S = 20.0
_TIMEOUT_S = 5.0
_MIB = 2**20


class _Excess(msgspec.Struct, frozen=True, kw_only=True):
    """What one container has too much of one card."""

    container: str
    card: str
    #: Bytes; the limit is 0 for a card that it was not given.
    used: int
    limit: int


class _Overusing(msgspec.Struct):
    """A pod with too much, for so many audits."""

    pod: WatchedPod
    excess: _Excess
    since: str
    audits: int = 1
    #: Whether the last audit found it, and that was not written yet.
    found: bool = True
    #: The value that was written last, and when, by the monotonic clock.
    written: str = ""
    written_at: float = 0.0


class OveruseMarks:
    """Keeps the marks of this node's pods as the audits find them."""

    def __init__(
        self,
        client: Client,
        pods: Pods,
        *,
        node: str,
        tolerance_mib: int,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._pods = pods
        self._node = node
        self._tolerance = tolerance_mib * _MIB
        self._clock = clock
        self._now = now
        self._overusing: dict[str, _Overusing] = {}
        #: Cards of this node that the last audit has not seen; None: none has taken place.
        self._silent: frozenset[str] | None = None
        #: By container, card and generation of its policy, what it may keep after a resize.
        self._kept: dict[tuple[Key, str, int], int] = {}
        self._audited = asyncio.Event()

    def observe(self, findings: Findings) -> None:
        """Take note of an audit; marks are written soon."""
        for overusing in self._overusing.values():
            overusing.found = False
        if not findings.memory:
            return  # the driver did not answer
        self._silent = _cards(findings) - findings.memory.keys()
        self._keep(findings)
        worst: dict[str, tuple[WatchedPod, _Excess]] = {}
        for pod, excess in self._excesses(findings):
            known = worst.get(pod.uid)
            if known is None or _above(known[1]) < _above(excess):
                worst[pod.uid] = pod, excess
        before, self._overusing = self._overusing, {}
        for uid, (pod, excess) in worst.items():
            known_pod = before.get(uid)
            if known_pod is None:
                since = self._since(pod) or self._time()
                known_pod = _Overusing(pod=pod, excess=excess, since=since)
            else:
                known_pod.pod, known_pod.excess = pod, excess
                known_pod.audits += 1
                known_pod.found = True
            self._overusing[uid] = known_pod
        for uid, old in before.items():
            # Its card was not sampled this time, so it has not been seen below the limit.
            if uid not in worst and old.excess.card in self._silent:
                self._overusing[uid] = old
        self._audited.set()

    def _keep(self, findings: Findings) -> None:
        """Note what resized containers have: a lower limit takes no memory away."""
        before, self._kept = self._kept, {}
        for key, generation in findings.resized.items():
            for card in _cards(findings) | findings.memory.keys():
                place = key, card, generation
                used = findings.memory[card].get(key, 0) if card in findings.memory else None
                known = before.get(place, used)
                if known is not None:
                    self._kept[place] = known if used is None else min(known, used)

    def _excesses(self, findings: Findings) -> Iterator[tuple[WatchedPod, _Excess]]:
        unmanaged = {(process.card, process.pid) for process in findings.unmanaged}
        for over in findings.over:
            pod = self._pods.get(over.container.key.uid)
            # Each process loads code; those without libvgpu are not excused by it.
            loading = sum((each.card, each.pid) not in unmanaged for each in over.processes)
            place = over.container.key, over.share.card, over.container.generation
            may = max(over.share.memory_bytes, self._kept.get(place, 0))
            if pod is not None and over.used > may + self._tolerance * max(loading, 1):
                yield (
                    pod,
                    _Excess(
                        container=over.container.key.container,
                        card=over.share.card,
                        used=over.used,
                        limit=over.share.memory_bytes,
                    ),
                )
        for process in findings.unmanaged:
            pod, container = self._pods.get(process.owner.key.uid), process.owner.container
            # Memory of all its processes there: several small ones are as much as a large one.
            used = findings.memory.get(process.card, {}).get(process.owner.key, 0)
            if pod is None or not used:
                continue
            name = process.owner.key.container
            if container is None:
                given = name in pod.asking if name else bool(pod.asking)
            else:
                given = container.share(process.card) is not None
            if not given:
                yield pod, _Excess(container=name, card=process.card, used=used, limit=0)

    def _since(self, pod: WatchedPod) -> str:
        """Return since when a pod is marked already, by a monitor before this one."""
        found = _decode(pod.overuse)
        return found.since if found is not None and found.uid == pod.uid else ""

    async def run(self) -> NoReturn:
        """Write after each audit, for ever; what fails is retried after the next one."""
        while True:
            await self._audited.wait()
            self._audited.clear()
            await self.write()

    async def write(self) -> None:
        """Bring the marks on pods up to date."""
        for overusing in list(self._overusing.values()):
            if overusing.audits >= TIMES and self._is_due(overusing):
                await self._mark(overusing)
        for pod in [pod for pod in self._pods if pod.overuse]:
            if pod.uid not in self._overusing and self._is_wrong(pod):
                await self._patch(pod, None)

    def _is_due(self, overusing: _Overusing) -> bool:
        pod = self._pods.get(overusing.pod.uid)
        if pod is None or pod.finished or not overusing.found:
            return False
        late = self._clock() - overusing.written_at >= RENEW_S
        return not overusing.written or late or pod.overuse != overusing.written

    def _is_wrong(self, pod: WatchedPod) -> bool:
        """Return whether the last audit would have found what a pod is marked for."""
        if self._silent is None:
            return False
        found = _decode(pod.overuse)
        ours = found is not None and (found.uid, found.node) == (pod.uid, self._node)
        return found is None or not ours or found.card not in self._silent

    async def _mark(self, overusing: _Overusing) -> None:
        excess, pod = overusing.excess, overusing.pod
        text = pod_marks.encode(
            Overuse(
                uid=pod.uid,
                node=self._node,
                container=excess.container,
                card=excess.card,
                used=excess.used,
                limit=excess.limit,
                since=overusing.since,
                seen=self._time(),
            )
        )
        if not overusing.written:
            _log.warning(
                "pod has more of a card than it was given, marking it",
                extra={"pod": f"{pod.namespace}/{pod.name}", "mark": text},
            )
        if await self._patch(pod, text):
            overusing.written, overusing.written_at = text, self._clock()
            overusing.found = False

    async def _patch(self, pod: WatchedPod, text: str | None) -> bool:
        # Another pod of this name must not be marked.
        metadata = {"uid": pod.uid, "annotations": {annotation_keys.OVERUSE: text}}
        try:
            body = await self._client.patch(
                paths.pods(pod.namespace, pod.name),
                codec.encode({"metadata": metadata}),
                timeout=_TIMEOUT_S,
            )
            self._pods.informer.offer(body)
        except (errors.NotFound, errors.Conflict):
            return False  # deleted, and perhaps replaced; the watch shows it
        except (errors.KubeError, wire_errors.WireError) as error:
            _log.warning(
                "cannot write the mark of a pod yet, retrying",
                extra={"pod": f"{pod.namespace}/{pod.name}", "error": str(error)},
            )
            return False
        return True

    def _time(self) -> str:
        return dt.datetime.fromtimestamp(self._now(), dt.UTC).isoformat(timespec="seconds")


def _cards(findings: Findings) -> frozenset[str]:
    """Return all cards and MIG devices of the node, as the driver last listed them."""
    cards = [each.card for each in findings.sample.cards]
    return frozenset([*(c.uuid for c in cards), *(mig.uuid for c in cards for mig in c.mig)])


def _above(excess: _Excess) -> int:
    return excess.used - excess.limit


def _decode(text: str) -> Overuse | None:
    try:
        return pod_marks.decode_overuse(text) if text else None
    except wire_errors.WireError:
        return None
