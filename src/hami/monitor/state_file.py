"""A container's state file, as far as it is in use and alive.

Only the beginning that processes have used is read, by offset. A slot counts while its process
holds its lock, which the kernel drops however the process ends; we only ask for locks and never
take one. The file is read until two readings agree, or for a few times: then it is a moment's
picture, whose parts may be an allocation apart.
"""

from __future__ import annotations

from pathlib import Path

from hami.monitor.unreadable import UnreadableError
from hami.node import files, slot_locks
from hami.wire import region

_READINGS = 3
#: As the agent makes it: no process has looked for a card yet.
_UNUSED = region.State(
    nonce=0,
    boot_id="",
    policy_generation=0,
    unknown_entry_points=0,
    recoveries=0,
    devices=(),
    slots=(),
)


def read(path: Path) -> region.State | None:
    """Return the state with its living slots; None where there is no file."""
    try:
        with files.untrusted(path) as (handle, size):
            return _read(handle, size) if size else _UNUSED
    except files.UntrustedFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _read(handle: int, size: int) -> region.State:
    if size < region.STATE_SIZE:
        raise UnreadableError("truncated", f"has {size} bytes of {region.STATE_SIZE}")
    data = b""
    for _ in range(_READINGS):
        before, data = data, _used_part(handle)
        if data == before:
            break
    return region.decode_state(
        data, file_size=size, wanted=lambda slot: slot_locks.any_held(handle, slot, 1)
    )


def _used_part(handle: int) -> bytes:
    head = files.read_at(handle, region.STATE_HEAD_SIZE, 0)
    if len(head) < region.STATE_HEAD_SIZE:
        raise UnreadableError("truncated", "was cut off while it was read")
    wanted = region.state_bytes_used(head)
    data = files.read_at(handle, wanted, 0)
    if len(data) < wanted:
        raise UnreadableError("truncated", "was cut off while it was read")
    # More slots may have come into use since: they wait for the next reading.
    return head + data[len(head) :]
