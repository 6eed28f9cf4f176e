"""The two files between the node agent and a container's processes: `policy` and `state`.

The agent writes `policy` and the library obeys it, so it carries a checksum, and what breaks a rule
is refused when it is written. `state` is written by every process of the container, also by a
hostile one: it is read whole, from bytes, and nothing in it is believed beyond its own range.

A slot counts only while its process holds the lock on byte LOCK_BASE + slot of the file; whoever
reads a state asks the kernel for that and leaves the other slots out.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Sequence

import msgspec

from hami.wire import errors
from hami.wire.file_layout import (
    LOCK_BASE,
    MAX_DEVICES,
    MAX_SLOTS,
    POLICY,
    POLICY_DEVICE,
    POLICY_MAGIC,
    POLICY_SIZE,
    POLICY_VERSION,
    SLOT,
    STATE,
    STATE_DEVICE,
    STATE_HEAD,
    STATE_MAGIC,
    STATE_SIZE,
    STATE_VERSION,
    USAGE,
    Layout,
)

__all__ = [
    "LOCK_BASE",
    "MAX_DEVICES",
    "MAX_SLOTS",
    "POLICY_SIZE",
    "STATE_HEAD_SIZE",
    "STATE_SIZE",
    "Flag",
    "Policy",
    "PolicyDevice",
    "Slot",
    "State",
    "StateDevice",
    "Usage",
    "decode_policy",
    "decode_state",
    "encode_policy",
    "state_bytes_used",
]

STATE_HEAD_SIZE = STATE_HEAD.size

_U64 = (1 << 64) - 1
_NO_CORE_LIMIT = 100
_PID = struct.Struct("<i")
_STATE = "state file"
_STATE_REMEDY = "leave it to the container's next process, which makes it anew"


class Flag(enum.IntFlag):
    """Bits of a policy."""

    OVERSUBSCRIBE = 1 << 0
    FORCE_CORES = 1 << 1
    IGNORE_CORES = 1 << 2


class PolicyDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What a container may have of one card."""

    uuid: str
    #: Bytes; 0 is no limit.
    memory_limit: int
    #: Bytes that a context costs on this card; 0 is not known.
    context_bytes: int = 0
    #: Percent of the card's time; 0 and 100 are no limit.
    core_limit: int = 0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What a container may have, in the order in which it sees its cards."""

    #: Rises with every change: running processes take over only a higher one.
    generation: int
    devices: tuple[PolicyDevice, ...]
    flags: Flag = Flag(0)
    #: 0 is high, 1 is low.
    priority: int = 0
    pod_uid: str = ""
    pod_namespace: str = ""
    pod_name: str = ""
    container: str = ""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one process has on one card, by what they are for."""

    overhead: int
    linear: int
    managed: int
    pool: int
    vmm: int
    array: int
    graph: int
    pending: int
    peak: int

    @property
    def total(self) -> int:
        """What counts against the limit."""
        parts = (self.overhead, self.linear, self.managed, self.pool)
        return sum(parts) + self.vmm + self.array + self.graph + self.pending


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A process as it describes itself; `index` says which lock proves that it lives."""

    index: int
    epoch: int
    #: As the container sees it.
    pid: int
    host_pid: int
    start_time: int
    last_kernel_time: int
    status: int
    usage: tuple[Usage, ...]


class StateDevice(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    used: int
    limit: int
    context_bytes: int
    peak: int
    refused: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of a container say of themselves."""

    nonce: int
    boot_id: str
    policy_generation: int
    unknown_entry_points: int
    recoveries: int
    devices: tuple[StateDevice, ...]
    #: Those with a pid, living or not.
    slots: tuple[Slot, ...]


