"""Memory and CPU of the scheduler until it is ready, by the way lists are sent.

    python -m benchmarks.lists [--nodes 5000] [--placed 100000] [--ways paged streamed unpaged]

The process is the real one, `python -m hami scheduler`, in front of the stand-in API server of
`benchmarks.extender`, which sends its lists in pages of 500 (paged), as the first events of a watch
(streamed: WatchList), or whole, whatever the limit (unpaged). Memory is the most that was resident,
by the kernel's count; CPU is that of the process.

The baseline, in the same run: a process that fetches the same lists in pages, with the same HTTP
client and nothing else to do, and decodes each object into the fields that the scheduler reads. The
ratios to its CPU and time are printed; the aim is at most 2, and 300 MiB at 5,000 nodes with
100,000 pods, 600 MiB at twice both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec
import uvloop
from aiohttp import web

from benchmarks import extender_api, extender_http, extender_processes
from benchmarks.extender_processes import Fake
from hami.wire import codec, objects

WAYS = ("paged", "streamed", "unpaged")
AIM = 2.0
#: MiB, by nodes and pods.
AIMS_MIB = {(5000, 100_000): 300.0, (10_000, 200_000): 600.0}
_PIECE = 500


class Api(extender_api.Api):
    """The stand-in API server, which sends its lists one way."""

    def __init__(self, nodes: int, placed: int, way: str) -> None:
        super().__init__(nodes, placed)
        self._way = way

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        query, path = request.query, request.path
        if request.method == "GET" and path in extender_api._LISTS:  # noqa: SLF001  its own paths
            if self._way == "streamed" and "sendInitialEvents" in query:
                return await self._send_initial(request)
            if self._way == "unpaged" and "watch" not in query and "page" not in query:
                return await self._send_whole(request)
        return await super().answer(request)

    async def _send_whole(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        metadata = {"resourceVersion": str(self._version)}
        head = codec.encode({"kind": "List", "apiVersion": "v1", "metadata": metadata})
        await response.write(head[:-1] + b',"items":[')
        for number, items in enumerate(self._pieces(request.path)):
            await response.write((b"," if number else b"") + b",".join(items))
        await response.write(b"]}")
        await response.write_eof()
        return response

    async def _send_initial(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for items in self._pieces(request.path):
            lines = [b'{"type":"ADDED","object":%s}\n' % item for item in items]
            await response.write(b"".join(lines))
        end = {
            "resourceVersion": str(self._version),
            "annotations": {"k8s.io/initial-events-end": "true"},
        }
        await response.write(
            codec.encode({"type": "BOOKMARK", "object": {"metadata": end}}) + b"\n"
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "300"))):
                await asyncio.Event().wait()
        return response

    def _pieces(self, path: str) -> Iterator[list[bytes]]:
        first, number = 0, 1
        while first < number:
            items, number = self._page(path, first, first + _PIECE)
            if items:
                yield items
            first += _PIECE


class Found(msgspec.Struct, frozen=True):
    """What a process took until it was ready."""

    seconds: float
    cpu: float
    peak_mib: float


def main() -> None:
    arguments = _arguments()
    if arguments.serve:
        made = Api(arguments.nodes, arguments.placed, arguments.serve)
        uvloop.run(extender_api.serve(made, _say))
        return
    if arguments.fetch:
        uvloop.run(_fetch(arguments.fetch))
        return
    print(f"{arguments.nodes} nodes, {arguments.placed} pods", flush=True)
    alone: Found | None = None
    for way in arguments.ways:
        with _api(arguments.nodes, arguments.placed, way) as fake:
            alone = alone or _fetched(fake)
            found = _started(fake)
        _print(way, found, alone, AIMS_MIB.get((arguments.nodes, arguments.placed)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lists", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--placed", type=int, default=100_000)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--fetch", help=argparse.SUPPRESS)
    return parser.parse_args()


def _say(address: str) -> None:
    print(address, flush=True)


def _print(way: str, found: Found, alone: Found, aim_mib: float | None) -> None:
    cpu, seconds = found.cpu / alone.cpu, found.seconds / alone.seconds
    memory = f"at most {found.peak_mib:.0f} MiB"
    if aim_mib is not None:
        memory += f" (aim {aim_mib:g}: {'reached' if found.peak_mib <= aim_mib else 'missed'})"
    print(
        f"  {way:8} {memory}; ready after {found.seconds:.1f} s and {found.cpu:.1f} s of CPU; "
        f"{cpu:.2f}x the CPU and {seconds:.2f}x the time of fetching and decoding alone "
        f"({alone.cpu:.1f} s, {alone.seconds:.1f} s; aim {AIM:g}: "
        f"{'reached' if cpu <= AIM else 'missed'} by CPU)",
        flush=True,
    )


@contextlib.contextmanager
def _api(nodes: int, placed: int, way: str) -> Iterator[Fake]:
    command = [sys.executable, "-m", "benchmarks.lists", f"--serve={way}"]
    command += [f"--nodes={nodes}", f"--placed={placed}"]
    with (
        tempfile.TemporaryDirectory() as folder,
        extender_processes.running(command, stdout=subprocess.PIPE) as api,
    ):
        assert api.stdout is not None
        url = api.stdout.readline().decode().strip()
        yield extender_processes.described(url, pathlib.Path(folder))


def _started(fake: Fake) -> Found:
    with extender_processes.ours(fake) as extender:
        cpu = extender_http.cpu_seconds(extender.pid)
        _, peak = extender_http.memory_mib(extender.pid)
        return Found(extender.start, cpu, peak)


# The baseline.


def _fetched(fake: Fake) -> Found:
    command = [sys.executable, "-m", "benchmarks.lists", f"--fetch={fake.url}"]
    began = time.perf_counter()
    with extender_processes.running(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seconds = time.perf_counter() - began
        cpu = extender_http.cpu_seconds(process.pid)
        _, peak = extender_http.memory_mib(process.pid)
        return Found(seconds, cpu, peak)


class _List(codec.Object, frozen=True):
    items: list[msgspec.Raw]
    metadata: dict[str, Any]


async def _fetch(url: str) -> None:
    """Fetch the lists of nodes and pods in pages, decode each object, and wait to be ended."""
    kinds: dict[str, type[Any]] = {"nodes": objects.Node, "pods": objects.Pod}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
        for resource, kind in kinds.items():
            query = {"limit": str(_PIECE), "page": "1"}
            while True:
                async with session.get(f"{url}/api/v1/{resource}", params=query) as answer:
                    page = codec.decode(await answer.read(), _List, what="list")
                for item in page.items:
                    codec.decode(bytes(item), kind, what="object")
                if not page.metadata.get("continue"):
                    break
                query["continue"] = page.metadata["continue"]
    _say("fetched")
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
