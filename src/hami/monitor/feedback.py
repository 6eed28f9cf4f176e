"""Priorities between containers of HAMi's library: who has to wait, and whose limit counts.

HAMi's library and its monitor talk through two numbers of the region. `recent_kernel` is set to 2
at each launch; the monitor counts it down, so that what is above 0 has worked lately, and makes it
-1 to let a container wait. `utilization_switch` says whether the compute limit holds: a container
that is alone on its cards may have them whole.

Our own state files need nothing of the kind yet: libvgpu enforces no compute limit. When it does,
its processes will see each other through the policy's priority and the state's futex word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

K = TypeVar("K")

_BLOCKED, _IDLE = -1, 0


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What one container's region says now."""

    uuids: tuple[str, ...]
    #: 0 is high, 1 is low; a negative one never makes others wait.
    priority: int
    recent_kernel: int
    utilization_switch: int


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What it shall say."""

    recent_kernel: int
    utilization_switch: int


def decide(standings: Mapping[K, Standing]) -> dict[K, Told]:
    """Judge all containers of a node at once."""
    counted = {key: _counted_down(each.recent_kernel) for key, each in standings.items()}
    #: How many containers of a priority work on a card.
    active: dict[tuple[str, int], int] = {}
    for key, each in standings.items():
        if counted[key] > 0 and each.priority >= 0:
            for uuid in each.uuids:
                place = (uuid, each.priority)
                active[place] = active.get(place, 0) + 1
    return {key: _told(each, counted[key], active) for key, each in standings.items()}


def _counted_down(recent_kernel: int) -> int:
    return recent_kernel - 1 if recent_kernel > 0 else recent_kernel


def _told(each: Standing, recent_kernel: int, active: Mapping[tuple[str, int], int]) -> Told:
    own = set(each.uuids)
    blocked = any(
        number > 0 and uuid in own and priority < each.priority
        for (uuid, priority), number in active.items()
    )
    crowded = any(active.get((uuid, each.priority), 0) > 1 for uuid in own)
    if blocked and recent_kernel >= 0:
        recent_kernel = _BLOCKED
    elif not blocked and recent_kernel < 0:
        recent_kernel = _IDLE
    return Told(recent_kernel=recent_kernel, utilization_switch=int(blocked or crowded))
