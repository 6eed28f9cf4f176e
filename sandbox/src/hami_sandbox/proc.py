"""What the kernel tells of processes: who there is, what one is, and how it was started."""

from __future__ import annotations

from collections.abc import Iterator
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
