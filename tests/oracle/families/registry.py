"""The families of the oracle, in the order of the product's table of vendors."""

from __future__ import annotations

from tests.oracle.families import (
    amd,
    biren,
    cambricon,
    drs,
    gcu,
    hygon,
    iluvatar,
    nvidia,
    vgcu,
)
from tests.oracle.families.family import Family

FAMILIES: tuple[Family, ...] = (
    nvidia.FAMILY,
    cambricon.FAMILY,
    hygon.FAMILY,
    gcu.FAMILY,
    drs.FAMILY,
    vgcu.FAMILY,
    amd.FAMILY,
    biren.FAMILY,
    iluvatar.FAMILY,
)
VENDORS = tuple(vendor for family in FAMILIES for vendor in family.vendors)

WITHOUT: frozenset[str] = frozenset()
"""Names of built-in rows that have no reference yet; a test demands that no other row lacks one."""


def family(name: str) -> Family:
    (found,) = (each for each in FAMILIES if each.name == name)
    return found
