"""How far a rolling update may go next: pure arithmetic over the replica sets of a deployment."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Set(msgspec.Struct, frozen=True):
    """A replica set in numbers: what it is asked for, and what it has."""

    wanted: int
    #: Pods that count.
    available: int = 0


class Bounds(msgspec.Struct, frozen=True):
    #: Pods above the wanted number.
    surge: int
    #: Pods below the wanted number that may be missing.
    unavailable: int


def bounds(replicas: int, surge: str | int, unavailable: str | int) -> Bounds:
    """Return the limits in pods: a share of the surge counts upwards, of the missing downwards."""
    above = _share(surge, replicas, up=True)
    below = _share(unavailable, replicas, up=False)
    if not above and not below:
        below = 1  # else nothing could ever change
    return Bounds(above, min(below, replicas))


def new_size(replicas: int, limits: Bounds, new: Set, old: Sequence[Set]) -> int:
    """Return how many pods the new set shall have now."""
    if new.wanted >= replicas:
        return replicas
    others = sum(each.wanted for each in old)
    room = replicas + limits.surge - others - new.wanted
    return new.wanted + max(0, min(room, replicas - new.wanted))


def old_sizes(replicas: int, limits: Bounds, new: Set, old: Sequence[Set]) -> list[int]:
    """Return how many pods each old set shall have now; the first shrink first.

    Pods of theirs that are not available anyway are given up before those that serve.
    """
    total = new.wanted + sum(each.wanted for each in old)
    missing = max(0, new.wanted - new.available)
    spare = max(0, total - (replicas - limits.unavailable) - missing)
    sizes = [each.wanted for each in old]
    for at, each in enumerate(old):
        given_up = min(spare, max(0, sizes[at] - each.available))
        sizes[at] -= given_up
        spare -= given_up
    serving = new.available + sum(
        min(size, each.available) for size, each in zip(sizes, old, strict=True)
    )
    spare = min(spare, max(0, serving - (replicas - limits.unavailable)))
    for at, size in enumerate(sizes):
        taken = min(spare, size)
        sizes[at] -= taken
        spare -= taken
    return sizes


def _share(value: str | int, of: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    part = int(value.removesuffix("%")) * of / 100
    return math.ceil(part) if up else math.floor(part)
