"""The HTTPS server: requests to the API, answers and refusals back.

`/sandbox/` has requests that only a sandbox has: forget the history, write a snapshot.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Callable

import msgspec
from aiohttp import web

from hami.serving import addresses
from hami_sandbox.apiserver.api import Answer, Api
from hami_sandbox.apiserver.auth.logs import Logs
from hami_sandbox.apiserver.call import Call, require_kind
from hami_sandbox.apiserver.refusals import Refusal, bad_request

_log = logging.getLogger(__name__)

_LARGEST_BODY = 3 * 2**20
_NOT_MODIFIED = 304
#: Seconds for answers under way to leave.
_LAST_WRITES = 0.5


class Server:
    def __init__(self, api: Api, logs: Logs, *, save: Callable[[], None] | None) -> None:
        self._api = api
        self._logs = logs
        self._save = save
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int, context: ssl.SSLContext) -> None:
        """Listen; the port 0 finds a free one, then named by `port`."""
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a watch ends with its client
            shutdown_timeout=_LAST_WRITES,
        )
        await self._runner.setup()
        listening = addresses.listen(host, port)
        self.port = listening.getsockname()[1]
        await web.SockSite(self._runner, listening, ssl_context=context).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        await self._logs.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        call: Call | None = None
        try:
            target = self._api.target(request.method, request.rel_url.raw_path, request.query)
            body = await _body(request)
            call = self._api.admit(target, request.query, request.headers, body)
            if target.subresource == "log":
                require_kind(target)
                return await self._logs.answer(request, target.namespace, target.name)
            if target.path.startswith("/sandbox/"):
                answer = self._sandbox(call)
            else:
                answer = await self._api.answer(call)
        except Refusal as refusal:
            return _refused(refusal, call)
        except Exception as error:  # noqa: BLE001 - an error fails this request only
            _log.exception("request failed", extra={"method": request.method, "path": request.path})
            why = f"Internal error occurred: {type(error).__name__}: {error}"
            return _refused(Refusal(500, "InternalError", why), call)
        return await _send(request, answer, call)

    def _sandbox(self, call: Call) -> Answer:
        match call.target.verb, call.target.path:
            case "post", "/sandbox/compact":
                text = call.query.get("revision", "")
                if not text.isdecimal():
                    raise bad_request(f'revision "{text}" is no version; give a whole number')
                self._api.store.forget(int(text))
            case "post", "/sandbox/snapshot":
                if self._save is None:
                    raise bad_request("there is no file to write; start with --snapshot FILE")
                self._save()
            case _:
                raise Refusal(404, "NotFound", "the sandbox has nothing under this path")
        return Answer(body=b"{}")


async def _body(request: web.Request) -> bytes:
    if not request.body_exists:
        return b""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        message = f"Request entity too large: limit is {_LARGEST_BODY}"
        raise Refusal(413, "RequestEntityTooLarge", message) from None


async def _send(request: web.Request, answer: Answer, call: Call) -> web.StreamResponse:
    response: web.StreamResponse
    if isinstance(answer.body, bytes):
        response = web.Response(body=answer.body, status=answer.status)
    else:
        response = web.StreamResponse(status=answer.status)
    if answer.status != _NOT_MODIFIED:
        response.headers["Content-Type"] = answer.content_type
    response.headers["Cache-Control"] = "no-cache, private"
    response.headers.update(answer.headers)
    _warn(response, call)
    if isinstance(answer.body, bytes):
        return response
    response.enable_chunked_encoding()
    lines = answer.body
    with contextlib.suppress(ConnectionError):  # the client has disconnected
        await response.prepare(request)
        async with contextlib.aclosing(lines):  # type: ignore[type-var] # it is a generator
            async for chunk in lines:
                await response.write(chunk)
        await response.write_eof()
    return response


def _refused(refusal: Refusal, call: Call | None) -> web.Response:
    body = msgspec.json.encode(refusal.body())
    response = web.Response(body=body, status=refusal.status)
    response.headers["Content-Type"] = "application/json"
    retry = (refusal.details or {}).get("retryAfterSeconds")
    if retry:
        response.headers["Retry-After"] = str(retry)
    if call is not None:
        _warn(response, call)
    return response


def _warn(response: web.StreamResponse, call: Call) -> None:
    for warning in dict.fromkeys(call.warnings):
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        response.headers.add("Warning", f'299 - "{quoted}"')
