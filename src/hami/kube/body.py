"""A request's body that can be held back at the last moment.

A leader that was frozen between its decision and the write must not write any more. So a guard is
asked when the bytes are about to go to the socket: after waiting for a connection, after TLS, with
nothing but that write to follow. aiohttp keeps the headers back until the body comes, so a guard
that refuses has sent nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
from aiohttp.abc import AbstractStreamWriter

Guard = Callable[[], None]


class Body(aiohttp.Payload):
    def __init__(self, data: bytes, *, content_type: str, guard: Guard | None = None) -> None:
        super().__init__(data, content_type=content_type)
        self._size = len(data)
        self._data = data
        self._guard = guard
        #: Whether any of it may have left this process.
        self.sent = False
        #: What the guard raised.
        self.refusal: Exception | None = None

    async def write(self, writer: AbstractStreamWriter) -> None:
        # aiohttp repeats a PUT or DELETE by itself when a connection breaks, unless its body is
        # consumed. We do not want that: the first one may have been done.
        self._consumed = True
        if self._guard is not None:
            try:
                self._guard()
            except Exception as error:
                # Whatever it is: aiohttp wraps it, and the caller shall have it as it was.
                self.refusal = error
                raise
        self.sent = True
        await writer.write(self._data)

    async def write_with_length(
        self,
        writer: AbstractStreamWriter,
        content_length: int | None,  # noqa: ARG002 - always all of it
    ) -> None:
        await self.write(writer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._data.decode(encoding, errors)
