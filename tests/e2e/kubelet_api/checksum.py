"""The checksum of kubelet's checkpoint; kubelet drops a file without it.

kubelet hashes (FNV-1a, 32 bits) how a Go dumper writes its data: types, names and values in one
line. Checked against files that kubelet 1.36.3's own code had written (tests/unit/e2e_tools).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

_NIL = "<nil>"


def of(whole: Mapping[str, Any]) -> int:
    """Return the checksum that belongs to a checkpoint, given as parsed JSON."""
    data = whole["Data"]
    entries = _list(data["PodDeviceEntries"], _entry)
    registered = _map(data["RegisteredDevices"], str)
    dump = (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} "
        f"RegisteredDevices:(map[string][]string){registered}}}"
    )
    return fnv1a(dump.encode())


def fnv1a(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _entry(entry: Mapping[str, Any]) -> str:
    names = " ".join(
        f"{name}:(string){entry[name]}" for name in ("PodUID", "ContainerName", "ResourceName")
    )
    answer = entry["AllocResp"]
    octets = None if answer is None else list(base64.b64decode(answer))
    return (
        f"{{{names} DeviceIDs:(checkpoint.DevicesPerNUMA){_map(entry['DeviceIDs'], int)} "
        f"AllocResp:([]uint8){_list(octets, str)}}}"
    )


def _map(value: Mapping[str, list[str] | None] | None, key: Callable[[str], Any]) -> str:
    if value is None:
        return _NIL
    # Go compares strings by their bytes, which is Python's order of code points.
    parts = (f"{one}:{_list(value[one], str)}" for one in sorted(value, key=key))
    return f"map[{' '.join(parts)}]"


def _list(value: list[Any] | None, write: Callable[[Any], str]) -> str:
    return _NIL if value is None else f"[{' '.join(map(write, value))}]"
