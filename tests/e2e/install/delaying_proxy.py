"""A proxy between `hami` and the API server that can make watches late.

    python -m tests.e2e.install.delaying_proxy --kubeconfig FILE --port 6080

It speaks plain HTTP on loopback, and TLS with the kubeconfig's credentials to the server. Each
piece of a watch's answer is passed on a while after it came; everything else passes at once.
`PUT /-/watch-delay` with seconds as its body changes the while at once, also for what is under way;
`?path=/pods` makes only watches late that have this in their path.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import time
from collections.abc import AsyncIterator
from http import HTTPStatus

import aiohttp
import multidict
import yarl
from aiohttp import web

from tests.kubeapi import access

CONTROL = "/-/watch-delay"
LARGEST_BODY = 64 << 20
STEP_S = 0.1
# These speak of one connection, not of the message.
HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host"}
)


class DelayingProxy:
    def __init__(self, upstream: access.Access) -> None:
        self._upstream = upstream
        self._delay = 0.0
        self._delayed_path = ""
        self._session: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY)
        app.cleanup_ctx.append(self._connected)
        app.router.add_put(CONTROL, self._set_delay)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        return app

    async def _connected(self, _app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._upstream.tls(), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        ) as self._session:
            yield

    async def _set_delay(self, request: web.Request) -> web.Response:
        self._delay = float(await request.text())
        self._delayed_path = request.query.get("path", "")
        return web.Response(text=f"{self._delay:g}\n")

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        headers = _without_hops(request.headers)
        if self._upstream.token is not None:
            headers["Authorization"] = f"Bearer {self._upstream.token}"
        # Not parsed again: the server must see the very path that the client wrote.
        url = yarl.URL(self._upstream.server + request.raw_path, encoded=True)
        body = await request.read()
        try:
            answer = await self._session.request(
                request.method, url, headers=headers, data=body, allow_redirects=False
            )
        except aiohttp.ClientConnectionError as error:
            return web.Response(status=HTTPStatus.BAD_GATEWAY, text=f"proxy: {error}\n")
        async with answer:
            passed = web.StreamResponse(status=answer.status, headers=_without_hops(answer.headers))
            await passed.prepare(request)
            if request.query.get("watch") in ("1", "true"):
                await self._pass_late(answer, passed, request.path)
            else:
                async for piece in answer.content.iter_any():
                    await passed.write(piece)
            await passed.write_eof()
        return passed

    async def _pass_late(
        self, answer: aiohttp.ClientResponse, passed: web.StreamResponse, path: str
    ) -> None:
        """Read on while earlier pieces wait, so that each is late by the same time."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            async for piece in answer.content.iter_any():
                waiting.put_nowait((time.monotonic(), piece))
            waiting.put_nowait((time.monotonic(), b""))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            while True:
                came, piece = await waiting.get()
                await self._until_due(came, path)
                if not piece:
                    return
                await passed.write(piece)

    async def _until_due(self, came: float, path: str) -> None:
        """Sleep in short steps: the delay may be changed meanwhile."""
        while (left := came + self._delay - time.monotonic()) > 0 and self._delayed_path in path:
            await asyncio.sleep(min(left, STEP_S))


def _without_hops(headers: multidict.CIMultiDictProxy[str]) -> multidict.CIMultiDict[str]:
    kept = [(name, value) for name, value in headers.items() if name.lower() not in HOP]
    return multidict.CIMultiDict(kept)


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.e2e.install.delaying_proxy")
    parser.add_argument("--kubeconfig", type=pathlib.Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    proxy = DelayingProxy(access.read(arguments.kubeconfig))
    # With handler_cancellation a watch ends upstream when its client goes.
    web.run_app(
        proxy.app(), host="127.0.0.1", port=arguments.port, print=None, handler_cancellation=True
    )


if __name__ == "__main__":
    main()
