"""Where the fields of the region files lie: C structs as tables, field by field.

native/libvgpu/abi.h has the same layout in C and says who writes what; tests/native/test_abi.py
holds the two equal. Little endian, natural alignment. region.py gives the fields their meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAX_DEVICES = 16
MAX_SLOTS = 1024
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
        """Write the struct; what is not given is zero."""
        codes = zip(self.names, self._blank(), strict=True)
        return self._packed.pack(*(values.get(name, blank) for name, blank in codes))

    def unpack(self, data: bytes | memoryview, offset: int = 0) -> dict[str, int | bytes]:
        return dict(zip(self.names, self._packed.unpack_from(data, offset), strict=True))

    def rows(
        self, data: bytes | memoryview, offset: int, count: int
    ) -> Iterator[dict[str, int | bytes]]:
        """Read so many of these structs that stand one behind the other."""
        names = self.names
        part = memoryview(data)[offset : offset + count * self.size]
        return (dict(zip(names, row, strict=True)) for row in self._packed.iter_unpack(part))

    def _blank(self) -> tuple[int | bytes, ...]:
        return self._packed.unpack(bytes(self.size))


POLICY_DEVICE = Layout(
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
    ("devices", f"{MAX_DEVICES * POLICY_DEVICE.size}s"),
    ("reserved", "120s"),
    ("reserved1", "4s"),
    ("crc32", "I"),
)
USAGE = Layout(
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
SLOT = Layout(
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
    ("usage", f"{MAX_DEVICES * USAGE.size}s"),
)
STATE_DEVICE = Layout(
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
#: What stands before the cards: enough to know how much of the rest is in use.
STATE_HEAD = Layout(*_STATE_HEAD)
STATE = Layout(
    *_STATE_HEAD,
    ("devices", f"{MAX_DEVICES * STATE_DEVICE.size}s"),
    ("slots", f"{MAX_SLOTS * SLOT.size}s"),
)
POLICY_SIZE = POLICY.size
STATE_SIZE = STATE.size
