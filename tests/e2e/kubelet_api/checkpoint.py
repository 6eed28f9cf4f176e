"""kubelet's device checkpoint: device ids per container and pod.

kubelet writes it (a temporary file, then renamed, so a reader sees a whole one) after each Allocate
and each list of a plugin's devices. It does not write it when a pod ends: entries of pods that are
gone stay until the next write. It knows pods by UID only, and it holds the plugin's answers.
The checksum is not judged here; `checksum.of` computes what it must be.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from google.protobuf import message

from tests.e2e.kubelet_api import device_plugin
from tests.e2e.kubelet_api.device_plugin import Allocation

PATH = device_plugin.FOLDER / "kubelet_internal_checkpoint"
NO_NUMA_NODE = -1  # kubelet's key for devices whose plugin names no NUMA node

_JSON_NAMES: dict[type, str] = {dict: "an object", int: "a number", list: "a list", str: "a string"}

T = TypeVar("T")


class CheckpointError(ValueError):
    """The checkpoint cannot be read, or is not what kubelet 1.36 writes."""


@dataclasses.dataclass(frozen=True)
class Entry:
    pod_uid: str
    container: str
    resource: str
    ids_by_numa_node: Mapping[int, tuple[str, ...]]
    answer: bytes
    """The plugin's answer as kubelet keeps it; `allocation` decodes it."""

    @property
    def device_ids(self) -> frozenset[str]:
        return frozenset(id_ for ids in self.ids_by_numa_node.values() for id_ in ids)

    def allocation(self) -> Allocation:
        """Decode the answer; CheckpointError names the container if it is none."""
        try:
            return Allocation.decode(self.answer)
        except message.DecodeError as error:
            raise CheckpointError(
                f"AllocResp of container {self.container!r} of pod {self.pod_uid} for "
                f"{self.resource} is no ContainerAllocateResponse "
                f"({len(self.answer)} bytes): {error}"
            ) from error


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    entries: tuple[Entry, ...]
    registered: Mapping[str, tuple[str, ...]]
    """The healthy device ids of each resource that a plugin has registered."""
    checksum: int

    def of_resource(self, resource: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.resource == resource)


def read(path: pathlib.Path) -> Checkpoint:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"kubelet's checkpoint cannot be read: {error}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def parse(text: bytes | str) -> Checkpoint:
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"the checkpoint is no JSON: {error}") from error
    data = _field(whole, "the checkpoint", "Data", dict)
    entries = _field(data, "Data", "PodDeviceEntries", list, empty=[])
    registered = _field(data, "Data", "RegisteredDevices", dict, empty={})
    return Checkpoint(
        tuple(_entry(one, f"PodDeviceEntries[{i}]") for i, one in enumerate(entries)),
        {name: _ids(ids, f"RegisteredDevices[{name!r}]") for name, ids in registered.items()},
        _field(whole, "the checkpoint", "Checksum", int),
    )


def _entry(entry: Any, where: str) -> Entry:
    by_node = _field(entry, where, "DeviceIDs", dict, empty={})
    answer = _field(entry, where, "AllocResp", str, empty="")
    try:
        decoded = base64.b64decode(answer, validate=True)
    except binascii.Error as error:
        raise CheckpointError(f"{where}.AllocResp is no base64: {error}") from error
    return Entry(
        _field(entry, where, "PodUID", str),
        _field(entry, where, "ContainerName", str),
        _field(entry, where, "ResourceName", str),
        {
            _node(node, f"{where}.DeviceIDs"): _ids(ids, f"{where}.DeviceIDs[{node!r}]")
            for node, ids in by_node.items()
        },
        decoded,
    )


def _node(key: str, where: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise CheckpointError(f"{where}: key {key!r} is no NUMA node; -1 means none") from None


def _ids(ids: Any, where: str) -> tuple[str, ...]:
    if ids is None:
        return ()
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        _wrong(where, ids, "a list of device ids")
    return tuple(ids)


def _field(holder: Any, where: str, name: str, kind: type[T], empty: T | None = None) -> T:
    """Take a field of an object; Go writes null for what is empty, where `empty` says it may be."""
    if not isinstance(holder, dict):
        _wrong(where, holder, f"an object with {name}")
    if name not in holder:
        raise CheckpointError(f"{where} has no {name}, only {sorted(holder)}")
    value = holder[name]
    if value is None and empty is not None:
        return empty
    if not isinstance(value, kind) or isinstance(value, bool):
        _wrong(f"{where}.{name}", value, _JSON_NAMES[kind])
    return value


def _wrong(where: str, value: Any, wanted: str) -> NoReturn:
    shown = json.dumps(value)[:80]
    raise CheckpointError(f"{where} is {shown} where kubelet writes {wanted}")
