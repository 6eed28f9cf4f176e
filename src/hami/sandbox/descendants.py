"""The processes below us, also those whose parent has died: found, waited for, ended.

With the kernel's "child subreaper" an orphan becomes the child of its nearest living ancestor that
asked for it, not of process 1. So a supervisor can tell when everything that it started is over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from hami.sandbox import proc

_STEP_S = 0.02


def descendants(pid: int) -> list[int]:
    """List everybody below a process, parents before their children.

    By the parents that /proc tells: not every kernel lists children.
    """
    below: dict[int, list[int]] = {}
    for child, parent in _parents():
        below.setdefault(parent, []).append(child)
    found: list[int] = []
    rest = below.get(pid, [])
    while rest:
        found += rest
        rest = [child for parent in rest for child in below.get(parent, ())]
    return found


def await_end(seconds: float, mark: str) -> None:
    """Wait until nobody with a mark is below us; who lives on after that time is killed.

    The mark is a line of the environment that a process was started with. All below a process that
    has it count as well. Other children of ours are none of our business here.
    """
    end = time.monotonic() + seconds
    ours: set[int] = set()
    while True:
        below = descendants(os.getpid())
        marked = [pid for pid in below if mark.encode() in proc.environ(proc.PROC / str(pid))]
        # Noted once: a process that is about to end has no environment any more.
        ours.update(marked, *map(descendants, marked))
        ours &= {pid for pid in below if not _reaped(pid, ours)}
        if not ours:
            return
        if time.monotonic() >= end:
            for pid in ours:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_STEP_S)


def _reaped(pid: int, ours: set[int]) -> bool:
    """Take note of a process that has ended; a child's child is its parent's to take note of."""
    if pid not in ours:
        return False
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False


def _parents() -> Iterator[tuple[int, int]]:
    """Give every process with its parent."""
    for folder in proc.folders():
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield int(folder.name), int(proc.stat(folder)[proc.PARENT])
