"""A fast API server for `benchmarks.extender`, which accepts every write.

    python -m benchmarks.extender_api NODES PLACED

It prints its address once it serves. The fleet is never checked or stored like the real thing: a
Binding is taken for granted and shown to the watches of pods, a patch of a node changes its
annotations, all else is answered and forgotten. WatchList is refused, so that lists come in pages.
Control, for the benchmark: `POST /bench/events?rate=N` sends so many changes of pods a second until
a rate is set, half of them of pods without a GPU; `GET /bench/requests` counts what has arrived.
"""

from __future__ import annotations

import asyncio
import collections
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import uvloop
from aiohttp import web

from benchmarks import extender_fleet, fleet
from hami.wire import codec

_TICK = 0.01
_WHOLE = 1_000_000
_LISTS = {
    "/api/v1/nodes": "Node",
    "/api/v1/pods": "Pod",
    "/api/v1/resourcequotas": "ResourceQuota",
}


class Api:
    def __init__(self, nodes: int, placed: int) -> None:
        self._nodes = list(extender_fleet.nodes(nodes))
        self._numbers = {fleet.node_name(number): number for number in range(nodes)}
        self._placed = list(extender_fleet.placed_pods(placed, nodes))
        self._bound: dict[str, bytes] = {}
        self._version = nodes + placed + 1
        #: Number of a placed pod -> its version, where that has changed.
        self._changed: dict[int, int] = {}
        self._watches: dict[str, set[asyncio.Queue[bytes]]] = collections.defaultdict(set)
        self._requests: collections.Counter[str] = collections.Counter()
        self._events: asyncio.Task[None] | None = None

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, query = request.path, request.query
        if path.startswith("/bench/"):
            return self._control(path, query.get("rate", "0"))
        _, _, rest = path.partition("/namespaces/")
        parts = rest.split("/")[1:]
        about = "/".join(parts[:1] + parts[2:]) or path.rsplit("/", 1)[-1]
        self._requests[f"{request.method} {about}"] += 1
        if request.method == "GET" and query.get("watch") in ("1", "true"):
            return await self._watch(request)
        if request.method == "GET":
            return self._list(path, query) if len(parts) < 2 else self._pod(parts[1])
        return self._write(request, parts, await request.read())

    def _write(self, request: web.BaseRequest, parts: list[str], body: bytes) -> web.Response:
        if request.method == "POST" and parts[2:] == ["binding"]:
            return self._bind(parts[1], body)
        if request.method == "PATCH" and request.path.startswith("/api/v1/nodes/"):
            return self._patch_node(request.path.rsplit("/", 1)[-1], body)
        if request.method == "PATCH" and parts[:1] == ["pods"]:
            body = extender_fleet.pod_json(parts[1], "patched", share={})
        status = 201 if request.method == "POST" else 200
        return web.Response(body=body, status=status, content_type="application/json")

    # Reading.

    def _list(self, path: str, query: Any) -> web.Response:
        name = path.rsplit("/", 1)[-1]
        if name in self._numbers:
            found = self._nodes[self._numbers[name]]
            return web.Response(body=found, content_type="application/json")
        first = int(query.get("continue") or 0)
        last = first + int(query.get("limit") or _WHOLE)
        items, number = self._page(path, first, last)
        metadata: dict[str, object] = {"resourceVersion": str(self._version)}
        if last < number:
            metadata["continue"] = str(last)
            metadata["remainingItemCount"] = number - last
        kind = _LISTS.get(path, "Lease")
        head = codec.encode({"kind": f"{kind}List", "apiVersion": "v1", "metadata": metadata})
        body = b'%s,"items":[%s]}' % (head[:-1], b",".join(items))
        return web.Response(body=body, content_type="application/json")

    def _page(self, path: str, first: int, last: int) -> tuple[list[bytes], int]:
        if path == "/api/v1/nodes":
            return self._nodes[first:last], len(self._nodes)
        if path != "/api/v1/pods":
            return [], 0
        pods = [
            extender_fleet.placed_json(pod, self._changed.get(at, len(self._nodes) + at + 1))
            for at, pod in enumerate(self._placed[first:last], start=first)
        ]
        bound = list(self._bound.values())
        after = len(self._placed)
        pods += bound[max(first - after, 0) : max(last - after, 0)]
        return pods, after + len(bound)

    def _pod(self, name: str) -> web.Response:
        if name in self._bound:
            return web.Response(body=self._bound[name], content_type="application/json")
        return _refusal(404, "NotFound", f"there is no {name}")

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        if "sendInitialEvents" in request.query:
            return _refusal(400, "BadRequest", "sendInitialEvents is forbidden for watch")
        seconds = float(request.query.get("timeoutSeconds", "300"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        watches = self._watches[request.path]
        watches.add(queue)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    lines = [await queue.get()]
                    while not queue.empty():
                        lines.append(queue.get_nowait())
                    await response.write(b"".join(lines))
        except TimeoutError:
            await response.write_eof()
        finally:
            watches.discard(queue)
        return response

    # Changing.

    def _bind(self, name: str, body: bytes) -> web.Response:
        binding = msgspec.json.decode(body)
        pod = extender_fleet.pod_json(
            name,
            binding["metadata"]["uid"],
            share={"gpu": 1},
            node=binding["target"]["name"],
            annotations=binding["metadata"].get("annotations"),
            version=self._next_version(),
        )
        self._bound[name] = pod
        self._send_event("/api/v1/pods", "MODIFIED", pod)
        status = b'{"kind":"Status","apiVersion":"v1","status":"Success"}'
        return web.Response(body=status, status=201, content_type="application/json")

    def _patch_node(self, name: str, body: bytes) -> web.Response:
        number = self._numbers[name]
        node = msgspec.json.decode(self._nodes[number])
        changed = msgspec.json.decode(body).get("metadata", {}).get("annotations") or {}
        annotations = {**node["metadata"]["annotations"], **changed}
        node["metadata"]["annotations"] = {k: v for k, v in annotations.items() if v is not None}
        node["metadata"]["resourceVersion"] = str(self._next_version())
        self._nodes[number] = codec.encode(node)
        self._send_event("/api/v1/nodes", "MODIFIED", self._nodes[number])
        return web.Response(body=self._nodes[number], content_type="application/json")

    def _send_event(self, path: str, what: str, obj: bytes) -> None:
        line = b'{"type":"%s","object":%s}\n' % (what.encode(), obj)
        for queue in self._watches[path]:
            queue.put_nowait(line)

    # Control.

    def _control(self, path: str, rate: str) -> web.Response:
        if path == "/bench/events":
            if self._events is not None:
                self._events.cancel()
                self._events = None
            if float(rate):
                self._events = asyncio.create_task(self._send_events(float(rate)))
        return web.json_response(dict(self._requests))

    async def _send_events(self, rate: float) -> None:
        loop = asyncio.get_running_loop()
        begin, sent = loop.time(), 0
        while True:
            while sent < (loop.time() - begin) * rate:
                self._send_event("/api/v1/pods", "MODIFIED", self._change(sent))
                sent += 1
            await asyncio.sleep(_TICK)

    def _change(self, number: int) -> bytes:
        version = self._next_version()
        if number % 2 or not self._placed:
            uid = extender_fleet.uid(number % 1000, kind=3)
            return extender_fleet.pod_json(f"plain-{uid}", uid, share={}, version=version, node="n")
        at = number // 2 % len(self._placed)
        self._changed[at] = version
        return extender_fleet.placed_json(self._placed[at], version)

    def _next_version(self) -> int:
        self._version += 1
        return self._version


def _refusal(code: int, reason: str, message: str) -> web.Response:
    status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
    return web.json_response(status | {"message": message}, status=code)


async def serve(api: Api, report: Callable[[str], None]) -> None:
    runner = web.ServerRunner(web.Server(api.answer, access_log=None, handler_cancellation=True))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    report("http://{}:{}".format(*runner.addresses[0][:2]))
    await asyncio.Event().wait()


def main() -> None:
    nodes, placed = map(int, sys.argv[1:3])

    def report(address: str) -> None:
        print(address, flush=True)

    uvloop.run(serve(Api(nodes, placed), report))


if __name__ == "__main__":
    main()
