"""Responses of the server: routing, ids, errors, bodies, streams."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator

import pytest

from hami.serving.http_server import Request, Response, Route
from hami.wire import codec, correlation
from tests.unit.kube.following import PATIENCE_S
from tests.unit.serving import servers


async def echo(request: Request) -> Response:
    reply = [request.method, request.path, dict(request.query), len(request.body), request.peer]
    return Response(200, codec.encode([*reply, request.id, correlation.current()]))


async def test_a_handler_gets_the_whole_request_and_its_answer_comes_back() -> None:
    async with servers.serving(Route("POST", "/filter", echo)) as server:
        status, headers, body = await servers.ask(
            server.port,
            "POST",
            "/filter?a=1&a=2&b",
            body=b"x" * 200_000,
            headers={"X-Request-Id": "r-1"},
        )
    want = ["POST", "/filter", {"a": "1", "b": ""}, 200_000, "127.0.0.1", "r-1", "r-1"]
    assert (status, codec.decode(body, list[object], what="answer")) == (200, want)
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"] == "r-1"


@pytest.mark.parametrize("given", ["", "with space", "a" * 65, "é", 'quote"'])
async def test_an_id_that_is_none_is_replaced_by_a_new_one(given: str) -> None:
    async with servers.serving(Route("GET", "/", echo)) as server:
        ids = [
            (await servers.ask(server.port, "GET", "/", headers={"X-Request-Id": given}))[1][
                "x-request-id"
            ]
            for _ in range(2)
        ]
    assert len({*ids, given}) == 3
    assert all(len(new) == 16 for new in ids)


async def test_an_unknown_path_is_404_and_a_wrong_method_405_with_the_right_ones() -> None:
    routes = (Route("GET", "/x", echo), Route("POST", "/x", echo))
    async with servers.serving(*routes) as server, servers.connected(server.port) as connection:
        assert (await connection.ask("GET", "/y"))[0] == 404
        status, headers, body = await connection.ask("DELETE", "/x")
    assert (status, headers["allow"]) == (405, "GET, POST")
    assert codec.decode(body, dict[str, str], what="answer") == {
        "error": "this path takes GET, POST"
    }


async def test_a_failing_handler_is_500_without_internals_and_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(_: Request) -> Response:
        raise KeyError("secret")

    async with servers.serving(Route("GET", "/", handler)) as server:
        status, _, body = await servers.ask(
            server.port, "GET", "/", headers={"X-Request-Id": "broken-1"}
        )
    assert status == 500
    assert b"secret" not in body
    assert b"KeyError" not in body
    assert b"broken-1" in body
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


async def test_a_connection_survives_a_failing_handler() -> None:
    calls = iter([False, True])

    async def handler(_: Request) -> Response:
        if not next(calls):
            raise ValueError
        return Response.text(200, "fine")

    async with (
        servers.serving(Route("GET", "/", handler)) as server,
        servers.connected(server.port) as connection,
    ):
        assert (await connection.ask("GET", "/"))[0] == 500
        assert (await connection.ask("GET", "/"))[2] == b"fine\n"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413_with_limit_and_remedy(*, chunked: bool) -> None:
    route = Route("POST", "/", echo, body_limit=1000)
    async with servers.serving(route) as server, servers.connected(server.port) as connection:
        if chunked:
            await connection.send(servers.head("POST", "/", {"Transfer-Encoding": "chunked"}))
            for _ in range(3):
                await connection.send(b"1f4\r\n" + b"x" * 500 + b"\r\n")
            await connection.send(b"0\r\n\r\n")
            status, headers, body = await connection.answer()
        else:
            status, headers, body = await connection.ask("POST", "/", body=b"x" * 1001)
    assert status == 413
    assert b"1000 bytes" in body
    assert b"send less" in body
    assert headers["connection"] == "close"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_at_the_limit_is_taken(*, chunked: bool) -> None:
    route = Route("POST", "/", echo, body_limit=1000)
    async with servers.serving(route) as server, servers.connected(server.port) as connection:
        if chunked:
            await connection.send(servers.head("POST", "/", {"Transfer-Encoding": "chunked"}))
            await connection.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n")
            status, _, _ = await connection.answer()
        else:
            status, _, _ = await connection.ask("POST", "/", body=b"x" * 1000)
    assert status == 200


async def test_a_packed_body_counts_by_what_it_unpacks_to() -> None:
    route = Route("POST", "/", echo, body_limit=1000)
    packed = gzip.compress(b"x" * 100_000)
    assert len(packed) < 1000
    async with servers.serving(route) as server:
        status, _, _ = await servers.ask(
            server.port, "POST", "/", body=packed, headers={"Content-Encoding": "gzip"}
        )
    assert status == 413


async def test_a_caller_that_waits_for_leave_to_send_gets_it_or_the_refusal() -> None:
    route = Route("POST", "/", echo, body_limit=1000)
    async with servers.serving(route) as server:
        for length, want in ((10, 100), (2000, 413)):
            async with servers.connected(server.port) as connection:
                expecting = {"Content-Length": str(length), "Expect": "100-continue"}
                await connection.send(servers.head("POST", "/", expecting))
                status, _, _ = await connection.answer()
                assert status == want
                if status == 100:
                    await connection.send(b"x" * length)
                    assert (await connection.answer())[0] == 200


async def test_what_is_not_http_is_400_and_harms_no_other_caller() -> None:
    async with servers.serving(Route("GET", "/", echo)) as server:
        async with servers.connected(server.port) as connection:
            await connection.send(b"\x16\x03\x01 hello\r\n\r\n")
            assert (await connection.answer())[0] == 400
        assert (await servers.ask(server.port, "GET", "/"))[0] == 200


async def test_a_caller_that_goes_away_cancels_its_handler() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(_: Request) -> Response:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return Response()

    async with servers.serving(Route("GET", "/", handler)) as server:
        async with servers.connected(server.port) as connection:
            await connection.send(servers.head("GET", "/", {}))
            await began.wait()
        await asyncio.wait_for(cancelled.wait(), PATIENCE_S)


async def test_a_stream_arrives_in_chunks_as_they_are_made() -> None:
    go_on = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"first\n"
        await go_on.wait()
        yield b"second\n"

    async def handler(_: Request) -> Response:
        return Response(200, chunks(), "text/plain")

    async with (
        servers.serving(Route("GET", "/", handler)) as server,
        servers.connected(server.port) as connection,
    ):
        await connection.send(servers.head("GET", "/", {}))
        await connection.reader.readuntil(b"first\n")
        go_on.set()
        await connection.reader.readuntil(b"second\n\r\n0\r\n\r\n")
        go_on.set()
        assert (await connection.ask("GET", "/"))[2] == b"first\nsecond\n"


async def test_a_stream_that_fails_breaks_the_connection_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"first\n"
        raise ValueError

    async def handler(_: Request) -> Response:
        return Response(200, chunks(), "text/plain")

    async with servers.serving(Route("GET", "/", handler)) as server:
        async with servers.connected(server.port) as connection:
            await connection.send(servers.head("GET", "/", {}))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await connection.answer()
        assert [r.getMessage() for r in caplog.records] == ["response stream failed"]


async def test_a_stream_whose_reader_goes_away_is_closed() -> None:
    closed = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0)
        finally:
            closed.set()

    async def handler(_: Request) -> Response:
        return Response(200, chunks(), "text/plain")

    async with servers.serving(Route("GET", "/", handler)) as server:
        async with servers.connected(server.port) as connection:
            await connection.send(servers.head("GET", "/", {}))
            await connection.reader.readexactly(1000)
        await asyncio.wait_for(closed.wait(), PATIENCE_S)
