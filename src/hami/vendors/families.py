"""The families of a table of vendors, and the ones that a pod concerns.

Most pods have nothing to do with most vendors. So a pod's resources and annotations are looked up
in the table, and not each vendor in the pod: a fleet of many vendors costs a pod of one no more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from hami.vendors.amd import Amd
from hami.vendors.cambricon import Cambricon
from hami.vendors.enflame import Drs, Vgcu
from hami.vendors.family import Family, Plain
from hami.vendors.iluvatar import Iluvatar
from hami.vendors.nvidia import Nvidia
from hami.vendors.table import Vendor
from hami.wire import objects

FAMILIES: dict[str, Callable[[Vendor], Family]] = {
    "": Plain,
    "amd": Amd,
    "cambricon": Cambricon,
    "enflame-drs": Drs,
    "enflame-vgcu": Vgcu,
    "iluvatar": Iluvatar,
    "nvidia": Nvidia,
}
"""By `Vendor.family`; a row without one is plain."""


def of(vendor: Vendor) -> Family:
    """Make the family of a vendor."""
    return FAMILIES[vendor.family](vendor)


class Families(Mapping[str, Family]):
    """Families by vendor name, in the order of the table."""

    def __init__(self, vendors: Iterable[Vendor]) -> None:
        self._families = {vendor.name: of(vendor) for vendor in vendors}
        self.vendors = {name: family.vendor for name, family in self._families.items()}
        #: Name of a resource, and of a device list -> names of the vendors, mostly one.
        self._resources: dict[str, tuple[str, ...]] = {}
        self._lists: dict[str, tuple[str, ...]] = {}
        self._order = {name: number for number, name in enumerate(self._families)}
        for name, vendor in self.vendors.items():
            for resource in vendor.resources.named():
                self._resources[resource] = (*self._resources.get(resource, ()), name)
            if key := vendor.annotations.allocated:
                self._lists[key] = (*self._lists.get(key, ()), name)

    def __getitem__(self, name: str) -> Family:
        return self._families[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._families)

    def __len__(self) -> int:
        return len(self._families)

    def words(self) -> list[str]:
        """Return annotations and resources of which every pod with cards has one, in its JSON."""
        asking = [name for family in self.values() for name in family.asking()]
        return [*self._lists, *dict.fromkeys(asking)]

    def of_pod(self, pod: objects.Pod, containers: Iterable[objects.Container]) -> list[Family]:
        """Return the families whose cards a pod asks for, or has a list of."""
        found: dict[str, None] = {}
        lists = self._lists
        for key in pod.annotations:
            if key in lists:
                for name in lists[key]:
                    found[name] = None
        for container in containers:
            self._asked(container, found)
        return [self._families[name] for name in self.sorted(found)]

    def of_container(self, container: objects.Container) -> list[Family]:
        """Return the families of which a container names any resource."""
        found: dict[str, None] = {}
        self._asked(container, found)
        return [self._families[name] for name in self.sorted(found)]

    def sorted(self, names: Collection[str]) -> Collection[str]:
        """Return names of vendors in the order of the table."""
        return names if len(names) < 2 else sorted(names, key=self._order.__getitem__)  # noqa: PLR2004

    def _asked(self, container: objects.Container, found: dict[str, None]) -> None:
        resources = container.resources
        if resources is None:
            return
        known = self._resources
        for part in (resources.limits, resources.requests):
            for resource in part or ():
                if resource in known:
                    for name in known[resource]:
                        found[name] = None
