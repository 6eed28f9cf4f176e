"""Processes of the kernel's list, distinct from later ones of the same id."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

# Where /proc/PID/stat has them, counted after the name in brackets.
STATE, PARENT, STARTED = 0, 1, 19


@dataclass(frozen=True)
class Process:
    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process:
        return cls(pid, _stat(pid)[STARTED])

    def alive(self) -> bool:
        """Say whether it still runs; one that only waits to be collected does not."""
        try:
            fields = _stat(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return fields[STARTED] == self.started and fields[STATE] != "Z"

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.alive():
                os.kill(self.pid, number)


def every_pid() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def children_of(parent: int) -> list[int]:
    found = []
    for pid in every_pid():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if _stat(pid)[PARENT] == str(parent):
                found.append(pid)
    return found


def _stat(pid: int) -> list[str]:
    """Read the fields after the name, which may itself hold blanks and brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
