"""Processes below us and what the kernel tells of them.

What the kernel tells of processes: who there is, what one is, and how it was started.

The processes below us, also those whose parent has died: found, waited for, ended.
With the kernel's "child subreaper" an orphan becomes the child of its nearest living ancestor that
asked for it, not of process 1. So a supervisor can tell when everything that it started is over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

PROC = Path("/proc")
#: Fields of `stat`, counted from the one behind the name, which may have any character in it.
STATE, PARENT, START = 0, 1, 19


def folders(proc: Path = PROC) -> Iterator[Path]:
    """Give the folder of every process; its name is the number."""
    return (each for each in proc.iterdir() if each.name.isdecimal())


def stat(process: Path) -> list[bytes]:
    """Return the fields of a process behind its name; raises OSError once it is gone."""
    return (process / "stat").read_bytes().rpartition(b")")[2].split()


def environ(process: Path) -> list[bytes]:
    """Return the environment that a process was started with.

    Nothing of another user's, nor of one that is ending: that has none any more.
    """
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


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


def marked(mark: str) -> set[int]:
    """Find everybody below us who has a mark, or is below somebody who has it.

    The mark is a line of the environment that a process was started with.
    """
    having = [pid for pid in descendants(os.getpid()) if mark.encode() in environ(PROC / str(pid))]
    return {*having, *(pid for each in having for pid in descendants(each))}


def await_end(seconds: float, mark: str, known: Collection[int] = ()) -> None:
    """Wait until nobody marked is below us; who lives on after that time is killed.

    `known` were found before they were told to end: one that is about to end has no environment any
    more, and its children may have become ours. Other children of ours are none of our business.
    """
    end = time.monotonic() + seconds
    ours = set(known)
    while True:
        ours |= marked(mark)
        ours &= {pid for pid in descendants(os.getpid()) if not _reaped(pid, ours)}
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
    for folder in folders():
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield int(folder.name), int(stat(folder)[PARENT])
