"""Processes of containers as the node sees them: state file, control group.

Only the part of a state file that processes have used is read, by offset. A process entry counts
while its process holds its lock, which the kernel drops when the process ends; locks are asked for
and never taken. A file is read until two reads agree, at most three times: after that it is a
snapshot whose parts may be an allocation apart.

A process can change its mounts but cannot leave its control group, which has pod and container as
kubelet and the runtime wrote them, with the cgroupfs driver and with systemd's.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

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
_UID = rb"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(
    rb"[/-]pod(" + _UID + rb")(?:\.slice)?(?:[/:](?:[a-z][a-z-]*[-:])?([0-9a-f]{64}))?"
)


class UnreadableError(Exception):
    """A file cannot be used; `reason` is one word for the counter."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


class CgroupPod(msgspec.Struct, frozen=True):
    """A pod in the path of a control group, and the runtime's id of the container, or empty."""

    uid: str
    container_id: str


def cgroup_pods(cgroup: bytes) -> tuple[CgroupPod, ...]:
    """Read pods and containers from the content of /proc/<pid>/cgroup."""
    found = (
        CgroupPod(uid.decode().replace("_", "-"), container.decode())
        for uid, container in _POD.findall(cgroup)
    )
    return tuple(dict.fromkeys(found))


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
