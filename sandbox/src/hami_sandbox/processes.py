"""Descendant processes: find, wait for, kill; fields of /proc.

This includes processes whose parent has ended: with the kernel's "child subreaper" an orphan
becomes the child of its nearest living ancestor that asked for it, not of process 1. So a
supervisor knows when everything that it started has ended.
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
    """Yield the folder of every process; its name is the pid."""
    return (each for each in proc.iterdir() if each.name.isdecimal())


def stat(process: Path) -> list[bytes]:
    """Return the fields of a process behind its name; raises OSError once it has ended."""
    return (process / "stat").read_bytes().rpartition(b")")[2].split()


def environ(process: Path) -> list[bytes]:
    """Return the environment that a process was started with.

    Empty for another user's process, and for one that is ending.
    """
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


_STEP_S = 0.02


def descendants(pid: int) -> list[int]:
    """List all descendants of a process, parents before their children.

    By the parents in /proc: not every kernel lists children.
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
    """Find our descendants that have a mark, and all their descendants.

    The mark is a line of the environment that a process was started with.
    """
    having = [pid for pid in descendants(os.getpid()) if mark.encode() in environ(PROC / str(pid))]
    return {*having, *(pid for each in having for pid in descendants(each))}


def await_end(seconds: float, mark: str, known: Collection[int] = ()) -> None:
    """Wait until no marked descendant is left; after that time kill them.

    `known` were found before they were asked to end: a process that is ending has no environment
    any more, and its children may have become ours. Our other children are not waited for.
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
    """Reap a process that has ended; a grandchild is reaped by its own parent."""
    if pid not in ours:
        return False
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False


def _parents() -> Iterator[tuple[int, int]]:
    """Yield every process with its parent."""
    for folder in folders():
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield int(folder.name), int(stat(folder)[PARENT])
