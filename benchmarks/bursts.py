"""Time until 1,000 pods are bound on an API server with slow Bindings.

    python -m benchmarks.bursts [--pods 1000] [--nodes 100] [--latencies 0 0.02 0.5 1]

The process is the real one, `python -m hami scheduler` with a lease of its own, in front of the
stand-in API server of `benchmarks.extender`, which holds each Binding for so many seconds. The
caller does what kube-scheduler does: one /filter after the other, and each /bind at once, beside
all others. Time is from the first /filter to the last answer of /bind.

Two baselines of the same run: the time without latency, and latency x pods / connections, the least
that the connections allow. The ratio to the longer of the two is printed; its aim is at most 1.2.
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
from typing import BinaryIO

import aiohttp
import msgspec
import uvloop
from aiohttp import web

from benchmarks import extender_api, extender_fleet, extender_http, extender_processes, fleet
from hami.kube import connections
from hami.wire import codec

AIM = 1.2
_SHARE = {"gpu": 1, "memory": 1000, "cores": 1}


class Api(extender_api.Api):
    """The stand-in API server, with Bindings that take their time."""

    def __init__(self, nodes: int, latency: float) -> None:
        super().__init__(nodes, 0)
        self._latency = latency

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.endswith("/binding"):
            await asyncio.sleep(self._latency)
        return await super().answer(request)


class Burst(msgspec.Struct, frozen=True):
    """What became of one burst."""

    seconds: float
    bound: int
    errors: list[str]
    #: How often the lease was lost.
    lost: int


def main() -> None:
    arguments = _arguments()
    if arguments.serve is not None:
        uvloop.run(extender_api.serve(Api(arguments.nodes, arguments.serve), _say))
        return
    print(f"{arguments.pods} pods on {arguments.nodes} nodes, {connections.MOST} connections")
    first = None
    for latency in arguments.latencies:
        burst = _measure(arguments.nodes, arguments.pods, latency)
        first = first if first is not None else burst.seconds
        least = latency * arguments.pods / connections.MOST
        ratio = burst.seconds / max(first, least)
        kept = f"lost {burst.lost} times" if burst.lost else "kept"
        good = ratio <= AIM and not burst.errors and not burst.lost
        print(
            f"  {latency:5g} s a Binding: {burst.bound} bound in {burst.seconds:6.2f} s; "
            f"{ratio:.2f}x the longer of {least:.2f} s (latency x pods / connections) and "
            f"{first:.2f} s (the first burst); lease {kept}; {len(burst.errors)} errors; "
            f"aim {AIM:g}: {'reached' if good else 'missed'}",
            flush=True,
        )
        for error in sorted(set(burst.errors))[:3]:
            print(f"      {error}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bursts", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--latencies", type=float, nargs="+", default=[0.0, 0.02, 0.5, 1.0])
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def _say(address: str) -> None:
    print(address, flush=True)


def _measure(nodes: int, pods: int, latency: float) -> Burst:
    with tempfile.TemporaryFile() as log:
        with _api(nodes, latency) as kubeconfig, _scheduler(kubeconfig, log) as port:
            began = time.perf_counter()
            answers = uvloop.run(_burst(port, nodes, pods))
            took = time.perf_counter() - began
        log.seek(0)
        lost = log.read().count(b"lease lost")
    errors = [answer for answer in answers if answer]
    return Burst(took, len(answers) - len(errors), errors, lost)


@contextlib.contextmanager
def _api(nodes: int, latency: float) -> Iterator[pathlib.Path]:
    command = [sys.executable, "-m", "benchmarks.bursts", f"--serve={latency}", f"--nodes={nodes}"]
    with (
        tempfile.TemporaryDirectory() as folder,
        extender_processes.running(command, stdout=subprocess.PIPE) as api,
    ):
        assert api.stdout is not None
        url = api.stdout.readline().decode().strip()
        kubeconfig = pathlib.Path(folder) / "kubeconfig"
        kubeconfig.write_bytes(codec.encode(extender_processes.access_to(url)))
        yield kubeconfig


@contextlib.contextmanager
def _scheduler(kubeconfig: pathlib.Path, log: BinaryIO) -> Iterator[int]:
    port = extender_http.free_port()
    command = [sys.executable, "-m", "hami", "scheduler", f"--kubeconfig={kubeconfig}"]
    command += [f"--http_bind=127.0.0.1:{port}", "--metrics-bind-address="]
    command += ["--scheduler-name=hami-scheduler", "--grant-key-dir=", "--leader-elect=true"]
    command += ["--leader-elect-own-lease=true", "--leader-elect-resource-name=hami"]
    command += ["--leader-elect-resource-namespace=kube-system", "--shutdown-delay=0s"]
    with extender_processes.running(command, stdout=log, stderr=log) as process:
        extender_processes.wait_until(process, lambda: _is_ready(port))
        yield port


def _is_ready(port: int) -> bool:
    try:
        with contextlib.closing(extender_http.Connection(port)) as connection:
            return connection.call("GET", "/readyz")[1].rstrip().endswith(b"\nok")
    except OSError:
        return False


async def _burst(port: int, nodes: int, pods: int) -> list[str]:
    """Place pods; return the errors of their binds, empty for a success."""
    names = [fleet.node_name(number) for number in range(nodes)]
    unlimited = aiohttp.TCPConnector(limit=0)
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(
        connector=unlimited, timeout=aiohttp.ClientTimeout(600)
    ) as session:

        async def call(verb: str, body: bytes) -> dict[str, object]:
            async with session.post(f"{url}/{verb}", data=body) as answer:
                found: dict[str, object] = msgspec.json.decode(await answer.read())
                return found

        async def bind(uid: str, node: object) -> str:
            args = {"PodName": uid, "PodNamespace": "bench", "PodUID": uid, "Node": node}
            return str((await call("bind", msgspec.json.encode(args)))["Error"])

        binds = []
        for number in range(pods):
            uid = extender_fleet.uid(number, kind=9)
            pod = extender_fleet.pod_json(uid, uid, share=_SHARE)
            answer = await call(
                "filter", b'{"Pod":%s,"NodeNames":%s}' % (pod, msgspec.json.encode(names))
            )
            names_left = answer["NodeNames"]
            assert isinstance(names_left, list), answer
            binds.append(asyncio.create_task(bind(uid, names_left[0])))
        return list(await asyncio.gather(*binds))


if __name__ == "__main__":
    main()
