"""Bodies that arrive slowly: they must not use up the memory of the process."""

from __future__ import annotations

import contextlib

import pytest

from hami.serving import http_server
from hami.serving.http_server import Request, Response, Route
from tests.unit.serving import servers

HALF = 4000


async def count(request: Request) -> Response:
    return Response.text(200, str(len(request.body)))


ROUTE = Route("POST", "/", count, body_limit=10_000)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_FOREIGN_BODIES", 3 * HALF)


async def test_bodies_of_other_pods_are_refused_once_they_hold_too_much() -> None:
    async with (
        servers.serving(ROUTE, is_local=lambda _: False) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        slow = []
        for _ in range(3):
            one = await stack.enter_async_context(servers.connected(server.port))
            await one.send(servers.head("POST", "/", {"Content-Length": str(HALF + 1)}))
            await one.send(b"x" * HALF)
            slow.append(one)
        await servers.until(lambda: server.foreign_bytes == 3 * HALF)
        status, headers, body = await servers.ask(server.port, "POST", "/", body=b"x")
        assert status == 503
        assert headers["connection"] == "close"
        assert b"try again" in body
        slow[0].writer.close()
        await servers.until(lambda: server.foreign_bytes == 2 * HALF)
        assert (await servers.ask(server.port, "POST", "/", body=b"x"))[0] == 200
        await slow[1].send(b"x")
        assert (await slow[1].answer())[2] == b"4001\n"
        await servers.until(lambda: server.foreign_bytes == HALF)


async def test_local_callers_are_answered_whatever_others_hold() -> None:
    peers = iter([False, True, True])
    async with (
        servers.serving(ROUTE, is_local=lambda _: next(peers)) as server,
        servers.connected(server.port) as slow,
    ):
        await slow.send(servers.head("POST", "/", {"Content-Length": "9999"}))
        await slow.send(b"x" * 9998)
        await servers.until(lambda: server.foreign_bytes == 9998)
        status, _, body = await servers.ask(server.port, "POST", "/", body=b"x" * 5000)
        assert (status, body) == (200, b"5000\n")
