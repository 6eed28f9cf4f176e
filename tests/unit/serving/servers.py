"""A server for the length of a block, and the plainest possible client."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from hami.serving.http_server import Handler, Response, Route, Server

LOCAL = "127.0.0.1"


@contextlib.asynccontextmanager
async def serving(*routes: Route, **options: Any) -> AsyncIterator[Server]:
    server = Server(routes, **options)
    await server.start(LOCAL, 0)
    try:
        yield server
    finally:
        await server.stop()


def answering(text: str) -> Handler:
    async def handler(_: object) -> Response:
        return Response.text(200, text)

    return handler


class Connection:
    """One connection, so that a test decides what goes over which, and when it ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        await self.send(head(method, path, {"Content-Length": str(len(body)), **(headers or {})}))
        await self.send(body)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read status, headers (in lower case) and body."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            key.lower(): value.strip() for key, _, value in (x.partition(":") for x in lines if x)
        }
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readline()
            await self.reader.readline()
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(first.split()[1]), headers, body


def head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: here", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@contextlib.asynccontextmanager
async def connected(
    port: int, *, tls: ssl.SSLContext | None = None, host: str = LOCAL
) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def ask(
    port: int, method: str, path: str, *, tls: ssl.SSLContext | None = None, **more: Any
) -> tuple[int, dict[str, str], bytes]:
    async with connected(port, tls=tls) as connection:
        return await connection.ask(method, path, **more)


async def until(check: Callable[[], bool]) -> None:
    """Wait until something is true; the bound only catches hangs."""
    async with asyncio.timeout(30):
        while not check():
            await asyncio.sleep(0.005)
