"""HAMi's shared region: its layout in two versions, and decoding.

Containers of HAMi's library still have both versions, and our monitor reads both. libvgpu writes
version 1.2 as a copy of its own numbers (native/libvgpu/mirror.c), for monitors that know no other.
Every process of the container can write the file: numbers are cut to their range, and texts to
printable characters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from hami.wire import errors
from hami.wire.file_layout import Layout
from hami.wire.shares import Share

MAGIC = 19920718
MAX_DEVICES = 16
MAX_PROCESSES = 1024

USED_V1 = Layout(
    ("context", "Q"),
    ("module", "Q"),
    ("data", "Q"),
    ("offset", "Q"),
    ("total", "Q"),
    ("reserved", "24s"),
)
UTIL_V1 = Layout(("dec", "Q"), ("enc", "Q"), ("sm", "Q"), ("reserved", "24s"))
PROCESS_V1 = Layout(
    ("pid", "i"),  # in the container; 0 is dead
    ("hostpid", "i"),
    ("used", f"{MAX_DEVICES * USED_V1.size}s"),
    ("monitorused", f"{MAX_DEVICES * 8}s"),
    ("device_util", f"{MAX_DEVICES * UTIL_V1.size}s"),
    ("status", "i"),  # 0 inactive, 1 running, 2 suspended
    ("padding", "4s"),
    ("seqlock", "Q"),  # odd while it is being written
    ("reserved", "16s"),
)
REGION_V1 = Layout(
    ("initialized_flag", "i"),  # MAGIC, written last
    ("major_version", "I"),
    ("minor_version", "I"),
    ("sm_init_flag", "i"),
    ("owner_pid", "Q"),
    ("sem", "32s"),
    ("device_num", "Q"),
    ("uuids", f"{MAX_DEVICES * 96}s"),
    ("limit", f"{MAX_DEVICES * 8}s"),  # bytes; 0 is no limit
    ("sm_limit", f"{MAX_DEVICES * 8}s"),  # percent; 100 is no limit
    ("procs", f"{MAX_PROCESSES * PROCESS_V1.size}s"),
    ("proc_num", "i"),
    ("utilization_switch", "i"),
    ("recent_kernel", "i"),
    ("priority", "i"),
    ("last_kernel_time", "q"),
    ("sem_postinit", "32s"),
)

USED_V0 = Layout(("context", "Q"), ("module", "Q"), ("data", "Q"), ("offset", "Q"), ("total", "Q"))
UTIL_V0 = Layout(("dec", "Q"), ("enc", "Q"), ("sm", "Q"))
PROCESS_V0 = Layout(
    ("pid", "i"),
    ("hostpid", "i"),
    ("used", f"{MAX_DEVICES * USED_V0.size}s"),
    ("monitorused", f"{MAX_DEVICES * 8}s"),
    ("device_util", f"{MAX_DEVICES * UTIL_V0.size}s"),
    ("status", "i"),
    ("padding", "4s"),
)
REGION_V0 = Layout(
    ("initialized_flag", "i"),
    ("sm_init_flag", "i"),
    ("owner_pid", "I"),
    ("padding", "4s"),
    ("sem", "32s"),
    ("device_num", "Q"),
    ("uuids", f"{MAX_DEVICES * 96}s"),
    ("limit", f"{MAX_DEVICES * 8}s"),
    ("sm_limit", f"{MAX_DEVICES * 8}s"),
    ("procs", f"{MAX_PROCESSES * PROCESS_V0.size}s"),
    ("proc_num", "i"),
    ("utilization_switch", "i"),
    ("recent_kernel", "i"),
    ("priority", "i"),
)


#: Bytes of the magic and, in version 1, the version's number.
MARK_SIZE = 12
#: Bytes by which a file of version 0 may be longer than the region. That version has no number.
#: HAMi takes every file between both sizes for it; but the library makes the file one byte longer
#: than the region, and a file of version 1 that was cut off is not of version 0.
_SLACK = 4096
_UUID_ROOM = 96
_UUID_SIZE = 40
_WHAT = "HAMi region"
_REMEDY = "restart the container; HAMi's library writes the file again"
_I32 = struct.Struct("<i")
#: proc_num, utilization_switch, recent_kernel, priority: first after the processes, in both.
_TAIL = struct.Struct("<iiii")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_NUMBERS = struct.Struct(f"<{MAX_DEVICES}Q")


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of one version."""

    number: int
    region: Layout
    process: Layout
    used: Layout
    util: Layout

    @property
    def tail(self) -> tuple[int, int]:
        """Offset and size of the part after the processes."""
        start, size = self.region.places["procs"]
        return start + size, self.region.size - start - size

    @property
    def head(self) -> int:
        """Size of the part before the processes."""
        return self.region.places["procs"][0]

    def offset(self, name: str) -> int:
        return self.region.places[name][0]


