"""The shape of kubelet's device checkpoint, and the checksum that tells whether it really is that.

kubelet hashes (FNV-1a, 32 bits) its data as a dumper of Go values writes them: type names, field
names and values in one line. So the checksum fits only if the types are those we know: it finds a
damaged file and a kubelet whose types are others.

FNV goes byte by byte, which is slow in Python, and a byte of our own answers is up to four bytes of
that line. But of a hash only the lowest byte meets the next byte in another way than by sum and
product (`(hash xor byte) * PRIME`). So for a fixed text and a given lowest byte the whole way is
`hash * factor + summand`, and texts that come again and again (octets as numbers, names of fields)
are taken in one step each, with a table of 256 summands.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable

import msgspec

_START, _PRIME, _MASK = 0x811C9DC5, 0x01000193, 0xFFFFFFFF
_NIL = b"<nil>"


class PodEntry(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={
        "pod_uid": "PodUID",
        "container": "ContainerName",
        "resource": "ResourceName",
        "device_ids": "DeviceIDs",
        "answer": "AllocResp",
    },
):
    pod_uid: str
    container: str
    resource: str
    #: By NUMA node; -1: the plugin names none. Go writes null for what was never set.
    device_ids: dict[int, list[str] | None] | None
    answer: bytes | None


class Data(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"entries": "PodDeviceEntries", "registered": "RegisteredDevices"},
):
    entries: list[PodEntry] | None
    #: The healthy ids of every resource that a plugin has registered.
    registered: dict[str, list[str] | None] | None


class File(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"data": "Data", "checksum": "Checksum"},
):
    data: Data
    checksum: int


class _Known:
    """A text that is hashed in one step."""

    __slots__ = ("factor", "summands")

    def __init__(self, size: int, ends: array[int]) -> None:
        self.factor = pow(_PRIME, size, 1 << 32)
        self.summands = array(
            "I", ((end - low * self.factor) & _MASK for low, end in enumerate(ends))
        )

    def after(self, value: int) -> int:
        return (value * self.factor + self.summands[value & 0xFF]) & _MASK


def _ends(text: bytes, starts: Iterable[int] = range(256)) -> array[int]:
    """Return where a text leads to from each of these hashes."""
    ends = array("I", starts)
    for byte in text:
        ends = array("I", ((value ^ byte) * _PRIME & _MASK for value in ends))
    return ends


@functools.lru_cache(maxsize=64)
def _known(text: str) -> _Known:
    """Return a word of kubelet's, or a resource's name: a node knows a handful."""
    data = text.encode()
    return _Known(len(data), _ends(data))


@functools.cache
def _octets() -> list[tuple[int, array[int]]]:
    """Return factor and summands of every octet, as it is written after another: 256 KiB."""
    ends = {b" ": _ends(b" ")}
    for text in (b" %d" % octet for octet in range(256)):  # 1 comes before 12, and 12 before 123
        ends[text] = _ends(text[-1:], ends[text[:-1]])
    known = (_Known(len(b" %d" % octet), ends[b" %d" % octet]) for octet in range(256))
    return [(each.factor, each.summands) for each in known]


def _plain(value: int, data: bytes) -> int:
    for byte in data:
        value = (value ^ byte) * _PRIME & _MASK
    return value


def of(data: Data) -> int:
    """Return the checksum that kubelet gives this data."""
    value = _known("(checkpoint.checkpointData){PodDeviceEntries:").after(_START)
    value = _known("([]checkpoint.PodDevicesEntry)").after(value)
    if data.entries is None:
        value = _plain(value, _NIL)
    else:
        between = "[{"
        for entry in data.entries:
            value = _known(f"{between}PodUID:(string)").after(value)
            value = _entry(value, entry)
            between = "} {"
        value = _plain(value, b"}]" if data.entries else b"[]")
    registered = _lists(sorted((data.registered or {}).items()))
    if data.registered is None:
        registered = _NIL
    value = _known(" RegisteredDevices:(map[string][]string)").after(value)
    return _plain(value, registered + b"}")


def _entry(value: int, entry: PodEntry) -> int:
    value = _plain(value, entry.pod_uid.encode())
    value = _known(" ContainerName:(string)").after(value)
    value = _plain(value, entry.container.encode())
    value = _known(f" ResourceName:(string){entry.resource}").after(value)
    value = _known(" DeviceIDs:(checkpoint.DevicesPerNUMA)").after(value)
    ids = entry.device_ids
    value = _plain(value, _NIL if ids is None else _lists(sorted(ids.items())))
    value = _known(" AllocResp:([]uint8)").after(value)
    if entry.answer is None:
        return _plain(value, _NIL)
    # What is between brackets begins with a space less than our octets do.
    value = _plain(value, b"[%d" % entry.answer[0] if entry.answer else b"[")
    octets = _octets()
    for octet in entry.answer[1:]:
        factor, summands = octets[octet]
        value = (value * factor + summands[value & 0xFF]) & _MASK  # `after`, without a call
    return _plain(value, b"]")


def _lists(pairs: Iterable[tuple[str | int, list[str] | None]]) -> bytes:
    """Write a map to lists; Go orders texts by their bytes, which is Python's order of texts."""
    written = (
        f"{key}:{'<nil>' if texts is None else '[' + ' '.join(texts) + ']'}" for key, texts in pairs
    )
    return f"map[{' '.join(written)}]".encode()
