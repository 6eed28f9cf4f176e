"""The family of each vendor, by the name in its row."""

from __future__ import annotations

from collections.abc import Callable

from hami.vendors.family import Family, Plain
from hami.vendors.nvidia import Nvidia
from hami.vendors.table import Vendor

FAMILIES: dict[str, Callable[[Vendor], Family]] = {
    "": Plain,
    "amd": Plain,
    "cambricon": Plain,
    "enflame-drs": Plain,
    "enflame-vgcu": Plain,
    "iluvatar": Plain,
    "nvidia": Nvidia,
}
"""By `Vendor.family`; a row without one is plain."""


def of(vendor: Vendor) -> Family:
    """Make the family of a vendor."""
    return FAMILIES[vendor.family](vendor)
