"""Items of a list, found in its bytes while they arrive.

    splitter = ItemSplitter()
    for chunk in chunks:
        items = splitter.feed(chunk)
    items, envelope = splitter.end()

A server may send a whole list at once, hundreds of megabytes. Neither all its bytes nor all its
objects are ever in memory: what remains is the item that has not ended, and the envelope, which is
the list with no items. An item is one JSON value of any kind; its bytes are not decoded here.

Keys may come in any order, with any spaces. A list that cannot be split (`items` twice, no object,
no JSON) is an error, as it is for a decoder of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from hami.kube import errors, transport
from hami.wire import codec
from hami.wire import errors as wire_errors

_SPACE = re.compile(rb"[ \t\n\r]*")
_ITEMS = "items"

#: A step that ends when the bytes so far are not enough, and goes on with more.
_Step = Generator[None, None, None]


class ItemSplitter:
    """Feed it the chunks of one list, and get its items as they end."""

    def __init__(self, limit: int = transport.LIMIT) -> None:
        self._limit = limit
        #: Bytes that were looked at in vain, or not at all.
        self._data = b""
        self._at = 0
        #: Chunks that were not looked at yet, and their length.
        self._waiting: list[bytes] = []
        self._waiting_length = 0
        #: Bytes without which another look would be in vain.
        self._needed = 0
        self._found: list[bytes] = []
        self._envelope = bytearray()
        self._ended = False
        self._steps = self._document()
        next(self._steps)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the items that end in this chunk, or before it.

        Raises WireError for what is no list, and StreamBroken for an item beyond all measure.
        """
        self._waiting.append(chunk)
        self._waiting_length += len(chunk)
        pending = len(self._data) - self._at + self._waiting_length
        if pending > self._limit:
            raise errors.StreamBroken(
                f"an item of a list has more than {self._limit} bytes; is this an API server?"
            )
        if pending >= self._needed:
            self._go_on()
        return self._take()

    def head(self) -> bytes:
        """Return the envelope as far as it is known while items arrive; empty before."""
        return bytes(self._envelope) + b"]}" if self._envelope.endswith(b"[") else b""

    def end(self) -> tuple[list[bytes], bytes]:
        """Return the last items and the envelope; raises WireError for a list that was cut."""
        self._go_on()
        if not self._ended:
            raise wire_errors.WireError("list", self._data, "is no JSON object, or was cut")
        return self._take(), bytes(self._envelope)

    def _take(self) -> list[bytes]:
        found, self._found = self._found, []
        return found

    def _go_on(self) -> None:
        self._data = b"".join([self._data[self._at :], *self._waiting])
        self._at = 0
        self._waiting.clear()
        self._waiting_length = 0
        next(self._steps)

    # The document. Each step reads on from `_at`.

    def _document(self) -> _Step:
        yield from self._punctuation(b"{")
        seen = False
        while (yield from self._next()) != b"}" or len(self._envelope) > 1:
            raw = yield from self._value()
            key = codec.decode(raw, str, what="key of a list")
            self._envelope += raw
            yield from self._punctuation(b":")
            if key == _ITEMS and seen:
                raise wire_errors.WireError("list", b"", "has items twice")
            if key == _ITEMS and (yield from self._next()) == b"[":
                seen = True
                yield from self._items()
            else:
                self._envelope += yield from self._value()
            if (yield from self._next()) == b"}":
                break
            yield from self._punctuation(b",")
        yield from self._punctuation(b"}")
        self._ended = True
        yield from self._next()
        raise wire_errors.WireError("list", self._data[self._at :], "has more after its end")

    def _items(self) -> _Step:
        yield from self._punctuation(b"[")
        if (yield from self._next()) != b"]":
            while True:
                item = yield from self._value()
                self._found.append(item)
                if (yield from self._next()) == b"]":
                    break
                self._at += 1
                if self._data[self._at - 1 : self._at] != b",":
                    raise wire_errors.WireError("list", self._data, "has no comma between items")
        yield from self._punctuation(b"]")

    def _next(self) -> Generator[None, None, bytes]:
        """Return the next character that is no space, without reading it."""
        while True:
            space = _SPACE.match(self._data, self._at)
            assert space is not None  # it matches nothing, too
            self._at = space.end()
            if self._at < len(self._data):
                return self._data[self._at : self._at + 1]
            self._needed = 0
            yield

    def _punctuation(self, character: bytes) -> _Step:
        found = yield from self._next()
        if found != character:
            raise wire_errors.WireError(
                "list", self._data, f"has {found!r} where {character!r} belongs"
            )
        self._at += 1
        self._envelope += character

    def _value(self) -> Generator[None, None, bytes]:
        """Read one value."""
        while True:
            left = memoryview(self._data)[self._at :]
            length = codec.value_length(left)
            if length:
                value = bytes(left[:length]).strip(b" \t\n\r")
                self._at += length
                return value
            # Each look reads from the value's beginning: twice the bytes, so that the sum of all
            # looks stays in proportion to the value.
            self._needed = 2 * len(left)
            yield
