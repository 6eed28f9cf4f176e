"""Flavours shift the weights of the scenarios.

So rare things (quota, NUMA, the second try) occur often enough. The counts at the end of
test_agreement.py show what each change here does.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flavour:
    """Chances in percent."""

    #: The node is a copy of an earlier one.
    copy: int = 30
    #: A second vendor exists.
    acme: int = 25
    #: Per card: unhealthy, cordoned, other type, mode, memory, cores or count than its node.
    trouble: int = 6
    #: The namespace has quotas.
    quota: int = 12
    numa_bind: int = 12
    #: The pod has more than one container.
    several: int = 45
    #: The pod is made of app containers that fit in one order only.
    packing: int = 0
    #: Something is asked of types, modes or ids.
    picky: int = 15
    #: Most pods that a node holds.
    placed: int = 4
    #: How many nodes there are.
    nodes: tuple[int, ...] = (1, 2, 2, 1, 3, 3, 4, 5, 6)


FLAVOURS = {
    "plain": Flavour(),
    "ties": Flavour(copy=85, trouble=0, several=25, picky=5, placed=2, quota=5),
    "trouble": Flavour(copy=10, trouble=30, picky=45),
    "quota": Flavour(quota=85, trouble=3, picky=5),
    "numa": Flavour(numa_bind=75, trouble=4, picky=5, acme=10, copy=50),
    "vendors": Flavour(acme=100, picky=8),
    "packing": Flavour(
        packing=85, copy=60, acme=10, trouble=2, picky=3, quota=5, numa_bind=5, nodes=(1, 1, 2, 3)
    ),
    "peaks": Flavour(several=95, placed=7, picky=4, trouble=2),
}
