"""State files of containers, with the processes that live: read, never locked.

Only the part of a state file that processes have used is read, by offset. A process entry counts
while its process holds its lock, which the kernel drops when the process ends; locks are asked for
and never taken. A file is read until two reads agree, at most three times: after that it is a
snapshot whose parts may be an allocation apart.
"""

from __future__ import annotations

from pathlib import Path

from hami.node import files
from hami.wire import state_file
from hami.wire.state_file import State

_MOST_READS = 3
#: As the agent makes the file: no process has looked for a card yet.
_UNUSED = State(
    nonce=0,
    boot_id="",
    policy_generation=0,
    unknown_entry_points=0,
    recoveries=0,
    cards=(),
    processes=(),
)


class UnreadableError(Exception):
    """A file cannot be used; `reason` is one word for the counter."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


def read_state(path: Path) -> State | None:
    """Read a state file, without processes that have ended; None: there is no file."""
    try:
        with files.untrusted(path) as (handle, size):
            return _decoded(handle, size) if size else _UNUSED
    except files.UntrustedFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _decoded(handle: int, size: int) -> State:
    if size < state_file.SIZE:
        raise UnreadableError("truncated", f"has {size} bytes of {state_file.SIZE}")
    data = b""
    for _ in range(_MOST_READS):
        before, data = data, _used_part(handle)
        if data == before:
            break
    return state_file.decode(
        data, file_size=size, alive=lambda index: files.any_held(handle, index, 1)
    )


def _used_part(handle: int) -> bytes:
    head = files.read_at(handle, state_file.HEAD_SIZE, 0)
    if len(head) < state_file.HEAD_SIZE:
        raise UnreadableError("truncated", "was cut off while it was read")
    used = state_file.bytes_used(head)
    data = files.read_at(handle, used, 0)
    if len(data) < used:
        raise UnreadableError("truncated", "was cut off while it was read")
    # More entries may have come into use since: they wait for the next read.
    return head + data[len(head) :]
