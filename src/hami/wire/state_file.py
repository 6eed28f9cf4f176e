"""The state file of a container: what its processes use of each card.

Every process of the container writes it, also a hostile one. So it is read whole, from bytes, and
each number is cut to its range. A process entry counts only while its process holds the lock on
byte LOCK_BASE + index of the file: a reader asks the kernel for these locks and leaves the other
entries out (`decode(alive=)`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from hami.wire import errors, file_layout
from hami.wire.file_layout import (
    MAX_CARDS,
    MAX_PROCESSES,
    PROCESS_ENTRY,
    PROCESS_USAGE,
    STATE,
    STATE_CARD,
    STATE_HEAD,
)

SIZE = STATE.size
#: Bytes before the cards; they say how much of the rest is in use.
HEAD_SIZE = STATE_HEAD.size

_CARDS = STATE.places["devices"][0]
_ENTRIES = STATE.places["slots"][0]
_USAGE = PROCESS_ENTRY.places["usage"][0]
_PID = struct.Struct("<i")
_PID_OFFSET = PROCESS_ENTRY.places["pid"][0]
_WHAT = "state file"
_REMEDY = "start a process in the container; it writes the file again"


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one process has on one card, by purpose."""

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
        """Bytes that count against the limit."""
        parts = (self.overhead, self.linear, self.managed, self.pool)
        return sum(parts) + self.vmm + self.array + self.graph + self.pending


class ProcessEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A process as it describes itself; the lock of `index` proves that it lives."""

    index: int
    epoch: int
    #: As the container sees it.
    pid: int
    host_pid: int
    start_time: int
    last_kernel_time: int
    status: int
    #: One for each card of the state.
    usage: tuple[ProcessUsage, ...]


class CardState(msgspec.Struct, frozen=True, kw_only=True):
    """One card, for all processes of the container together. Bytes; `refused` is a count."""

    uuid: str
    used: int
    limit: int
    context_bytes: int
    peak: int
    refused: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A container's processes and cards, as its processes describe them."""

    nonce: int
    boot_id: str
    policy_generation: int
    unknown_entry_points: int
    recoveries: int
    cards: tuple[CardState, ...]
    #: Entries with a pid, of living and dead processes.
    processes: tuple[ProcessEntry, ...]


def bytes_used(head: bytes) -> int:
    """Return how many bytes of a state file are in use, from its first HEAD_SIZE bytes.

    The file has room for a thousand processes, and mostly one or two have used it.
    """
    fields = _header(head, file_size=SIZE)
    return _ENTRIES + min(int(fields["slots_used"]), MAX_PROCESSES) * PROCESS_ENTRY.size


def decode(
    data: bytes,
    *,
    file_size: int | None = None,
    alive: Callable[[int], bool] | None = None,
) -> State:
    """Read a state file; it may be longer than its size, and counts are cut to their range.

    Where `data` is only the used part of the file, `file_size` is the size of the whole. `alive`
    is called with an entry's index, and entries for which it returns False are left out.
    """
    fields = _header(data, file_size=len(data) if file_size is None else file_size)
    count = min(int(fields["device_count"]), MAX_CARDS)
    used = min(int(fields["slots_used"]), MAX_PROCESSES)
    needed = _ENTRIES + used * PROCESS_ENTRY.size
    if len(data) < needed:
        raise errors.WireError(_WHAT, data, f"is shorter than {needed} bytes", _REMEDY)
    offsets = range(_ENTRIES, needed, PROCESS_ENTRY.size)
    return State(
        nonce=int(fields["nonce"]),
        boot_id=file_layout.text(fields["boot_id"]),
        policy_generation=int(fields["policy_generation"]),
        unknown_entry_points=int(fields["unknown_entry_points"]),
        recoveries=int(fields["recoveries"]),
        cards=tuple(map(_decode_card, STATE_CARD.rows(data, _CARDS, count))),
        processes=tuple(
            _decode_process(data, offset, index, count)
            for index, offset in enumerate(offsets)
            if _PID.unpack_from(data, offset + _PID_OFFSET)[0] > 0
            if alive is None or alive(index)
        ),
    )


def _header(data: bytes, *, file_size: int) -> dict[str, int | bytes]:
    if file_size < SIZE or len(data) < HEAD_SIZE:
        raise errors.WireError(_WHAT, data, f"is shorter than {SIZE} bytes", _REMEDY)
    fields = STATE_HEAD.unpack(data)
    file_layout.check_header(
        _WHAT,
        fields,
        magic=file_layout.STATE_MAGIC,
        version=file_layout.STATE_VERSION,
        size=SIZE,
        remedy=_REMEDY,
    )
    return fields


def _decode_card(row: dict[str, int | bytes]) -> CardState:
    return CardState(
        uuid=file_layout.text(row["uuid"]),
        used=int(row["used"]),
        limit=int(row["limit"]),
        context_bytes=int(row["context_bytes"]),
        peak=int(row["peak"]),
        refused=int(row["refused"]),
    )


def _decode_process(data: bytes, offset: int, index: int, cards: int) -> ProcessEntry:
    row = PROCESS_ENTRY.unpack(data, offset)
    return ProcessEntry(
        index=index,
        epoch=int(row["epoch"]),
        pid=int(row["pid"]),
        host_pid=max(int(row["host_pid"]), 0),
        start_time=int(row["start_time"]),
        last_kernel_time=int(row["last_kernel_time"]),
        status=int(row["status"]),
        usage=tuple(map(_decode_usage, PROCESS_USAGE.rows(data, offset + _USAGE, cards))),
    )


def _decode_usage(row: dict[str, int | bytes]) -> ProcessUsage:
    return msgspec.convert(row, ProcessUsage)
