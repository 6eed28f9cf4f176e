"""MIG profile names, and which slices a pod was given.

Which MIG slices a pod was given, as a pod annotation carries it.
The scheduler writes where a slice shall be (profile and placement on a card); the device plugin
adds what came to be: MIG UUID, GPU instance and compute instance, all three or none, where 0 is a
real instance. Containers are counted with init containers first, devices by their position in
the container's slot of the device list.

Names of MIG profiles, such as `3g.40gb`, and of the resources that ask for them.
A profile is a number of compute slices (of seven) and the gigabytes that come with them; NVIDIA's
device plugin offers each as a resource of its own. What a pod gets in its place, where no card is
cut that way, is a share of the same size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from hami.wire import codec, errors, node_register, text_values

_RENAME = {
    "container_index": "containerIndex",
    "device_index": "deviceIndex",
    "gpu_uuid": "gpuUUID",
    "mig_uuid": "migUUID",
    "gpu_instance": "gpuInstanceID",
    "compute_instance": "computeInstanceID",
}


class Allocation(codec.Object, frozen=True, rename=_RENAME):
    """One slice. The order of the fields is the order on the wire."""

    container_index: int
    device_index: int
    gpu_uuid: str
    profile: str
    placement: node_register.MigPlacement
    mig_uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


def decode_allocations(value: str, *, what: str = "MIG allocations") -> tuple[Allocation, ...]:
    """Read the slices of a pod; numbers and texts that are missing or null are 0 and empty."""
    found = codec.decode_go(value, list[Allocation], what=what)
    return _checked(map(_unmade_if_unnamed, found), what)


def encode_allocations(allocations: Iterable[Allocation]) -> str:
    """Write the slices of a pod; what could not be read back is an error."""
    return codec.encode_text(_checked(allocations, "MIG allocations"))


def _unmade_if_unnamed(allocation: Allocation) -> Allocation:
    """Take an empty MIG UUID for none."""
    if allocation.mig_uuid == "":
        return msgspec.structs.replace(allocation, mig_uuid=None)
    return allocation


def _checked(allocations: Iterable[Allocation], what: str) -> tuple[Allocation, ...]:
    seen: dict[tuple[int, int], Allocation] = {}
    for allocation in allocations:
        place = (allocation.container_index, allocation.device_index)
        rule = _broken_rule(allocation)
        if rule is None and place in seen:
            rule = "takes a container's device that another entry has taken"
        if rule is not None:
            raise errors.WireError(what, allocation, rule)
        seen[place] = allocation
    return tuple(seen.values())


def _broken_rule(allocation: Allocation) -> str | None:
    """Return the rule that a slice breaks, if any."""
    numbers = (
        allocation.container_index,
        allocation.device_index,
        allocation.placement.start,
        allocation.placement.size,
        allocation.gpu_instance or 0,
        allocation.compute_instance or 0,
    )
    identity = (allocation.mig_uuid, allocation.gpu_instance, allocation.compute_instance)
    if not all(0 <= number <= text_values.INT32_MAX for number in numbers):
        return f"has a number outside 0 to {text_values.INT32_MAX}"
    if not allocation.gpu_uuid:
        return "names no GPU"
    if not allocation.profile:
        return "names no profile"
    if allocation.placement.size == 0:
        return "has a placement of size 0"
    if len({part is None for part in identity}) > 1:
        return "has only some of migUUID, gpuInstanceID and computeInstanceID"
    return None


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


def parse_profile(name: str) -> Profile:
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
