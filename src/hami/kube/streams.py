"""Answers that are read while they arrive: chunks, and the lines in them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Self

import aiohttp

from hami.kube import errors, transport


class Chunks:
    """The bytes of one answer, as they arrive; empty ones are left out."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        broken: Callable[[Exception], errors.KubeError],
    ) -> None:
        """Read an answer; `broken` makes the error for a connection that breaks."""
        self._response = response
        self._broken = broken

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error) from error
        if not chunk:
            raise StopAsyncIteration
        return chunk


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
