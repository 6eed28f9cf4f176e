"""Reads cards and their MIG devices from NVML.

What only some cards or drivers tell may be missing; anything else that is refused makes the card,
or that one MIG device, a problem of its own.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from hami.node.cards import Card, MigDevice, Problem
from hami.node.nvml_calls import NvmlError, ask, told

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_MIB = 1 << 20
_WORD = 64
_WORDS = 16  # 1024 NUMA nodes, as many as Linux has
_MIG_NAME = re.compile(r" MIG (\S+)$")
_NO_SUCH_PART = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def read_card(handle: Any, index: int) -> tuple[Card, list[Problem]]:
    """Read one card; NvmlError if it does not tell what it must. The problems are of its parts."""
    uuid = ask(f"UUID of GPU {index}", pynvml.nvmlDeviceGetUUID, handle)
    what = f"GPU {index} ({uuid})"
    name = ask(f"{what}, name", pynvml.nvmlDeviceGetName, handle)
    pci = ask(f"{what}, bus address", pynvml.nvmlDeviceGetPciInfo, handle)
    bus = bus_id(pci)
    memory = told(f"{what}, memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
    mode = told(f"{what}, MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
    mig_enabled = bool(mode and mode[0])
    parts, problems = _parts(handle, what, uuid) if mig_enabled else ([], [])
    card = Card(
        uuid=uuid,
        index=index,
        minor=told(f"{what}, minor number", pynvml.nvmlDeviceGetMinorNumber, handle),
        name=name,
        memory=memory.total if memory is not None else 0,
        numa=_numa(handle, what, bus),
        bus_id=bus,
        mig_enabled=mig_enabled,
        mig=tuple(parts),
    )
    return card, problems


def bus_id(pci: Any) -> str:
    """Write a bus address as the kernel does; NVML's own text has eight digits in front."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def part_handles(handle: Any, what: str) -> tuple[list[Any], list[Problem]]:
    """Give the handles of a card's MIG devices. Their numbers have gaps."""
    found: list[Any] = []
    problems: list[Problem] = []
    most = told(f"{what}, MIG devices", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    for place in range(most):
        part = f"{what}, MIG device {place}"
        try:
            found.append(ask(part, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place))
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
    facts = ask(f"{what}, attributes", pynvml.nvmlDeviceGetAttributes, handle)
    name = ask(f"{what}, name", pynvml.nvmlDeviceGetName, handle)
    return MigDevice(
        uuid=uuid,
        profile=_profile(name, facts),
        memory=facts.memorySizeMB * _MIB,
        gpu_instance_id=ask(f"{what}, instance", pynvml.nvmlDeviceGetGpuInstanceId, handle),
        compute_instance_id=ask(
            f"{what}, compute instance", pynvml.nvmlDeviceGetComputeInstanceId, handle
        ),
        parent=parent,
    )


def _profile(name: str, facts: Any) -> str:
    """Take the profile from the device's name; drivers that do not say it there have sizes."""
    if found := _MIG_NAME.search(name):
        return found[1]
    size = f"{facts.gpuInstanceSliceCount}g.{math.ceil(facts.memorySizeMB / 1024)}gb"
    if facts.computeInstanceSliceCount != facts.gpuInstanceSliceCount:
        return f"{facts.computeInstanceSliceCount}c.{size}"
    return size


def _numa(handle: Any, what: str, bus: str) -> int:
    """Find the card's NUMA node: a card near several is listed with the first."""
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
    for place, word in enumerate(words):
        if word:
            return int(place * _WORD + (word & -word).bit_length() - 1)
    return _numa_of_kernel(bus)


def _numa_of_kernel(bus: str) -> int:
    try:
        return max(int((_PCI_DEVICES / bus / "numa_node").read_text()), 0)
    except (OSError, ValueError):
        return 0


def handle_at(index: int) -> Any:
    return ask(f"GPU {index}", pynvml.nvmlDeviceGetHandleByIndex, index)
