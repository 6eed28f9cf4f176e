"""Cost of a request by the kind of connection that it comes over.

    python -m benchmarks.connections [--requests 300] [--names 10]

kube-scheduler keeps two idle connections to an extender (Go's default). In a burst more /bind
requests than that are under way, and most of them open a connection of their own. Each kind is
measured on a server of its own in this process, with a client in another; the baseline is plain
HTTP over connections that are kept. CPU time is the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import multiprocessing.connection
import pathlib
import ssl
import tempfile
import time
from typing import NamedTuple

import uvloop

from hami.serving.certificates import LiveCertificate
from hami.serving.http_server import Request, Response, Route, Server
from tests.authority import Authority

ANSWER = b'{"NodeNames":["node-1"]}'


class Kind(NamedTuple):
    name: str
    tls: bool
    new: bool


KINDS = (
    Kind("plain, kept", tls=False, new=False),
    Kind("plain, new each time", tls=False, new=True),
    Kind("TLS, kept", tls=True, new=False),
    Kind("TLS, new each time", tls=True, new=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--names", type=int, default=10, help="node names in a body")
    arguments = parser.parse_args()
    names = ",".join(f'"simulated-{number}"' for number in range(arguments.names))
    body = f'{{"NodeNames":[{names}]}}'.encode()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(compare(pathlib.Path(folder), arguments.requests, body))


async def compare(folder: pathlib.Path, requests: int, body: bytes) -> None:
    certificate, key = Authority("benchmark").issue("localhost")
    (folder / "crt").write_text(certificate)
    (folder / "key").write_text(key)
    baseline = 0.0
    print(f"{requests} requests of {len(body)} bytes, CPU time of the server for each:")
    for kind in KINDS:
        live = LiveCertificate(str(folder / "crt"), str(folder / "key")) if kind.tls else None
        cpu, wall = await measure(kind, live, requests, body)
        baseline = baseline or cpu
        print(
            f"  {kind.name}: {cpu * 1e3:.2f} ms, {cpu / baseline:.1f} times the baseline "
            f"(answered after {wall * 1e3:.2f} ms)"
        )


async def measure(
    kind: Kind, tls: LiveCertificate | None, requests: int, body: bytes
) -> tuple[float, float]:
    """Return the server's CPU time and the time to the answer, in seconds a request."""
    server = Server([Route("POST", "/bind", _answer)], tls=tls)
    await server.start("127.0.0.1", 0)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    # Not forked: the client must not share this process's event loop.
    spawning = multiprocessing.get_context("spawn")
    client = spawning.Process(target=_client, args=(theirs, server.port, kind, requests, body))
    client.start()
    await asyncio.to_thread(ours.recv)  # it has started, and its first request was answered
    begin = time.process_time()
    wall: float = await asyncio.to_thread(ours.recv)
    used = time.process_time() - begin
    client.join()
    await server.stop()
    return used / requests, wall


async def _answer(_: Request) -> Response:
    return Response(body=ANSWER)


def _client(
    pipe: multiprocessing.connection.Connection, port: int, kind: Kind, requests: int, body: bytes
) -> None:
    uvloop.run(_ask(pipe, port, kind, requests, body))


async def _ask(
    pipe: multiprocessing.connection.Connection, port: int, kind: Kind, requests: int, body: bytes
) -> None:
    # As kube-scheduler is configured by the chart: the certificate is not checked.
    context = ssl._create_unverified_context() if kind.tls else None  # noqa: S323, SLF001 - as reported
    message = (
        f"POST /bind HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    begin = 0.0
    for number in range(requests + 1):
        if streams is None or kind.new:
            if streams is not None:
                streams[1].close()
            streams = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        reader, writer = streams
        writer.write(message)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(ANSWER))
        if not number:
            pipe.send(0.0)
            begin = time.perf_counter()
    pipe.send((time.perf_counter() - begin) / requests)


if __name__ == "__main__":
    main()
