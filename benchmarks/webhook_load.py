"""Load of `benchmarks.webhook`: reviews on kept-alive TLS connections.

kube-apiserver speaks HTTP/1.1 to a webhook that offers nothing newer, with one request at a time on
a connection, and keeps connections for the next one. A client library would spend as long on a call
as the webhook, so this is a bare protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pathlib
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast

import msgspec
import uvloop

#: As many as may be open at once to one webhook without being closed again, in client-go.
CONNECTIONS = 25
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length: "
_GOOD = b"HTTP/1.1 200 "

#: Makes the body of the next review.
Next = Callable[[], bytes]
#: Raises if an answer is not the one to be expected.
Check = Callable[[bytes], None]


class Load(msgspec.Struct, frozen=True):
    """What came of many reviews; seconds."""

    reviews: int
    p50: float
    p99: float
    #: Reviews in a second of the clock, and in a second of the webhook's CPU.
    rate: float
    cpu_rate: float
    #: The part of the time in which the webhook could have run, and another process had its core.
    disturbed: float


class Webhook(msgspec.Struct, frozen=True):
    """Where one listens, and which process it is."""

    pid: int
    port: int
    #: What its clients trust.
    authority: str


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._whole = 0
        self._answered: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not children of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or ConnectionError("the webhook hung up"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._whole:
            head, found, _ = self._received.lower().partition(_HEAD_END)
            if not found:
                return
            _, _, length = head.partition(_LENGTH)
            self._whole = len(head) + len(_HEAD_END) + int(length.split(b"\r\n", 1)[0])
        if len(self._received) >= self._whole:
            answer, self._received, self._whole = bytes(self._received), bytearray(), 0
            assert self._answered is not None
            self._answered.set_result(answer)

    async def ask(self, body: bytes) -> bytes:
        """Return the whole answer."""
        assert self._transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"POST /webhook?timeout=10s HTTP/1.1\r\nHost: webhook.hami.svc:443\r\n"
            b"User-Agent: kube-apiserver-admission\r\nContent-Length: %d\r\n"
            b"Accept: application/json, */*\r\nContent-Type: application/json\r\n\r\n%s"
            % (len(body), body)
        )
        return await self._answered

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


@contextlib.asynccontextmanager
async def _connections(webhook: Webhook, number: int) -> AsyncIterator[list[_Connection]]:
    tls = ssl.create_default_context(cadata=webhook.authority)
    loop = asyncio.get_running_loop()
    opened = []
    for _ in range(number):
        _, connection = await loop.create_connection(
            _Connection, "127.0.0.1", webhook.port, ssl=tls
        )
        opened.append(connection)
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()


def saturate(
    webhook: Webhook, review: Next, check: Check, *, seconds: float, connections: int = CONNECTIONS
) -> Load:
    """Send the next review on each connection as soon as the one before is answered."""

    async def run() -> Load:
        times: list[float] = []
        async with _connections(webhook, connections) as opened:
            begin = _Moment(webhook)

            async def repeat(connection: _Connection) -> None:
                while (sent := time.perf_counter()) < begin.clock + seconds or not times:
                    check(await _answer(connection, review()))
                    times.append(time.perf_counter() - sent)

            await asyncio.gather(*map(repeat, opened))
            return _load(times, begin, _Moment(webhook))

    with _undisturbed():
        return uvloop.run(run())


def arrive(webhook: Webhook, review: Next, check: Check, *, rate: float, seconds: float) -> Load:
    """Send reviews as they come, so many a second on average, whether the webhook follows or not.

    A time is counted from when a review came, with its wait for a connection.
    """

    async def run() -> Load:
        times: list[float] = []
        free: asyncio.Queue[_Connection] = asyncio.Queue()
        async with _connections(webhook, CONNECTIONS) as opened:
            for connection in opened:
                free.put_nowait(connection)

            async def one(came: float) -> None:
                connection = await free.get()
                check(await _answer(connection, review()))
                times.append(time.perf_counter() - came)
                free.put_nowait(connection)

            begin = _Moment(webhook)
            async with asyncio.TaskGroup() as group:
                for due in _arrivals(rate, seconds):
                    await asyncio.sleep(begin.clock + due - time.perf_counter())
                    group.create_task(one(time.perf_counter()))
            return _load(times, begin, _Moment(webhook))

    with _undisturbed():
        return uvloop.run(run())


def _arrivals(rate: float, seconds: float) -> Iterator[float]:
    chance = random.Random(int(rate))
    at = 0.0
    while (at := at + chance.expovariate(rate)) < seconds:
        yield at


async def _answer(connection: _Connection, body: bytes) -> bytes:
    answer = await connection.ask(body)
    if not answer.startswith(_GOOD):
        raise ConnectionError(f"the webhook answered {answer[:500]!r}")
    return answer


class _Moment:
    """The clock, and what the kernel has counted of the webhook by then; all in seconds."""

    def __init__(self, webhook: Webhook) -> None:
        self.cpu = self.waited = 0.0
        for thread in pathlib.Path(f"/proc/{webhook.pid}/task").iterdir():
            ran, waited, _ = (thread / "schedstat").read_text(encoding="ascii").split()
            self.cpu += int(ran) / 1e9
            self.waited += int(waited) / 1e9
        self.clock = time.perf_counter()


def _load(times: list[float], begin: _Moment, end: _Moment) -> Load:
    took = end.clock - begin.clock
    times = sorted(times)
    return Load(
        reviews=len(times),
        p50=times[len(times) // 2],
        p99=times[int(len(times) * 0.99)],
        rate=len(times) / took,
        cpu_rate=len(times) / (end.cpu - begin.cpu),
        disturbed=(end.waited - begin.waited) / took,
    )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no collection of ours be counted as the webhook's time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
