"""A container's log in CRI's format: `<time> <stream> <P or F> <text>`, a line each.

P says that the line goes on in the next. Standard library only: loaded by every shim.
"""

# ruff: noqa: PTH103, PTH120 - pathlib costs 10 ms of every start

from __future__ import annotations

import os
import time

#: As containerd cuts lines.
LONGEST = 16 << 10


class Log:
    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._handle = os.open(path, flags, 0o640)
        self._lines = {stream: Lines(stream) for stream in ("stdout", "stderr")}

    def write(self, stream: str, data: bytes) -> None:
        """Write what is whole of it; the rest waits for its end."""
        if lines := self._lines[stream].add(data):
            os.write(self._handle, lines)

    def end(self, stream: str) -> None:
        """Write a last line that had no end."""
        if lines := self._lines[stream].end():
            os.write(self._handle, lines)


class Lines:
    """What a stream says, cut into lines of the log."""

    def __init__(self, stream: str, longest: int = LONGEST) -> None:
        self._stream = stream
        self._longest = longest
        self._begun = b""

    def add(self, data: bytes) -> bytes:
        """Return the lines that are whole now."""
        *lines, rest = (self._begun + data).split(b"\n")
        out: list[bytes] = []
        for line in lines:
            last = self._cut(line, out)
            out.append(_line(self._stream, b"F", last))
        self._begun = self._cut(rest, out)
        return b"".join(out)

    def end(self) -> bytes:
        return self.add(b"\n") if self._begun else b""

    def _cut(self, line: bytes, out: list[bytes]) -> bytes:
        while len(line) > self._longest:
            out.append(_line(self._stream, b"P", line[: self._longest]))
            line = line[self._longest :]
        return line


def _line(stream: str, tag: bytes, text: bytes) -> bytes:
    seconds, fraction = divmod(time.time_ns(), 1_000_000_000)
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{when}.{fraction:09d}Z {stream} ".encode() + tag + b" " + text + b"\n"
