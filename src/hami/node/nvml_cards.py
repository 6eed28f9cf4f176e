"""Cards, MIG devices and links of a node, read from NVML.

The values are NVML's own; what is offered to pods is decided elsewhere. A value that only some
cards or drivers report may be missing. If any other call fails, that card, or that one MIG device,
is a `Problem` of its own.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from hami.node.nvml_library import NvmlError, ask, ask_optional

#: The remote end of an NVLink that leads to a switch instead of another card.
NVSWITCH = "switch"
_VENDOR = "NVIDIA"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """An existing MIG device of a card; hami did not create it."""

    uuid: str
    #: As NVIDIA names it: 1g.10gb.
    profile: str
    #: Bytes.
    memory: int
    gpu_instance_id: int
    compute_instance_id: int
    #: The card's UUID.
    parent: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU."""

    uuid: str
    #: NVML's index: the position in the order of the bus.
    index: int
    #: Of /dev/nvidia<minor>; None: not reported.
    minor: int | None
    #: NVML's product name, unchanged.
    name: str
    #: Bytes; 0: not reported.
    memory: int
    #: The nearest NUMA node; None: not known.
    numa: int | None
    #: As the kernel writes it: 0000:1a:00.0.
    bus_id: str
    mig_enabled: bool
    mig: tuple[MigDevice, ...] = ()

    @property
    def type(self) -> str:
        """Return the device type, as registers and metrics name it."""
        return self.name if self.name.startswith(_VENDOR) else f"{_VENDOR}-{self.name}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of one card or MIG device; the others are not affected."""

    #: The card by index or UUID, or both.
    subject: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.rule}; {self.remedy}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardLinks:
    """A card's links to the others of its node, as the card reports them."""

    uuid: str
    bus_id: str
    #: NVML's topology level by the other card's UUID; a missing one is not known.
    ancestors: Mapping[str, int]
    #: The remote end of each active NVLink: a card's bus id, or NVSWITCH.
    nvlinks: tuple[str, ...] = ()


