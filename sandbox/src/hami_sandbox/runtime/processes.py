"""Processes of containers, safely: none is signalled that has taken over the number of another."""

from __future__ import annotations

import contextlib
import os
import signal

from hami_sandbox import proc
from hami_sandbox.runtime.records import MARK

#: Looking again finds what was forked meanwhile; who forks faster than that is not a container.
_MOST_ROUNDS = 20


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor of a process, readable when it has ended; None: there is none."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def kill_marked(container: str) -> None:
    """Kill every process that has a container's mark: its shim is dead and cannot."""
    mark = f"{MARK}={container}".encode()
    for _ in range(_MOST_ROUNDS):
        found = [int(each.name) for each in proc.folders() if mark in proc.environ(each)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
