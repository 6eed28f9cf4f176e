"""Serve containers' logs as kubelet does, for the API server.

A line of the log file has time, stream, full or part, and text.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hmac
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from aiohttp import web

from hami.wire import codec
from hami_sandbox import api_objects
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.attempts import NOTHING, Attempt, ContainersView
from hami_sandbox.kubelet.node_pods import NodePods
from hami_sandbox.kubelet.pod import Object

_FIELDS = 4


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a log that is requested."""

    tail: int | None = None
    since: float | None = None
    timestamps: bool = False
    limit: int | None = None
    stream: str = ""


def shown(line: bytes, wanted: Wanted) -> bytes | None:
    """Return the shown part of a line; None: nothing."""
    parts = line.rstrip(b"\n").split(b" ", _FIELDS - 1)
    if len(parts) < _FIELDS:
        return None
    stamp, stream, tag, text = parts
    if wanted.stream and wanted.stream.encode() != stream:
        return None
    if wanted.since is not None and _moment(stamp) < wanted.since:
        return None
    end = b"" if tag == b"P" else b"\n"
    return (stamp + b" " if wanted.timestamps else b"") + text + end


def last(lines: Iterable[bytes], wanted: Wanted) -> Iterator[bytes]:
    """Yield what is shown of the lines of a whole file: the tail of it, where that is asked."""
    kept = list(lines)
    if wanted.tail is not None:
        kept = kept[-wanted.tail :] if wanted.tail > 0 else []
    for line in kept:
        text = shown(line, wanted)
        if text is not None:
            yield text


def _moment(stamp: bytes) -> float:
    try:
        return dt.datetime.fromisoformat(stamp.decode()).timestamp()
    except ValueError:
        return 0.0


_LOOK_EVERY_S = 0.1
_PREFIX = "Bearer "


class LogServer:
    def __init__(
        self,
        node_pods: NodePods,
        view: ContainersView,
        *,
        token: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._pods = node_pods
        self._view = view
        self._token = token
        self._now = now
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int = 0) -> None:
        """Listen; the port 0 finds a free one."""
        app = web.Application(middlewares=[self._only_known])
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/pods", self._list)
        app.router.add_get("/healthz", self._healthy)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _only_known(
        self, request: web.Request, handler: Callable[[web.Request], object]
    ) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").removeprefix(_PREFIX)
        if request.path != "/healthz" and not hmac.compare_digest(
            shown.encode(), self._token.encode()
        ):
            raise web.HTTPUnauthorized(text="Unauthorized")
        answer = await handler(request)  # type: ignore[misc] # aiohttp's handlers are awaitable
        assert isinstance(answer, web.StreamResponse)
        return answer

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _list(self, _request: web.Request) -> web.Response:
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self._pods.all()}
        return web.Response(body=codec.encode(body), content_type="application/json")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        where, query = request.match_info, request.query
        pod = self._pods.find(where["namespace"], where["pod"])
        if pod is None:
            message = f'pods "{where["pod"]}" not found'
            raise web.HTTPNotFound(text=message)
        wanted = _wanted(query, self._now())
        attempt = self._attempt(pod, where["container"], previous=_true(query, "previous"))
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        left = wanted.limit
        async for text in self._texts(pod, attempt, wanted, follow=_true(query, "follow")):
            await response.write(text if left is None else text[:left])
            if left is not None:
                left -= len(text)
                if left <= 0:
                    break
        await response.write_eof()
        return response

    def _attempt(self, pod: Object, container: str, *, previous: bool) -> Attempt:
        name = pods.name(pod)
        if container not in {each["name"] for each in pods.in_order(pod)}:
            message = f'container "{container}" in pod "{name}" is not available'
            raise web.HTTPBadRequest(text=message)
        history = self._view.of(pods.uid(pod)).get(container, NOTHING)
        latest = history.latest
        if previous:
            waits = latest is not None and latest.exited and _waits(pod, container)
            found = latest if waits else history.previous
            if found is None:
                message = f'previous terminated container "{container}" in pod "{name}" not found'
                raise web.HTTPBadRequest(text=message)
            return found
        if latest is None:
            reason = _waits(pod, container) or "ContainerCreating"
            message = f'container "{container}" in pod "{name}" is waiting to start: {reason}'
            raise web.HTTPBadRequest(text=message)
        return latest

    async def _texts(
        self, pod: Object, attempt: Attempt, wanted: Wanted, *, follow: bool
    ) -> AsyncIterator[bytes]:
        try:
            file = Path(attempt.log).open("rb")  # noqa: ASYNC230, SIM115 - a small local file
        except FileNotFoundError:
            return
        with file:
            ended = not follow or not self._running(pod, attempt)
            whole, rest = _lines(file.read())
            for text in last(whole, wanted):
                yield text
            while not ended:
                # Checked before reading: then everything up to the end is read.
                ended = not self._running(pod, attempt)
                whole, rest = _lines(rest + file.read())
                for line in whole:
                    if (new := shown(line, wanted)) is not None:
                        yield new
                if not ended:
                    await asyncio.sleep(_LOOK_EVERY_S)

    def _running(self, pod: Object, attempt: Attempt) -> bool:
        history = self._view.of(pods.uid(pod)).get(attempt.name, NOTHING)
        return any(each.id == attempt.id and not each.exited for each in history.attempts)


def _lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Split into whole lines and the rest after the last one."""
    *whole, rest = data.split(b"\n")
    return whole, rest


def _waits(pod: Object, container: str) -> str:
    """Return why a container waits, by the pod's status; empty: it does not."""
    status = pods.status(pod)
    for each in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        if each.get("name") == container:
            return str(((each.get("state") or {}).get("waiting") or {}).get("reason") or "")
    return ""


def _wanted(query: Mapping[str, str], now: float) -> Wanted:
    try:
        since: float | None = None
        if "sinceSeconds" in query:
            since = now - int(query["sinceSeconds"])
        elif "sinceTime" in query:
            since = api_objects.read(query["sinceTime"]).timestamp()
        return Wanted(
            tail=int(query["tailLines"]) if "tailLines" in query else None,
            since=since,
            timestamps=_true(query, "timestamps"),
            limit=int(query["limitBytes"]) if "limitBytes" in query else None,
            stream=query["stream"].lower().replace("all", "") if "stream" in query else "",
        )
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"a parameter is no number or time: {error}") from error


def _true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in {"true", "1"}
