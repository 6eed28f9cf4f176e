"""What is shown of each container and card, from all that is known of it. Pure.

A number that nobody knows is left out, never written as 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hami.monitor.audit import Latest
from hami.monitor.containers import Container
from hami.monitor.usage import CardUsage, Usage
from hami.wire.shares import WHOLE_CARD

_NOTHING = CardUsage()


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One container's share of one card."""

    namespace: str
    pod: str
    container: str
    #: The card's index in the container.
    place: int
    uuid: str
    #: Bytes and percent.
    memory_limit: int
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


def rows(
    found: Iterable[tuple[Container, Usage | None]], latest: Latest | None, *, now: float
) -> list[Row]:
    """Make the rows; of containers that have the same names the last given counts."""
    by_names: dict[tuple[str, str, str], list[Row]] = {}
    for container, use in found:
        names = (container.namespace, container.pod, container.key.container)
        by_names[names] = _rows_of(container, use, latest, now)
    return [row for each in by_names.values() for row in each]


def _rows_of(
    container: Container, use: Usage | None, latest: Latest | None, now: float
) -> list[Row]:
    last = use.last_kernel_time if use is not None else 0
    sampled = {part.uuid for part in latest.parts} if latest is not None else frozenset()
    made: dict[str, Row] = {}
    for place, share in enumerate(container.shares):
        if share.card in made:
            continue
        card = use.cards.get(share.card, _NOTHING) if use is not None else None
        at = (container.key, share.card)
        by_driver = None
        if latest is not None and share.card in sampled:
            by_driver = latest.memory.get(at, 0)
        core_used = card.compute if card is not None else None
        if latest is not None and share.card in latest.computing:
            core_used = latest.compute.get(at, 0)
        used = card.used if card is not None else None
        over = None
        if by_driver is not None and container.limited and container.tokens:
            over = max(by_driver - share.memory_bytes, 0) if share.memory_mib else 0
        made[share.card] = Row(
            namespace=container.namespace,
            pod=container.pod,
            container=container.key.container,
            place=place,
            uuid=share.card,
            memory_limit=share.memory_bytes,
            core_limit=share.core_limit or WHOLE_CARD,
            # Without a limiter there is nobody in the container who counts.
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
