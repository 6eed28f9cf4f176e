"""Lines out of chunks, whatever the size of either.

A watch is one JSON document per line, and a pod can be a megabyte long; aiohttp's own readline
stops at a fixed size. Every byte is looked at once, however many chunks a line spans. What follows
the last newline is no line: a stream that ends there was cut.
"""

from __future__ import annotations

from hami.kube import errors

#: Many times what etcd stores in one object.
LIMIT = 64 * 1024 * 1024


class Splitter:
    """Feed it chunks, get whole lines without their newlines; empty lines are left out."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        #: The beginning of a line, in pieces: joined once, when its end has come.
        self._begun: list[bytes] = []
        self._length = 0

    @property
    def pending(self) -> int:
        """Bytes of a line that has not ended."""
        return self._length

    def feed(self, chunk: bytes) -> list[bytes]:
        *ended, rest = chunk.split(b"\n")
        if ended and self._begun:
            ended[0] = b"".join([*self._begun, ended[0]])
            self._begun.clear()
            self._length = 0
        if rest:
            self._begun.append(rest)
            self._length += len(rest)
        if self._length > self._limit or any(len(line) > self._limit for line in ended):
            raise errors.StreamBroken(
                f"a line of more than {self._limit} bytes came; is this an API server?"
            )
        return [line for line in ended if line]