_PCI_DEVICES = Path("/sys/bus/pci/devices")
_MIB = 1 << 20
_WORD = 64
_WORDS = 16  # 1024 NUMA nodes, as many as Linux has
_MIG_NAME = re.compile(r" MIG (\S+)$")
_NO_SUCH_PART = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def read_card(handle: Any, index: int) -> tuple[Card, list[Problem]]:
    """Read one card, and the problems of its MIG devices; NvmlError: a required call failed."""
    uuid = ask(f"UUID of GPU {index}", pynvml.nvmlDeviceGetUUID, handle)
    what = f"GPU {index} ({uuid})"
    name = ask(f"{what}, name", pynvml.nvmlDeviceGetName, handle)
    pci = ask(f"{what}, bus address", pynvml.nvmlDeviceGetPciInfo, handle)
    bus = bus_id(pci)
    memory = ask_optional(f"{what}, memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
    mode = ask_optional(f"{what}, MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
    mig_enabled = bool(mode and mode[0])
    parts, problems = _parts(handle, what, uuid) if mig_enabled else ([], [])
    card = Card(
        uuid=uuid,
        index=index,
        minor=ask_optional(f"{what}, minor number", pynvml.nvmlDeviceGetMinorNumber, handle),
        name=name,
        memory=memory.total if memory is not None else 0,
        numa=_numa(handle, what, bus),
        bus_id=bus,
        mig_enabled=mig_enabled,
        mig=tuple(parts),
    )
    return card, problems


def bus_id(pci: Any) -> str:
    """Return a bus address as the kernel writes it; NVML's text has an eight-digit domain."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def part_handles(handle: Any, what: str) -> tuple[list[Any], list[Problem]]:
    """Return the handles of a card's MIG devices. Their indexes have gaps."""
    found: list[Any] = []
    problems: list[Problem] = []
    most = ask_optional(f"{what}, MIG devices", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    for index in range(most):
        part = f"{what}, MIG device {index}"
        try:
            found.append(ask(part, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
        except NvmlError as error:
            if error.code not in _NO_SUCH_PART:
                problems.append(problem_of(error))
    return found, problems


def problem_of(error: NvmlError) -> Problem:
    return Problem(subject=error.what, rule=error.text, remedy=error.remedy)


def _parts(handle: Any, what: str, uuid: str) -> tuple[list[MigDevice], list[Problem]]:
    handles, problems = part_handles(handle, what)
    parts: list[MigDevice] = []
    for part in handles:
        try:
            parts.append(_part(part, what, uuid))
        except NvmlError as error:
            problems.append(problem_of(error))
    return parts, problems


def _part(handle: Any, card: str, parent: str) -> MigDevice:
    uuid = ask(f"UUID of a MIG device of {card}", pynvml.nvmlDeviceGetUUID, handle)
    what = f"{uuid} of {card}"
    attributes = ask(f"{what}, attributes", pynvml.nvmlDeviceGetAttributes, handle)
    name = ask(f"{what}, name", pynvml.nvmlDeviceGetName, handle)
    return MigDevice(
        uuid=uuid,
        profile=_profile(name, attributes),
        memory=attributes.memorySizeMB * _MIB,
        gpu_instance_id=ask(f"{what}, instance", pynvml.nvmlDeviceGetGpuInstanceId, handle),
        compute_instance_id=ask(
            f"{what}, compute instance", pynvml.nvmlDeviceGetComputeInstanceId, handle
        ),
        parent=parent,
    )


def _profile(name: str, attributes: Any) -> str:
    """Return the profile in the device's name; without one, it is made from the sizes."""
    if found := _MIG_NAME.search(name):
        return found[1]
    size = f"{attributes.gpuInstanceSliceCount}g.{math.ceil(attributes.memorySizeMB / 1024)}gb"
    if attributes.computeInstanceSliceCount != attributes.gpuInstanceSliceCount:
        return f"{attributes.computeInstanceSliceCount}c.{size}"
    return size


def _numa(handle: Any, what: str, bus: str) -> int | None:
    """Return the card's NUMA node, of several the first; None: not known."""
    try:
        words = ask(
            f"{what}, NUMA node",
            pynvml.nvmlDeviceGetMemoryAffinity,
            handle,
            _WORDS,
            pynvml.NVML_AFFINITY_SCOPE_NODE,
        )
    except NvmlError as error:
        if error.code == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return _numa_of_kernel(bus)
    for index, word in enumerate(words):
        if word:
            return int(index * _WORD + (word & -word).bit_length() - 1)
    return _numa_of_kernel(bus)


def _numa_of_kernel(bus: str) -> int | None:
    try:
        node = int((_PCI_DEVICES / bus / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the firmware does not say


def handle_at(index: int) -> Any:
    return ask(f"GPU {index}", pynvml.nvmlDeviceGetHandleByIndex, index)


def handle_on_bus(bus: str) -> Any:
    """Find a card by its bus address, which opens no other card."""
    return ask(f"GPU {bus}", pynvml.nvmlDeviceGetHandleByPciBusId, bus)


#: Errors of a link's state after the last link of a card.
_NO_MORE = (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED)


def read_links(
    card: Card, handle: Any, others: Sequence[tuple[Card, Any]]
) -> tuple[CardLinks, list[Problem]]:
    """Read one card's links to the others; a call that fails leaves that link out."""
    problems: list[Problem] = []
    ancestors: dict[str, int] = {}
    for other, other_handle in others:
        what = f"topology from GPU {card.uuid} to {other.uuid}"
        try:
            level = ask_optional(
                what, pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, other_handle
            )
        except NvmlError as error:
            problems.append(problem_of(error))
        else:
            if level is not None:
                ancestors[other.uuid] = level
    try:
        nvlinks = _nvlinks(card.uuid, handle)
    except NvmlError as error:
        problems.append(problem_of(error))
        nvlinks = []
    links = CardLinks(
        uuid=card.uuid, bus_id=card.bus_id, ancestors=ancestors, nvlinks=tuple(nvlinks)
    )
    return links, problems


def _nvlinks(uuid: str, handle: Any) -> list[str]:
    ends: list[str] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        what = f"NVLink {link} of GPU {uuid}"
        try:
            active = ask(what, pynvml.nvmlDeviceGetNvLinkState, handle, link)
        except NvmlError as error:
            if error.code in _NO_MORE:
                break
            raise
        if not active:
            continue
        kind = ask_optional(what, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            ends.append(NVSWITCH)
        elif (
            pci := ask_optional(what, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        ) is not None:
            ends.append(bus_id(pci))
    return ends
