"""Collect a snapshot of the node for a scrape: usage of shares, and findings.

Containers are read again for each scrape; other tasks have their turn in between. A number that is
not known is None, never 0.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from hami.monitor import hami
from hami.monitor.audit import Audit
from hami.monitor.containers import Container, PreparedContainers
from hami.monitor.findings import Findings
from hami.monitor.hami import HamiContainers
from hami.monitor.pods import Pods, WatchedPod
from hami.monitor.usage import CardUsage, ContainerUsage, UsageReader
from hami.wire.shares import WHOLE_CARD

#: Seconds of reading after which other tasks have their turn.
_TURN = 0.002
#: Seconds after which findings are too old to be shown.
_STALE = 30.0
_UNUSED = CardUsage()

_Found = tuple[Container, ContainerUsage | None]


class ShareUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One container's share of one card, and its usage."""

    namespace: str
    pod: str
    container: str
    #: The card's index in the container.
    index: int
    card: str
    #: Bytes; 0 is no limit.
    memory_limit: int
    #: Percent; 100 is no limit.
    core_limit: int
    memory_used: int | None = None
    core_used: int | None = None
    context: int | None = None
    module: int | None = None
    data: int | None = None
    offset: int | None = None
    #: Bytes that the driver counts above the limit.
    over_limit: int | None = None
    #: Seconds.
    since_last_kernel: float | None = None


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that one scrape shows."""

    node: str
    shares: Sequence[ShareUsage]
    #: None: the driver has not answered lately.
    findings: Findings | None
    pods: Iterable[WatchedPod] = ()


class Collector:
    """Makes snapshots of one node."""

    def __init__(
        self,
        *,
        node: str,
        prepared: PreparedContainers,
        usage: UsageReader,
        hami_containers: HamiContainers,
        audit: Audit,
        pods: Pods,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._prepared = prepared
        self._usage = usage
        self._hami = hami_containers
        self._audit = audit
        self._pods = pods
        self._clock = clock
        self._now = now

    async def collect(self) -> NodeSnapshot:
        """Read all containers of the node."""
        found: list[_Found] = []
        begun = self._clock()
        # Ours come last: a container that has both is shown by ours.
        for each in itertools.chain(self._hami_usage(), self._own_usage()):
            if each is not None:
                found.append(each)
            if self._clock() - begun > _TURN:
                await asyncio.sleep(0)
                begun = self._clock()
        findings = self._findings()
        return NodeSnapshot(
            node=self._node,
            shares=share_usages(found, findings, now=self._now()),
            findings=findings,
            pods=self._pods,
        )

    def has_ended(self, container: Container) -> bool:
        """Return True if the API server knows the container's end, though the ledger has it."""
        return self._pods.over(container.key, age=self._now() - container.since / 1e9)

    def _hami_usage(self) -> Iterator[_Found | None]:
        for each in self._hami.read():
            container = self._hami.container(each)
            yield None if container is None else (container, hami.usage_of(each.region))

    def _own_usage(self) -> Iterator[_Found | None]:
        for container in self._prepared.read():
            ended = self.has_ended(container)
            yield None if ended else (container, self._usage.usage(container))

    def _findings(self) -> Findings | None:
        latest = self._audit.latest
        if latest is None or self._clock() - latest.sample.taken > _STALE:
            return None
        return latest


def share_usages(
    found: Iterable[_Found], findings: Findings | None, *, now: float
) -> list[ShareUsage]:
    """Join shares with usage and findings; of containers with the same names the last counts."""
    by_names: dict[tuple[str, str, str], list[ShareUsage]] = {}
    for container, usage in found:
        names = (container.namespace, container.pod, container.key.container)
        by_names[names] = _of_container(container, usage, findings or _NO_FINDINGS, now)
    return [share for shares in by_names.values() for share in shares]


_NO_FINDINGS = Findings()


def _of_container(
    container: Container, usage: ContainerUsage | None, findings: Findings, now: float
) -> list[ShareUsage]:
    key = container.key
    last = usage.last_kernel_time if usage is not None else 0
    made: dict[str, ShareUsage] = {}
    for index, share in enumerate(container.shares):
        if share.card in made:
            continue
        card = usage.cards.get(share.card, _UNUSED) if usage is not None else None
        on_card = findings.memory.get(share.card)
        by_driver = on_card.get(key, 0) if on_card is not None else None
        compute = findings.compute.get(share.card)
        core_used = card.compute if card is not None else None
        if compute is not None:
            core_used = compute.get(key, 0)
        over = None
        if by_driver is not None and container.limited and container.allocation_ids:
            over = max(by_driver - share.memory_bytes, 0) if share.memory_mib else 0
        used = card.used if card is not None else None
        limit = card.limit if card is not None else None
        made[share.card] = ShareUsage(
            namespace=container.namespace,
            pod=container.pod,
            container=key.container,
            index=index,
            card=share.card,
            memory_limit=share.memory_bytes if limit is None else limit,
            core_limit=share.core_limit or WHOLE_CARD,
            # Without the limiter only the driver counts.
            memory_used=used if container.limited else by_driver,
            core_used=core_used,
            context=card.context if card is not None else None,
            module=card.module if card is not None else None,
            data=card.data if card is not None else None,
            offset=card.offset if card is not None else None,
            over_limit=over,
            since_last_kernel=max(now - last, 0.0) if last > 0 else None,
        )
    return list(made.values())
