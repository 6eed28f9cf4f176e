"""The stop of a server: no new connections, requests under way end in time."""

from __future__ import annotations

import asyncio

import pytest

from hami.serving.http_server import Request, Response, Route, Server
from tests.unit.kube.following import PATIENCE_S
from tests.unit.serving import servers


class Gate:
    """A handler that waits until it is let go."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = False

    async def __call__(self, _: Request) -> Response:
        self.began.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return Response.text(200, "done")


async def started(*routes: Route, drain_timeout: float = 10) -> Server:
    server = Server(routes, drain_timeout=drain_timeout)
    await server.start(servers.LOCAL, 0)
    return server


async def refused(port: int) -> None:
    """Wait until the port is closed."""
    while True:
        try:
            _, writer = await asyncio.open_connection(servers.LOCAL, port)
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue  # the kernel had taken it, then the listener closed
        writer.close()
        await writer.wait_closed()


async def test_a_request_under_way_ends_well_while_new_connections_are_refused() -> None:
    gate = Gate()
    server = await started(Route("GET", "/", gate))
    async with servers.connected(server.port) as connection:
        await connection.send(servers.head("GET", "/", {}))
        await gate.began.wait()
        stopping = asyncio.create_task(server.stop())
        await refused(server.port)
        assert not stopping.done()
        gate.go_on.set()
        status, headers, body = await connection.answer()
        await stopping
    assert (status, headers["connection"], body) == (200, "close", b"done\n")


async def test_a_body_that_is_still_arriving_arrives() -> None:
    async def handler(request: Request) -> Response:
        return Response.text(200, str(len(request.body)))

    gate = Gate()
    server = await started(Route("POST", "/", handler), Route("GET", "/", gate))
    async with servers.connected(server.port) as uploading, servers.connected(server.port) as other:
        await uploading.send(servers.head("POST", "/", {"Content-Length": "10"}) + b"12345")
        await other.send(servers.head("GET", "/", {}))
        await gate.began.wait()  # by then both have been read
        stopping = asyncio.create_task(server.stop())
        await refused(server.port)
        await uploading.send(b"67890")
        status, headers, body = await uploading.answer()
        assert (status, headers["connection"], body) == (200, "close", b"10\n")
        gate.go_on.set()
        await other.answer()
        await stopping


async def test_a_kept_alive_connection_gets_one_more_answer_that_closes_it() -> None:
    gate = Gate()
    routes = (Route("GET", "/slow", gate), Route("GET", "/quick", servers.answering("hello")))
    server = await started(*routes)
    async with servers.connected(server.port) as slow, servers.connected(server.port) as kept:
        _, headers, _ = await kept.ask("GET", "/quick")
        assert headers.get("connection") != "close"
        await slow.send(servers.head("GET", "/slow", {}))
        await gate.began.wait()
        stopping = asyncio.create_task(server.stop())
        await refused(server.port)
        status, headers, _ = await kept.ask("GET", "/quick")
        assert (status, headers["connection"]) == (200, "close")
        assert await kept.reader.read() == b""
        gate.go_on.set()
        await slow.answer()
        await stopping


async def test_a_client_that_is_let_go_is_answered_and_its_connection_closed() -> None:
    server = await started(Route("GET", "/", servers.answering("hello")))
    async with servers.connected(server.port) as kept:
        _, headers, _ = await kept.ask("GET", "/")
        assert headers.get("connection") != "close"
        server.let_go()
        status, headers, _ = await kept.ask("GET", "/")
        assert (status, headers["connection"]) == (200, "close")
        assert await kept.reader.read() == b""
    async with servers.connected(server.port) as late:
        status, headers, _ = await late.ask("GET", "/")
        assert (status, headers["connection"]) == (200, "close")
    await server.stop()


async def test_an_idle_connection_holds_nothing_up() -> None:
    server = await started(Route("GET", "/", servers.answering("hello")), drain_timeout=3600)
    async with servers.connected(server.port) as kept:
        await kept.ask("GET", "/")
        await asyncio.wait_for(server.stop(), PATIENCE_S)
        assert await kept.reader.read() == b""


async def test_a_request_that_takes_longer_than_the_drain_is_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()
    server = await started(Route("GET", "/", gate), drain_timeout=0.01)
    async with servers.connected(server.port) as connection:
        await connection.send(servers.head("GET", "/", {}))
        await gate.began.wait()
        await asyncio.wait_for(server.stop(), PATIENCE_S)
        assert gate.cancelled
        assert await connection.reader.read() == b""
    assert "requests cancelled" in caplog.text


async def test_a_server_that_never_started_stops() -> None:
    await Server([]).stop()
