"""Which device ids a container gets: those of the pod's init containers first, then free ones.

Among the free ones the plugin may have a preference (kubelet hears it only as far as they are
free). Whatever is left to kubelet goes by the order of a set, on which nobody can rely. NUMA nodes
do not count: that is kubelet's topology policy `none`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet

from hami_sandbox.kubelet.devices.errors import DevicesError

#: Takes the available ids, those that must be among the chosen, and how many there are to be.
Prefer = Callable[[AbstractSet[str], AbstractSet[str], int], Awaitable[AbstractSet[str]]]


async def choose(
    resource: str,
    size: int,
    *,
    healthy: AbstractSet[str],
    taken: AbstractSet[str],
    reusable: AbstractSet[str],
    prefer: Prefer,
) -> frozenset[str]:
    """Return as many ids as asked for; DevicesError: there are too few."""
    chosen: set[str] = set()

    def take(ids: Iterable[str]) -> bool:
        for id_ in ids:
            if len(chosen) == size:
                break
            chosen.add(id_)
        return len(chosen) == size

    if take(reusable):
        return frozenset(chosen)
    available = healthy - taken - chosen
    lacking = size - len(chosen)
    if len(available) < lacking:
        raise DevicesError(
            f"requested number of devices unavailable for {resource}. "
            f"Requested: {lacking}, Available: {len(available)}"
        )
    preferred = await prefer(available | chosen, frozenset(chosen), size)
    if not take(preferred & available):
        take(available)
    return frozenset(chosen)
