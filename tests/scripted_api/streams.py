"""Watches: what they send, and how the script spoils it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.scripted_api import answers
from tests.scripted_api.faults import Kind, Recorded, StreamFault
from tests.scripted_api.selecting import selector
from tests.scripted_api.store import KINDS, Event, Object, Refused

if TYPE_CHECKING:
    from tests.scripted_api.server import ScriptedApi

END_OF_LIST = {"k8s.io/initial-events-end": "true"}
Line = tuple[str, Mapping[str, Any]]


async def only(request: web.Request, lines: Sequence[Mapping[str, Any]]) -> web.StreamResponse:
    response = await _open(request)
    for line in lines:
        await response.write(json.dumps(line).encode() + b"\n")
    await response.write_eof()
    return response


async def serve(api: ScriptedApi, request: web.Request, recorded: Recorded) -> web.StreamResponse:
    api.check_token(recorded)
    where = answers.place(recorded.path)
    _check(recorded.query)
    response = await _open(request)
    api.watching += 1
    try:
        sender = _Sender(api, request, response, recorded.path)
        async with contextlib.aclosing(_lines(api, where, recorded)) as lines:
            async for line in lines:
                if not await sender.send(*line):
                    return response
        await response.write_eof()
    except ConnectionResetError:
        pass  # the client has disconnected
    finally:
        api.watching -= 1
    return response


def _check(query: Mapping[str, str]) -> None:
    if "sendInitialEvents" in query and query.get("resourceVersionMatch") != "NotOlderThan":
        raise Refused(422, "Invalid", "sendInitialEvents needs resourceVersionMatch=NotOlderThan")
    if "resourceVersionMatch" in query and "sendInitialEvents" not in query:
        raise Refused(422, "Invalid", "resourceVersionMatch is forbidden without sendInitialEvents")


async def _open(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


async def _lines(
    api: ScriptedApi, where: answers.Place, request: Recorded
) -> AsyncGenerator[Line, None]:
    """Yield what the store says, in order, until the watch's time is over."""
    query, store, generation = request.query, api.store, api.generation
    ends = time.monotonic() + int(query.get("timeoutSeconds") or 1800)
    bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
    since, sent = int(query.get("resourceVersion") or 0), 0
    if not since or query.get("sendInitialEvents") == "true":
        since = sent = store.version
        for obj in answers.selected(store, where, dict(query)):
            yield "ADDED", obj
        if query.get("sendInitialEvents") == "true":
            yield "BOOKMARK", _bookmark(where, since, END_OF_LIST)
    elif since < store.compacted:
        message = f"too old resource version: {since} ({store.compacted})"
        yield "ERROR", answers.status(410, "Expired", message)
        return
    wanted = selector(query)
    while api.generation == generation:
        changed = api.changed
        for event in [e for e in store.history[where.resource] if e.version > since]:
            since = event.version
            if line := _seen(event, where, wanted):
                sent = since
                yield line
        left = ends - time.monotonic()
        if left <= 0:
            break
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left, api.bookmark_interval)):
                await changed.wait()
            continue
        # What came as the time ran out must not be passed over by a bookmark.
        late = any(event.version > since for event in store.history[where.resource])
        if not late and bookmarks and api.bookmarks and max(since, store.version) > sent:
            since = sent = max(since, store.version)
            yield "BOOKMARK", _bookmark(where, sent)


def _seen(event: Event, where: answers.Place, wanted: Any) -> Line | None:
    """Return how a change looks through the selector: what leaves it is deleted."""
    if where.namespace not in (None, event.object["metadata"].get("namespace", "")):
        return None
    now = event.type != "DELETED" and wanted(event.object)
    before = event.before is not None and wanted(event.before)
    if now:
        return ("MODIFIED" if before else "ADDED"), event.object
    return ("DELETED", event.object) if before else None


def _bookmark(
    where: answers.Place, version: int, annotations: Mapping[str, str] | None = None
) -> Object:
    kind, group = KINDS[where.resource]
    meta: Object = {"resourceVersion": str(version)}
    if annotations:
        meta["annotations"] = dict(annotations)
    return {"kind": kind, "apiVersion": group, "metadata": meta}


class _Sender:
    """Writes lines, and spoils them."""

    def __init__(
        self, api: ScriptedApi, request: web.Request, response: web.StreamResponse, path: str
    ) -> None:
        self._api = api
        self._request = request
        self._response = response
        self._path = path
        self._number = 0
        self._held: bytes | None = None

    async def send(self, kind: str, obj: Mapping[str, Any]) -> bool:
        """Send one line; False: the stream has ended."""
        line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
        fault = self._fault() if kind not in ("BOOKMARK", "ERROR") else None
        if fault is not None:
            if not await self._spoil(fault, line):
                return False
        else:
            await self._write(line)
        return True

    async def _spoil(self, fault: StreamFault, line: bytes) -> bool:
        match fault.kind:
            case Kind.DROP:
                pass
            case Kind.DUPLICATE:
                await self._write(line + line)
            case Kind.REORDER if self._held is None:
                self._held = line
            case Kind.DELAY:
                await asyncio.sleep(fault.seconds)
                await self._write(line)
            case Kind.CUT:
                await self._response.write(line[: len(line) // 2])
                if self._request.transport is not None:
                    self._request.transport.close()
                return False
            case Kind.CUT_CLEANLY:
                await self._response.write(line[: len(line) // 2])
                await self._response.write_eof()
                return False
            case Kind.CLOSE:
                await self._response.write_eof()
                return False
            case Kind.ERROR:
                reason = "Expired" if fault.code == 410 else "InternalError"
                status = answers.status(fault.code, reason, "scripted")
                await self._write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
                await self._response.write_eof()
                return False
            case _:
                await self._write(line)
        return True

    async def _write(self, line: bytes) -> None:
        held, self._held = self._held, None
        await self._response.write(line + (held or b""))

    def _fault(self) -> StreamFault | None:
        number = self._number
        self._number += 1
        for fault in self._api.stream_faults:
            if fault.takes(self._path, number):
                return fault
        return self._api.storm.event() if self._api.storm is not None else None