V1 = Version(number=1, region=REGION_V1, process=PROCESS_V1, used=USED_V1, util=UTIL_V1)
V0 = Version(number=0, region=REGION_V0, process=PROCESS_V0, used=USED_V0, util=UTIL_V0)


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One card, and the usage of it by all active processes of the container."""

    #: The card's index in the container.
    index: int
    uuid: str
    #: Bytes; 0 is no limit.
    limit: int
    #: Percent; 0 and 100 are no limit.
    cores: int
    used: int = 0
    context: int = 0
    module: int = 0
    data: int = 0
    offset: int = 0
    #: Percent, as the library measured it.
    core_used: int = 0

    @property
    def share(self) -> Share:
        return Share.from_limits(self.uuid, memory_bytes=self.limit, cores=self.cores)


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """One container's region."""

    version: int
    devices: tuple[Device, ...]
    #: Of active processes, as the container sees them.
    pids: frozenset[int]
    utilization_switch: int
    recent_kernel: int
    priority: int
    #: Unix seconds; 0 is none.
    last_kernel_time: int


def version_of(mark: bytes, size: int) -> Version:
    """Return a region's version, from its first bytes and the file's size."""
    if len(mark) < MARK_SIZE:
        raise errors.WireError(_WHAT, mark, f"is shorter than {MARK_SIZE} bytes", _REMEDY)
    magic, major = struct.unpack_from("<iI", mark)
    if magic != MAGIC:
        raise errors.WireError(f"{_WHAT}: magic", magic, f"is not {MAGIC}", _REMEDY)
    if REGION_V0.size <= size < REGION_V0.size + _SLACK:
        return V0
    if major == V1.number and size >= REGION_V1.size:
        return V1
    raise errors.WireError(
        f"{_WHAT}: version",
        major,
        f"is not known in a file of {size} bytes",
        "restart the container if the file was cut off; another version of HAMi's library needs "
        "another version of hami's monitor",
    )


def processes_used(tail: bytes) -> int:
    """Return how many process entries have been in use, from the part after them."""
    return min(max(int(_TAIL.unpack_from(tail)[0]), 0), MAX_PROCESSES)


def decode(version: Version, head: bytes, processes: bytes, tail: bytes) -> Region:
    """Read a region from its three parts; `processes` are the entries in use."""
    count = min(_U64.unpack_from(head, version.offset("device_num"))[0], MAX_DEVICES)
    pids, sums = _active(version, processes, count)
    limits = _NUMBERS.unpack_from(head, version.offset("limit"))
    cores = _NUMBERS.unpack_from(head, version.offset("sm_limit"))
    _, switch, recent_kernel, priority = _TAIL.unpack_from(tail)
    devices = [
        _device(index, uuid, limits[index], cores[index], sums[index])
        for index, uuid in enumerate(_uuids(head, version.offset("uuids"), count))
        if uuid
    ]
    return Region(
        version=version.number,
        devices=tuple(devices),
        pids=pids,
        utilization_switch=switch,
        recent_kernel=recent_kernel,
        priority=priority,
        last_kernel_time=max(_I64.unpack_from(tail, _TAIL.size)[0], 0) if version is V1 else 0,
    )


class _Sums(msgspec.Struct):
    """Usage of one card by all active processes."""

    context: int = 0
    module: int = 0
    data: int = 0
    offset: int = 0
    used: int = 0
    core_used: int = 0


def _active(version: Version, data: bytes, devices: int) -> tuple[frozenset[int], list[_Sums]]:
    """Add up the active processes; a hostile container has a thousand of them."""
    layout, pids, sums = version.process, set(), [_Sums() for _ in range(devices)]
    status_at, used_at, util_at = (
        layout.places[name][0] for name in ("status", "used", "device_util")
    )
    used = struct.Struct(f"<5Q{version.used.size - 40}x")
    util = struct.Struct(f"<16xQ{version.util.size - 24}x")
    view = memoryview(data)
    for start in range(0, len(data) - layout.size + 1, layout.size):
        if not _I32.unpack_from(data, start + status_at)[0]:
            continue
        pids.add(_I32.unpack_from(data, start)[0])
        rows = used.iter_unpack(view[start + used_at :][: devices * used.size])
        for total, row in zip(sums, rows, strict=True):
            total.context += row[0]
            total.module += row[1]
            total.data += row[2]
            total.offset += row[3]
            total.used += row[4]
        busy = util.iter_unpack(view[start + util_at :][: devices * util.size])
        for total, (percent,) in zip(sums, busy, strict=True):
            total.core_used += percent
    return frozenset(pids), sums


def _device(index: int, uuid: str, limit: int, cores: int, sums: _Sums) -> Device:
    return Device(
        index=index,
        uuid=uuid,
        limit=limit,
        cores=cores,
        **msgspec.structs.asdict(sums),
    )


def _uuids(head: bytes, start: int, count: int) -> Iterator[str]:
    """Yield the UUIDs of the cards; empty: there is none, or it is not printable."""
    for offset in range(start, start + count * _UUID_ROOM, _UUID_ROOM):
        text = head[offset : offset + _UUID_SIZE].partition(b"\0")[0]
        name = text.decode("ascii", errors="replace")
        yield name if name.isascii() and name.isprintable() else ""