def encode_policy(policy: Policy) -> bytes:
    """Write a policy file; refuse what the library would have to refuse or misread."""
    what = "policy"
    _in_range(what, "generation", policy.generation, 1, _U64)
    _in_range(what, "priority", policy.priority, -(1 << 31), (1 << 31) - 1)
    if Flag.FORCE_CORES in policy.flags and Flag.IGNORE_CORES in policy.flags:
        raise errors.WireError(what, policy.flags, "both forces and ignores cores", "set one")
    _check_devices(policy.devices)
    packed = POLICY.pack(
        magic=POLICY_MAGIC,
        version=POLICY_VERSION,
        size=POLICY.size,
        generation=policy.generation,
        flags=int(policy.flags),
        device_count=len(policy.devices),
        priority=policy.priority,
        devices=b"".join(_encode_device(device) for device in policy.devices),
        **{
            name: _text(POLICY, f"policy {name}", name, getattr(policy, name))
            for name in ("pod_uid", "pod_namespace", "pod_name", "container")
        },
    )
    body = packed[: POLICY.places["crc32"][0]]
    return body + struct.pack("<I", zlib.crc32(body))


def decode_policy(data: bytes) -> Policy:
    """Read a policy file as strictly as the library does."""
    what = "policy file"
    remedy = "write it again with encode_policy and rename it into place"
    fields = _header(what, data, POLICY, magic=POLICY_MAGIC, version=POLICY_VERSION, remedy=remedy)
    if len(data) != POLICY.size:
        raise errors.WireError(what, data, f"has not {POLICY.size} bytes", remedy)
    found = zlib.crc32(data[: POLICY.places["crc32"][0]])
    if fields["crc32"] != found:
        raise errors.WireError(
            what, fields["crc32"], f"is not the checksum of its bytes, {found}", remedy
        )
    count = int(fields["device_count"])
    _in_range(what, "device_count", count, 1, MAX_DEVICES)
    rows = (
        POLICY_DEVICE.unpack(data, offset)
        for offset in _offsets(POLICY, "devices", POLICY_DEVICE, count)
    )
    devices = tuple(
        PolicyDevice(
            uuid=_string(row["uuid"]),
            memory_limit=int(row["memory_limit"]),
            context_bytes=int(row["context_bytes"]),
            core_limit=int(row["core_limit"]),
        )
        for row in rows
    )
    _check_devices(devices)
    return Policy(
        generation=int(fields["generation"]),
        devices=devices,
        flags=Flag(int(fields["flags"]) & sum(Flag)),
        priority=int(fields["priority"]),
        pod_uid=_string(fields["pod_uid"]),
        pod_namespace=_string(fields["pod_namespace"]),
        pod_name=_string(fields["pod_name"]),
        container=_string(fields["container"]),
    )


def state_bytes_used(head: bytes) -> int:
    """Tell how many bytes of a state file hold anything, from its first STATE_HEAD_SIZE bytes.

    The file has room for a thousand processes, and mostly one or two have used it.
    """
    fields = _state_head(head, region_size=STATE.size)
    return STATE.places["slots"][0] + min(int(fields["slots_used"]), MAX_SLOTS) * SLOT.size


def decode_state(
    data: bytes,
    *,
    file_size: int | None = None,
    wanted: Callable[[int], bool] | None = None,
) -> State:
    """Read a state file; it may be longer than its size, and counts are cut to their range.

    Where `data` is only the file's beginning, `file_size` is what the whole has. Slots with a pid
    are read if `wanted`, given their index, says so.
    """
    fields = _state_head(data, region_size=len(data) if file_size is None else file_size)
    count = min(int(fields["device_count"]), MAX_DEVICES)
    used = min(int(fields["slots_used"]), MAX_SLOTS)
    needed = STATE.places["slots"][0] + used * SLOT.size
    if len(data) < needed:
        raise errors.WireError(_STATE, data, f"is shorter than {needed} bytes", _STATE_REMEDY)
    return State(
        nonce=int(fields["nonce"]),
        boot_id=_string(fields["boot_id"]),
        policy_generation=int(fields["policy_generation"]),
        unknown_entry_points=int(fields["unknown_entry_points"]),
        recoveries=int(fields["recoveries"]),
        devices=tuple(
            map(_decode_state_device, STATE_DEVICE.rows(data, STATE.places["devices"][0], count))
        ),
        slots=tuple(
            _decode_slot(data, offset, index, count)
            for index, offset in enumerate(_offsets(STATE, "slots", SLOT, used))
            if _PID.unpack_from(data, offset + SLOT.places["pid"][0])[0] > 0
            if wanted is None or wanted(index)
        ),
    )


