"""How much a pod holds while its containers come and go.

Init containers run one after the other and end; sidecars start among them and stay; app containers
run together at the end. So a pod needs the largest sum that is ever alive at one time, and
Kubernetes counts the pod's resources the same way. Everything that adds up a pod (cards, quota,
device ids, node score) uses this one function.
"""

from __future__ import annotations

from collections.abc import Iterable

from hami.wire.objects import ContainerKind


def peak(steps: Iterable[tuple[ContainerKind, int]], *, init_done: bool = False) -> int:
    """Return the largest amount alive at once, for (kind, amount) in container order.

    Once the init containers have ended they count nothing; sidecars still do.
    """
    running = top = 0
    for kind, amount in steps:
        if kind is not ContainerKind.INIT:
            running += amount
        elif not init_done:
            top = max(top, running + amount)
    return max(top, running)
