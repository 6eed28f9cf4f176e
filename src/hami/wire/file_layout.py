"""Byte layout of policy and state files: C structs as tables, field by field.

native/libvgpu/abi.h has the same layout in C, with the writer of each field, and field names here
are those in C; tests/native/test_abi.py holds the two equal. Little endian, natural alignment.
`policy_file` and `state_file` give the fields their meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from hami.wire import errors

MAX_CARDS = 16
MAX_PROCESSES = 1024
#: Byte of the state file whose lock belongs to the first process entry.
LOCK_BASE = 1 << 40

POLICY_MAGIC = 0x31594C4F50494D41
POLICY_VERSION = 1
STATE_MAGIC = 0x3145544154534D41
STATE_VERSION = 1


class Layout:
    """One C struct: its fields in order, as `struct` codes; padding is a field of its own."""

    def __init__(self, *fields: tuple[str, str]) -> None:
        self.names = tuple(name for name, _ in fields)
        self._packed = struct.Struct("<" + "".join(code for _, code in fields))
        self.size = self._packed.size
        #: Offset and size of each field.
        self.places: dict[str, tuple[int, int]] = {}
        offset = 0
        for name, code in fields:
            size = struct.calcsize("<" + code)
            self.places[name] = (offset, size)
            offset += size

    def pack(self, **values: int | bytes) -> bytes:
        """Write the struct; fields that are not given are zero."""
        codes = zip(self.names, self._blank(), strict=True)
        return self._packed.pack(*(values.get(name, blank) for name, blank in codes))

    def unpack(self, data: bytes | memoryview, offset: int = 0) -> dict[str, int | bytes]:
        """Read one struct, by field."""
        return dict(zip(self.names, self._packed.unpack_from(data, offset), strict=True))

    def rows(
        self, data: bytes | memoryview, offset: int, count: int
    ) -> Iterator[dict[str, int | bytes]]:
        """Read `count` consecutive structs, each by field."""
        names = self.names
        part = memoryview(data)[offset : offset + count * self.size]
        return (dict(zip(names, row, strict=True)) for row in self._packed.iter_unpack(part))

    def _blank(self) -> tuple[int | bytes, ...]:
        return self._packed.unpack(bytes(self.size))


def check_header(
    what: str,
    fields: Mapping[str, int | bytes],
    *,
    magic: int,
    version: int,
    size: int,
    remedy: str,
) -> None:
    """Raise WireError unless a file's first fields are those of this format and version."""
    for name, value in (("magic", magic), ("version", version), ("size", size)):
        if fields[name] != value:
            raise errors.WireError(f"{what}: {name}", fields[name], f"is not {value}", remedy)


def text(value: int | bytes) -> str:
    """Read a NUL-padded text; bytes that are no ASCII are escaped."""
    assert isinstance(value, bytes)
    return value.partition(b"\0")[0].decode("ascii", errors="backslashreplace")


POLICY_CARD = Layout(
    ("uuid", "96s"),
    ("memory_limit", "Q"),
    ("context_bytes", "Q"),
    ("core_limit", "I"),
    ("reserved0", "4s"),
    ("reserved", "40s"),
)
POLICY = Layout(
    ("magic", "Q"),
    ("version", "I"),
    ("size", "I"),
    ("generation", "Q"),
    ("flags", "I"),
    ("device_count", "I"),
    ("priority", "i"),
    ("reserved0", "4s"),
    ("pod_uid", "64s"),
    ("pod_namespace", "64s"),
    ("pod_name", "256s"),
    ("container", "64s"),
    ("devices", f"{MAX_CARDS * POLICY_CARD.size}s"),
    ("reserved", "120s"),
    ("reserved1", "4s"),
    ("crc32", "I"),
)
PROCESS_USAGE = Layout(
    ("overhead", "Q"),
    ("linear", "Q"),
    ("managed", "Q"),
    ("pool", "Q"),
    ("vmm", "Q"),
    ("array", "Q"),
    ("graph", "Q"),
    ("pending", "Q"),
    ("peak", "Q"),
    ("reserved", "24s"),
)
PROCESS_ENTRY = Layout(
    ("epoch", "Q"),
    ("pid", "i"),
    ("host_pid", "i"),
    ("start_time", "Q"),
    ("last_kernel_time", "Q"),
    ("status", "I"),
    ("reserved0", "4s"),
    ("dead_since", "Q"),
    ("changes", "Q"),
    ("reserved", "24s"),
    ("usage", f"{MAX_CARDS * PROCESS_USAGE.size}s"),
)
STATE_CARD = Layout(
    ("uuid", "96s"),
    ("used", "Q"),
    ("limit", "Q"),
    ("context_bytes", "Q"),
    ("peak", "Q"),
    ("refused", "Q"),
    ("reserved", "40s"),
)
_STATE_HEAD = (
    ("magic", "Q"),
    ("version", "I"),
    ("size", "I"),
    ("features", "Q"),
    ("nonce", "Q"),
    ("boot_id", "40s"),
    ("policy_generation", "Q"),
    ("device_count", "I"),
    ("slots_used", "I"),
    ("lock", "64s"),
    ("writing", "I"),
    ("unknown_entry_points", "I"),
    ("recoveries", "Q"),
    ("futex", "Q"),
    ("suspicions", "Q"),
    ("reserved", "120s"),
)
#: The part before the cards: enough to know how much of the rest is in use.
STATE_HEAD = Layout(*_STATE_HEAD)
STATE = Layout(
    *_STATE_HEAD,
    ("devices", f"{MAX_CARDS * STATE_CARD.size}s"),
    ("slots", f"{MAX_PROCESSES * PROCESS_ENTRY.size}s"),
)
