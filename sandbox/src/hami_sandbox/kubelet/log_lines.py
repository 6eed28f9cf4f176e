"""Reads a container's output as its log file has it: time, stream, full or part, text. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator

import msgspec

_FIELDS = 4


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What of a log is asked for."""

    tail: int | None = None
    since: float | None = None
    timestamps: bool = False
    limit: int | None = None
    stream: str = ""


def shown(line: bytes, wanted: Wanted) -> bytes | None:
    """Return what is shown of a line; None: nothing."""
    parts = line.rstrip(b"\n").split(b" ", _FIELDS - 1)
    if len(parts) < _FIELDS:
        return None
    stamp, stream, tag, text = parts
    if wanted.stream and wanted.stream.encode() != stream:
        return None
    if wanted.since is not None and _moment(stamp) < wanted.since:
        return None
    end = b"" if tag == b"P" else b"\n"
    return (stamp + b" " if wanted.timestamps else b"") + text + end


def last(lines: Iterable[bytes], wanted: Wanted) -> Iterator[bytes]:
    """Yield what is shown of the lines of a whole file: the tail of it, where that is asked."""
    kept = list(lines)
    if wanted.tail is not None:
        kept = kept[-wanted.tail :] if wanted.tail > 0 else []
    for line in kept:
        text = shown(line, wanted)
        if text is not None:
            yield text


def _moment(stamp: bytes) -> float:
    try:
        return dt.datetime.fromisoformat(stamp.decode()).timestamp()
    except ValueError:
        return 0.0
