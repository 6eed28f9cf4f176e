"""Connections of one client: so many for requests, and others for streams.

Requests queue for a connection here, first come, first served, and not inside of aiohttp: so a
request knows when its turn has come, and one that never had a turn was certainly not sent. Streams
(watches, and lists as they arrive) are as many as there are informers. They take no turn of a
request, and wait for none, however many requests are queued.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

from hami.kube import transport

#: Requests at once. With a write of 0.5 s on the API server that is 200 binds a second.
MOST = 100


class NoConnectionError(Exception):
    """No connection became free in time; nothing was sent."""


class Connections:
    """The sessions of a client, opened when they are needed."""

    def __init__(self, user_agent: str, most: int) -> None:
        self._user_agent = user_agent
        self._free = asyncio.Semaphore(most)
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None

    def requests(self) -> aiohttp.ClientSession:
        """Return the session of requests; each one has its `turn` first."""
        if self._requests is None or self._requests.closed:
            self._requests = transport.session(self._user_agent)
        return self._requests

    def streams(self) -> aiohttp.ClientSession:
        """Return the session of streams, which need no turn."""
        if self._streams is None or self._streams.closed:
            self._streams = transport.session(self._user_agent)
        return self._streams

    @contextlib.asynccontextmanager
    async def turn(self, seconds: float) -> AsyncIterator[None]:
        """Wait for a connection at most so many seconds, and keep it until the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._free.acquire()
        except TimeoutError:
            raise NoConnectionError from None
        try:
            yield
        finally:
            self._free.release()

    async def close(self) -> None:
        for session in (self._requests, self._streams):
            if session is not None:
                await session.close()
        self._requests = self._streams = None
