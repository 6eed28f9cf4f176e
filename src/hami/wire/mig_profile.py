"""Names of MIG profiles, such as `3g.40gb`, and of the resources that ask for them.

A profile is a number of compute slices (of seven) and the gigabytes that come with them; NVIDIA's
device plugin offers each as a resource of its own. What a pod gets in its place, where no card is
cut that way, is a share of the same size.
"""

from __future__ import annotations

import re

import msgspec

from hami.wire import errors

RESOURCE_PREFIX = "nvidia.com/mig-"

_SLICES = 7
#: Percent of the name's gibibytes. The names are rounded up; so many of these shares fit on a card
#: as instances would (two of 3g.40gb on one with 81559 MiB).
_OF_THE_NAME = 98
_MIB_PER_GIB = 1024

_PROFILE = re.compile(r"([1-7])g\.([1-9][0-9]{0,3})gb", re.ASCII)


class Profile(msgspec.Struct, frozen=True):
    """A kind of MIG instance, and the share that stands in for it."""

    name: str
    #: MiB of a share in its place.
    memory: int
    #: Percent of compute of a share in its place; 100 is a whole card.
    cores: int

    @property
    def resource(self) -> str:
        return f"{RESOURCE_PREFIX}{self.name}"


def parse(name: str) -> Profile:
    """Read a profile's name."""
    found = _PROFILE.fullmatch(name)
    if found is None:
        raise errors.WireError(
            "MIG profile",
            name,
            "is not SLICESg.GIGABYTESgb with 1 to 7 slices",
            "write it as `nvidia-smi mig -lgip` lists it, for example 1g.10gb",
        )
    slices, gibibytes = int(found[1]), int(found[2])
    return Profile(
        name=name,
        memory=gibibytes * _MIB_PER_GIB * _OF_THE_NAME // 100,
        cores=slices * 100 // _SLICES,
    )