def _state_head(data: bytes, *, region_size: int) -> dict[str, int | bytes]:
    if region_size < STATE.size or len(data) < STATE_HEAD.size:
        raise errors.WireError(_STATE, data, f"is shorter than {STATE.size} bytes", _STATE_REMEDY)
    fields = STATE_HEAD.unpack(data)
    _check_head(
        _STATE,
        fields,
        {"magic": STATE_MAGIC, "version": STATE_VERSION, "size": STATE.size},
        _STATE_REMEDY,
    )
    return fields


def _offsets(layout: Layout, name: str, row: Layout, count: int) -> range:
    """Where the first `count` elements of an array begin."""
    start = layout.places[name][0]
    return range(start, start + count * row.size, row.size)


def _header(
    what: str, data: bytes, layout: Layout, *, magic: int, version: int, remedy: str
) -> dict[str, int | bytes]:
    if len(data) < layout.size:
        raise errors.WireError(what, data, f"is shorter than {layout.size} bytes", remedy)
    fields = layout.unpack(data)
    expected = {"magic": magic, "version": version, "size": layout.size}
    _check_head(what, fields, expected, remedy)
    return fields


def _check_head(
    what: str, fields: dict[str, int | bytes], expected: dict[str, int], remedy: str
) -> None:
    for name, value in expected.items():
        if fields[name] != value:
            raise errors.WireError(f"{what}: {name}", fields[name], f"is not {value}", remedy)


def _encode_device(device: PolicyDevice) -> bytes:
    return POLICY_DEVICE.pack(
        uuid=_text(POLICY_DEVICE, "policy device", "uuid", device.uuid),
        memory_limit=device.memory_limit,
        context_bytes=device.context_bytes,
        core_limit=device.core_limit,
    )


def _check_devices(devices: Sequence[PolicyDevice]) -> None:
    _in_range("policy", "number of devices", len(devices), 1, MAX_DEVICES)
    for device in devices:
        what = f"policy device {errors.shorten(device.uuid)}"
        if not device.uuid:
            raise errors.WireError(what, device.uuid, "is empty", "name the card by NVML's UUID")
        _in_range(what, "memory_limit", device.memory_limit, 0, _U64)
        _in_range(what, "context_bytes", device.context_bytes, 0, _U64)
        _in_range(what, "core_limit", device.core_limit, 0, _NO_CORE_LIMIT)
    uuids = [device.uuid for device in devices]
    for uuid in uuids:
        if uuids.count(uuid) > 1:
            raise errors.WireError(
                "policy", uuid, "is there twice", "add up what the container has of one card"
            )


def _decode_state_device(row: dict[str, int | bytes]) -> StateDevice:
    return StateDevice(
        uuid=_string(row["uuid"]),
        used=int(row["used"]),
        limit=int(row["limit"]),
        context_bytes=int(row["context_bytes"]),
        peak=int(row["peak"]),
        refused=int(row["refused"]),
    )


def _decode_slot(data: bytes, offset: int, index: int, devices: int) -> Slot:
    row = SLOT.unpack(data, offset)
    start = offset + SLOT.places["usage"][0]
    return Slot(
        index=index,
        epoch=int(row["epoch"]),
        pid=int(row["pid"]),
        host_pid=max(int(row["host_pid"]), 0),
        start_time=int(row["start_time"]),
        last_kernel_time=int(row["last_kernel_time"]),
        status=int(row["status"]),
        usage=tuple(map(_decode_usage, USAGE.rows(data, start, devices))),
    )


def _decode_usage(row: dict[str, int | bytes]) -> Usage:
    return msgspec.convert(row, Usage)


def _in_range(what: str, name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise errors.WireError(f"{what}: {name}", value, f"is not {low} to {high}", "correct it")


def _text(layout: Layout, what: str, name: str, value: str) -> bytes:
    room = layout.places[name][1] - 1  # a NUL ends it
    if not value.isascii() or not (value.isprintable() or not value) or len(value) > room:
        raise errors.WireError(
            what, value, f"is not at most {room} printable ASCII characters", "correct it"
        )
    return value.encode()


def _string(value: int | bytes) -> str:
    """Read a NUL-padded text that may hold anything."""
    assert isinstance(value, bytes)
    return value.partition(b"\0")[0].decode("ascii", errors="backslashreplace")
