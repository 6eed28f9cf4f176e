"""MIG: names of profiles, and the slices of a pod.

A profile such as `3g.40gb` is a number of compute slices (of seven) and the gigabytes that come
with them; NVIDIA's device plugin offers each as a resource. Where no card has such instances, a pod
gets a share of the same size instead.

A pod's slices are an annotation. The scheduler writes profile and placement on a card; the device
plugin adds the instance it made: MIG UUID, GPU instance and compute instance, all three or none,
where 0 is a real instance. Containers are counted with init containers first, devices by their
index in the container's part of the device list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from hami.wire import codec, errors, node_register, text_values

RESOURCE_PREFIX = "nvidia.com/mig-"

_SLICES = 7
#: Percent of the gibibytes in a name. Names are rounded up; with this, as many shares as instances
#: fit on a card (two of 3g.40gb on one with 81559 MiB).
_OF_THE_NAME = 98
_MIB_PER_GIB = 1024

_PROFILE = re.compile(r"([1-7])g\.([1-9][0-9]{0,3})gb", re.ASCII)
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
    return _checked(map(_without_empty_uuid, found), what)


def encode_allocations(allocations: Iterable[Allocation]) -> str:
    """Write the slices of a pod; raise WireError for one that could not be read back."""
    return codec.encode_text(_checked(allocations, "MIG allocations"))


def _without_empty_uuid(allocation: Allocation) -> Allocation:
    """Take an empty MIG UUID for none."""
    if allocation.mig_uuid == "":
        return msgspec.structs.replace(allocation, mig_uuid=None)
    return allocation


def _checked(allocations: Iterable[Allocation], what: str) -> tuple[Allocation, ...]:
    seen: dict[tuple[int, int], Allocation] = {}
    for allocation in allocations:
        at = (allocation.container_index, allocation.device_index)
        rule = _broken_rule(allocation)
        if rule is None and at in seen:
            rule = "has the container and device index of another entry"
        if rule is not None:
            raise errors.WireError(what, allocation, rule)
        seen[at] = allocation
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


class Profile(msgspec.Struct, frozen=True):
    """A kind of MIG instance, and the share that replaces it."""

    name: str
    #: MiB of that share.
    memory: int
    #: Percent of compute of that share; 100 is a whole card.
    cores: int

    @property
    def resource(self) -> str:
        return f"{RESOURCE_PREFIX}{self.name}"


def parse_profile(name: str) -> Profile:
    """Read the name of a profile."""
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
