"""A scripted API server: a small store behind plain HTTP, a script of faults.

    async with ScriptedApi() as api:
        api.put({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}})  # past all faults
        async with Client(api.access(), user_agent="test") as client: ...
        api.objects("pods")            # what is stored, as dicts
        api.find("pods", "p", "n")     # one of them, or None
        api.remove("pods", "p", "n")
        api.requests                   # everything that arrived: method, path, query, headers, body
        api.sent("POST", "/binding")   # those of a method whose path contains a text

It serves pods, nodes, resourcequotas, events, leases, secrets and mutatingwebhookconfigurations:
GET, lists (limit and continue, label selectors by equality, field selectors by path), watches
(resume, bookmarks, timeoutSeconds, 410 after `api.compact()`), WatchList, POST, PUT, PATCH (merge;
strategic is taken for merge), DELETE with preconditions, and POST .../pods/NAME/binding and
.../eviction, with Kubernetes' statuses and reasons. Resource versions are one growing sequence.
`api.restore(api.snapshot())` goes back in time.

Faults of requests (`hami.kube` never sees the difference to a real one):

    api.fault(method="POST", path="/binding", status=409, reason="Conflict")
    api.fault(path="/pods", status=429, retry_after=1, times=3)
    api.fault(path="/pods", lost=Lost.BEFORE)     # the connection breaks, nothing done
    api.fault(path="/binding", lost=Lost.AFTER)   # done, and the answer is lost
    api.fault(path="/pods", hang=True)
    api.fault(path="/pods", gate=event)           # held until event.set(); gate_after: done, held
    api.fault(path="/pods", when=lambda r: r.query.get("continue"), status=410, reason="Expired")
    api.fault(path="/pods", lines=[event, ...])   # 200 and a stream of just these
    api.refuse_watch_list()                       # 400, as servers without the feature
    api.refuse_watch_list(in_stream=True)         # 200 and an ERROR event, as with an old etcd

`times` says how often (None: always); the returned fault counts its `hits`; `api.faults.remove(f)`.

Faults of watch streams, by the number of the event in its stream:

    api.stream_fault(Kind.DROP, at=2)   # also DUPLICATE, REORDER, DELAY, CUT, CUT_CLEANLY, CLOSE
    api.stream_fault(Kind.ERROR, at=0, code=410)
    api.bookmarks = False               # never send one (but for the end of a WatchList)
    api.storm = Storm(seed, events={Kind.DROP: 0.02}, statuses=[409, 500], refused=0.1)
    api.close_watches()

`api.tokens = {"t"}` lets in only those who show one of these. With `tls` it serves HTTPS.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import ssl
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from hami.kube import credentials, transport
from tests.scripted_api import answers, streams
from tests.scripted_api.faults import Fault, Kind, Lost, Recorded, Storm, StreamFault
from tests.scripted_api.store import CLUSTER_WIDE, RESOURCES, Object, Refused, Snapshot, Store

__all__ = ["Fault", "Kind", "Lost", "Recorded", "ScriptedApi", "Storm", "StreamFault"]


class _Token:
    """An identity that never changes."""

    def __init__(self, token: str) -> None:
        self._identity = credentials.Identity(token)

    async def current(self) -> credentials.Identity:
        return self._identity

    def refused(self, shown: credentials.Identity) -> bool:
        return False


class ScriptedApi:
    def __init__(
        self, *, tls: ssl.SSLContext | None = None, bookmark_interval: float = 0.1
    ) -> None:
        self.store = Store()
        self.requests: list[Recorded] = []
        self.faults: list[Fault] = []
        self.stream_faults: list[StreamFault] = []
        self.storm: Storm | None = None
        self.bookmarks = True
        self.bookmark_interval = bookmark_interval
        self.tokens: set[str] | None = None
        #: The minor version that GET /version tells.
        self.minor = "36"
        self.url = ""
        #: Watches that are open now.
        self.watching = 0
        self.changed = asyncio.Event()
        self.generation = 0
        self._tls = tls
        self._pages: dict[str, answers.Rest] = {}
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # Handlers are cancelled when their client goes, as a watch must end then.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"{'https' if self._tls else 'http'}://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop serving; connections break."""
        self._closing.set()
        self.close_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def access(self, *, token: str = "", authority: str = "") -> transport.Access:
        return transport.Access(
            self.url,
            identities=_Token(token),
            authority=credentials.Text(authority) if authority else None,
            origin="the test",
        )

    # The store, past all faults.

    def put(self, obj: Object) -> Object:
        """Create or replace an object by its kind, name and namespace; returns it as stored."""
        resource = RESOURCES[obj["kind"]]
        namespace = "" if resource in CLUSTER_WIDE else obj["metadata"].get("namespace", "default")
        stored = self.store.put(resource, namespace, obj)
        self._notify()
        return copy.deepcopy(stored)

    def remove(self, resource: str, name: str, namespace: str = "default") -> None:
        self.store.delete(resource, "" if resource in CLUSTER_WIDE else namespace, name)
        self._notify()

    def find(self, resource: str, name: str, namespace: str = "default") -> Object | None:
        try:
            where = "" if resource in CLUSTER_WIDE else namespace
            return copy.deepcopy(self.store.find(resource, where, name))
        except Refused:
            return None

    def objects(self, resource: str) -> list[Object]:
        return [copy.deepcopy(obj) for _, obj in sorted(self.store.objects[resource].items())]

    def compact(self, version: int | None = None) -> None:
        """Forget what happened before: lists in pages and watches from there answer 410."""
        self.store.compact(version)
        self._pages = {t: r for t, r in self._pages.items() if r.version >= self.store.compacted}

    def snapshot(self) -> Snapshot:
        return self.store.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        self.store.restore(snapshot)
        self.close_watches()

    # The script.

    def fault(self, **fields: Any) -> Fault:
        """Script a fault of requests; see `Fault` for the fields."""
        made = Fault(**fields)
        self.faults.append(made)
        return made

    def stream_fault(self, kind: Kind, **fields: Any) -> StreamFault:
        made = StreamFault(kind, **fields)
        self.stream_faults.append(made)
        return made

    def refuse_watch_list(self, *, in_stream: bool = False, times: int | None = None) -> Fault:
        def asked(request: Recorded) -> bool:
            return "sendInitialEvents" in request.query

        message = "sendInitialEvents is forbidden for watch"
        if in_stream:
            status = answers.status(400, "BadRequest", message)
            line = {"type": "ERROR", "object": status}
            return self.fault(when=asked, lines=[line], times=times)
        return self.fault(when=asked, status=400, reason="BadRequest", message=message, times=times)

    def close_watches(self) -> None:
        """End every open watch properly."""
        self.generation += 1
        self._notify()

    def sent(self, method: str, path: str = "") -> list[Recorded]:
        """Return the requests of this method whose path contains this text."""
        return [r for r in self.requests if r.method == method and path in r.path]

    # Serving.

    def _notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        recorded = Recorded(
            request.method, request.path, dict(request.query), request.headers, await request.read()
        )
        self.requests.append(recorded)
        fault = next((f for f in self.faults if f.takes(recorded)), None)
        if fault is None and self.storm is not None:
            fault = self.storm.request()
        fault = fault or Fault()
        if fault.gate is not None:
            await self._until(fault.gate)
        if fault.hang:
            await self._closing.wait()
        if fault.lost is Lost.BEFORE or self._closing.is_set():
            return self._break(request)
        if fault.lines is not None:
            return await streams.only(request, fault.lines)
        if fault.status:
            return answers.scripted(fault)
        if recorded.watches and fault.lost is None:
            try:
                return await streams.serve(self, request, recorded)
            except Refused as refused:
                return answers.refusal(refused)
        response = self._answer(recorded)
        if fault.gate_after is not None:
            await self._until(fault.gate_after)
        return self._break(request) if fault.lost is Lost.AFTER else response

    def _answer(self, request: Recorded) -> web.Response:
        before = self.store.version
        try:
            self.check_token(request)
            if request.path == "/version":
                return web.json_response({"major": "1", "minor": self.minor})
            body = answers.answer(self.store, self._pages, request)
        except Refused as refused:
            return answers.refusal(refused)
        if self.store.version != before:
            self._notify()
        created = request.method == "POST"
        return web.Response(
            body=json.dumps(body).encode(),
            content_type="application/json",
            status=201 if created else 200,
        )

    def check_token(self, request: Recorded) -> None:
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and shown not in self.tokens:
            raise Refused(401, "Unauthorized", "Unauthorized")

    async def _until(self, gate: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(e.wait()) for e in (gate, self._closing)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            for wait in waits:
                with contextlib.suppress(asyncio.CancelledError):
                    await wait

    def _break(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
