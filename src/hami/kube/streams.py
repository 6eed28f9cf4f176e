"""Answers that are read while they arrive: chunks, and the lines in them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Self

import aiohttp

from hami.kube import errors, transport

#: Bytes that are handed on at once: some 30 pods, which take a millisecond or two.
_PIECE = 128 * 1024


class Chunks:
    """The bytes of one answer, as they arrive; empty ones are left out.

    Much may arrive at once. It is handed on in pieces, and all other tasks run in between.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        broken: Callable[[Exception], errors.KubeError],
    ) -> None:
        """Read an answer; `broken` makes the error for a connection that breaks."""
        self._response = response
        self._broken = broken
        self._left = b""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._left:
            await asyncio.sleep(0)
            chunk = self._left
        else:
            try:
                chunk = await self._response.content.readany()
            except (aiohttp.ClientError, OSError) as error:
                raise self._broken(error) from error
        if not chunk:
            raise StopAsyncIteration
        self._left = chunk[_PIECE:]
        return chunk[:_PIECE]


class Lines:
    """The lines of one answer."""

    def __init__(self, chunks: AsyncIterator[bytes], limit: int = transport.LIMIT) -> None:
        self._chunks = chunks
        self._splitter = transport.Splitter(limit)
        self._ready: deque[bytes] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._ready:
            # Bytes without a newline at the end were cut off, and are no line.
            self._ready.extend(self._splitter.feed(await anext(self._chunks)))
        return self._ready.popleft()
