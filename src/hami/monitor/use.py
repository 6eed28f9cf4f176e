"""What a container says that it uses, added up over its living processes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hami.monitor.hami_region import Region
from hami.wire.region import State


class CardUse(msgspec.Struct, kw_only=True):
    """Bytes of one card; None: not told apart."""

    used: int = 0
    context: int = 0
    module: int | None = None
    data: int = 0
    offset: int | None = None
    #: Percent, as the library in the container measured it.
    compute: int | None = None


class Use(msgspec.Struct, frozen=True, kw_only=True):
    #: By UUID; a card that is missing is not in use.
    cards: Mapping[str, CardUse]
    #: Unix seconds; 0: none seen.
    last_kernel_time: int
    #: Processes that account for what they have, as the container sees them.
    pids: frozenset[int]


def of_states(states: Iterable[State]) -> Use:
    """Add up states of one container; their slots are those that live."""
    cards: dict[str, CardUse] = {}
    last, pids = 0, set()
    for state in states:
        # The same card twice is somebody's joke: the first counts.
        places = {device.uuid: place for place, device in reversed(list(enumerate(state.devices)))}
        for slot in state.slots:
            last = max(last, slot.last_kernel_time)
            pids.add(slot.pid)
            for uuid, place in places.items():
                usage = slot.usage[place]
                card = cards.setdefault(uuid, CardUse())
                total = usage.total
                card.used += total
                card.context += usage.overhead
                card.data += total - usage.overhead
    return Use(cards=cards, last_kernel_time=last, pids=frozenset(pids))


def of_region(region: Region) -> Use:
    cards: dict[str, CardUse] = {}
    for device in region.devices:
        if device.uuid not in cards:
            cards[device.uuid] = CardUse(
                used=device.used,
                context=device.context,
                module=device.module,
                data=device.data,
                offset=device.offset,
                compute=device.core_used,
            )
    return Use(cards=cards, last_kernel_time=region.last_kernel_time, pids=region.pids)
