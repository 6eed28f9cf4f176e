"""kubelet's device checkpoint: which container holds which device ids.

kubelet writes it after every Allocate and every list of devices, as a new file that is renamed into
place, so what is read is complete. It is the only thing on a node that joins device ids, a pod's
UID, a container's name and our own answer, for init containers too. Entries of deleted pods stay in
it until the next write. It is no API: a file with another shape than the known one, checksum
included, is refused (kind `SHAPE`), and the node then binds by its lock.

kubelet hashes (FNV-1a, 32 bits) its data as a dumper of Go values writes them, with type names. So
the checksum fits only if kubelet's types are the known ones. Byte by byte this is slow in Python,
and a byte of an answer is up to four characters. But only the lowest byte of a hash meets the next
byte other than by sum and product (`(hash xor byte) * PRIME`). So for a fixed text and a given
lowest byte the result is `hash * factor + summand`, and texts that recur take one step each.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from hami.agent.errors import AgentError
from hami.agent.kubelet.grpc import MessageError
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami.node import layout
from hami.wire import codec, errors

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
    """A text that is hashed in one step, by a table."""

    __slots__ = ("factor", "summands")

    def __init__(self, size: int, ends: array[int]) -> None:
        self.factor = pow(_PRIME, size, 1 << 32)
        self.summands = array(
            "I", ((end - low * self.factor) & _MASK for low, end in enumerate(ends))
        )

    def after(self, value: int) -> int:
        return (value * self.factor + self.summands[value & 0xFF]) & _MASK


def _ends(text: bytes, starts: Iterable[int] = range(256)) -> array[int]:
    """Return the hash after a text, for each of these hashes before it."""
    ends = array("I", starts)
    for byte in text:
        ends = array("I", ((value ^ byte) * _PRIME & _MASK for value in ends))
    return ends


@functools.lru_cache(maxsize=64)
def _known(text: str) -> _Known:
    """Return the table of a field name or a resource name: a node has a handful."""
    data = text.encode()
    return _Known(len(data), _ends(data))


@functools.cache
def _octets() -> list[tuple[int, array[int]]]:
    """Return factor and summands of every octet, as written after another one; 256 KiB."""
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
    # The first octet in the brackets has no space before it, the tables' octets have one.
    value = _plain(value, b"[%d" % entry.answer[0] if entry.answer else b"[")
    octets = _octets()
    for octet in entry.answer[1:]:
        factor, summands = octets[octet]
        value = (value * factor + summands[value & 0xFF]) & _MASK  # `after`, without a call
    return _plain(value, b"]")


def _lists(pairs: Iterable[tuple[str | int, list[str] | None]]) -> bytes:
    """Write a map of lists; Go sorts strings by bytes, which equals Python's order of strings."""
    written = (
        f"{key}:{'<nil>' if texts is None else '[' + ' '.join(texts) + ']'}" for key, texts in pairs
    )
    return f"map[{' '.join(written)}]".encode()


_REMEDY = "restart kubelet; if this does not help, report kubelet's version to hami"


class Kind(enum.Enum):
    #: It does not exist: kubelet writes the first when a plugin has listed its devices.
    MISSING = "missing"
    UNREADABLE = "unreadable"
    #: It has another shape than kubelet is known to write, or it is damaged.
    SHAPE = "shape"
    #: One entry's answer does not decode.
    ANSWER = "answer"


class CheckpointError(AgentError):
    """The checkpoint, or an entry of it, cannot be used."""

    def __init__(self, kind: Kind, what: str, rule: str, remedy: str = "") -> None:
        super().__init__(what, rule, remedy)
        self.kind = kind


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """The device ids of one resource in one container."""

    pod_uid: str
    container: str
    resource: str
    device_ids: frozenset[str]
    #: Our answer's bytes, as kubelet keeps them.
    answer: bytes

    def response(self) -> AllocateResponse:
        """Decode our answer to Allocate; CheckpointError names the container."""
        try:
            return AllocateResponse.decode(self.answer)
        except MessageError as error:
            raise CheckpointError(
                Kind.ANSWER,
                f"kubelet's checkpoint, container {self.container!r} of pod {self.pod_uid}",
                f"the answer for its {self.resource} ({len(self.answer)} bytes) does not decode: "
                f"{error}",
                "delete the pod to start it again",
            ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    entries: tuple[Entry, ...]
    #: The healthy device ids of every resource that a plugin has registered.
    registered: Mapping[str, frozenset[str]]


#: The last result, by path. A burst of starts reads the same file many times, and checking it takes
#: a hundred times as long as reading. Bytes are compared because file times are too coarse for a
#: kubelet that writes several times within a tick.
_last: dict[Path, tuple[bytes, Checkpoint]] = {}


def read(path: Path) -> Checkpoint:
    """Read and check kubelet's file; CheckpointError says what is wrong."""
    what = f"kubelet's checkpoint {path}"
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(
            Kind.MISSING,
            what,
            "does not exist; kubelet writes it when a device plugin has registered",
            "check --kubelet-dir if a plugin has registered",
        ) from error
    except OSError as error:
        raise CheckpointError(
            Kind.UNREADABLE, what, f"cannot be read: {error.strerror}", "run the agent as root"
        ) from error
    last = _last.get(path)
    if last is not None and last[0] == content:
        return last[1]
    checkpoint = parse(content, what=what)
    _last[path] = content, checkpoint
    return checkpoint


def parse(content: bytes, *, what: str = "kubelet's checkpoint") -> Checkpoint:
    try:
        file = codec.decode(content, File, what=what)
    except errors.WireError as error:
        raise CheckpointError(
            Kind.SHAPE, what, f"is not what kubelet is known to write: {error}", _REMEDY
        ) from error
    expected = of(file.data)
    if file.checksum != expected:
        raise CheckpointError(
            Kind.SHAPE,
            f"{what} ({len(content)} bytes)",
            f"has checksum {file.checksum}, but its content makes {expected}: it is damaged, or "
            "this kubelet has other types than hami knows",
            _REMEDY,
        )
    return Checkpoint(
        entries=tuple(
            Entry(
                entry.pod_uid,
                entry.container,
                entry.resource,
                frozenset(id_ for ids in (entry.device_ids or {}).values() for id_ in ids or ()),
                entry.answer or b"",
            )
            for entry in file.data.entries or ()
        ),
        registered={
            resource: frozenset(ids or ()) for resource, ids in (file.data.registered or {}).items()
        },
    )


def allocation_id_of(response: AllocateResponse) -> str | None:
    """Return the allocation id that an answer names; None: it names none, or two."""
    named = {response.annotations.get(layout.ALLOCATION_ANNOTATION)}
    for device in response.cdi_devices:
        kind, _, name = device.partition("=")
        if kind == layout.CDI_KIND:
            named.add(name)
    named.discard(None)
    allocation_id = named.pop() if len(named) == 1 else None
    return (
        allocation_id
        if allocation_id is not None and layout.is_allocation_id(allocation_id)
        else None
    )
