"""An API server for `benchmarks.webhook`: nodes, in pages or as a watch.

    python -m benchmarks.webhook_api NODES CERTIFICATE KEY [pages]

It serves HTTPS as the real one does, prints its address once it serves, and changes nothing. With
`pages` it refuses a watch that begins with a list, as servers before 1.32 do.

The scripted API server of the tests cannot serve here: it copies and encodes every object for each
request, on the core of the client, and the webhook's start and its answers are measured.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

import uvloop
from aiohttp import web

from benchmarks import webhook_fleet
from hami.wire import codec

_PATH = "/api/v1/nodes"
_WHOLE = 1_000_000


class Api:
    def __init__(self, nodes: int, *, pages: bool) -> None:
        self._nodes = list(webhook_fleet.nodes(nodes))
        self._pages = pages

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != _PATH or request.method != "GET":
            return web.Response(status=404)
        if request.query.get("watch") in ("1", "true"):
            return await self._watch(request)
        first = int(request.query.get("continue") or 0)
        last = first + int(request.query.get("limit") or _WHOLE)
        metadata = {"resourceVersion": self._version}
        if last < len(self._nodes):
            metadata["continue"] = str(last)
        head = codec.encode({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata})
        body = b'%s,"items":[%s]}' % (head[:-1], b",".join(self._nodes[first:last]))
        return web.Response(body=body, content_type="application/json")

    @property
    def _version(self) -> str:
        return str(len(self._nodes))

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        with_list = "sendInitialEvents" in request.query
        if with_list and self._pages:
            return web.json_response({"kind": "Status", "code": 400}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if with_list:
            for node in self._nodes:
                await response.write(b'{"type":"ADDED","object":%s}\n' % node)
            end_of_list = {"k8s.io/initial-events-end": "true"}
            metadata = {"resourceVersion": self._version, "annotations": end_of_list}
            end = {"type": "BOOKMARK", "object": {"kind": "Node", "metadata": metadata}}
            await response.write(codec.encode(end) + b"\n")
        await asyncio.sleep(float(request.query.get("timeoutSeconds", "300")))
        return response


async def _serve(api: Api, tls: ssl.SSLContext) -> None:
    runner = web.ServerRunner(web.Server(api.answer, access_log=None, handler_cancellation=True))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    print("https://{}:{}".format(*runner.addresses[0][:2]), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    nodes, certificate, key, *rest = sys.argv[1:]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    uvloop.run(_serve(Api(int(nodes), pages=rest == ["pages"]), tls))


if __name__ == "__main__":
    main()
