"""The processes below us, also those whose parent has died: found, waited for, ended.

With the kernel's "child subreaper" an orphan becomes the child of its nearest living ancestor that
asked for it, not of process 1. So a supervisor can tell when everything that it started is over.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_STEP_S = 0.02


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_CHILD_SUBREAPER)")


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
        marked = [pid for pid in below if mark.encode() in _environ(pid)]
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


def _environ(pid: int) -> list[bytes]:
    """Return the environment that a process was started with; an ended one has none."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _parents() -> Iterator[tuple[int, int]]:
    """Give every process with its parent."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (folder / "stat").read_bytes()
                yield int(folder.name), int(stat.rpartition(b")")[2].split()[1])
