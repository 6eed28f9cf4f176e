"""An HTTP server of a few routes: bytes in, bytes out.

aiohttp speaks HTTP; this module adds what every listener of ours needs: one id per request, access
rules (`Route.trusted`), limits on bodies, errors that show callers no internals, and a stop that
lets requests under way finish. It uses aiohttp's low-level server: a route here is a method and a
path, and an aiohttp application would only cost time on each call.

Handlers are `async def handler(request: Request) -> Response`. If the caller disconnects, its
handler is cancelled where it awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from aiohttp import http_exceptions, web

from hami.serving import addresses, certificates, logs
from hami.wire import codec, correlation

_log = logging.getLogger(__name__)

MEBIBYTE = 2**20
REQUEST_ID = "X-Request-Id"
_GOOD_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
#: Seconds; longer than the 90 after which Go's clients close idle connections themselves.
_KEEP_ALIVE = 120.0
_FORBIDDEN = 403
_FULL = "the bodies of other requests fill the memory that is for them; try again in a moment"
#: Seconds for a body to arrive, as HAMi has it.
_BODY_TIMEOUT = 60.0
#: Bytes of all bodies together that callers other than local ones may have in our memory. Reviews
#: of the API server are some KiB each and answered at once; a slow sender holds its own for long.
_FOREIGN_BODIES = 64 * MEBIBYTE
#: Seconds to send finished responses after the drain.
_LAST_WRITES = 1.0


class Request(msgspec.Struct, frozen=True):
    method: str
    path: str
    #: The first value of each parameter.
    query: Mapping[str, str]
    #: Case-insensitive.
    headers: Mapping[str, str]
    body: bytes
    #: The peer's address.
    peer: str
    #: The same in logs, response and effects.
    id: str


class Response(msgspec.Struct, frozen=True):
    status: int = 200
    #: A stream is sent chunk by chunk; one that fails breaks the connection.
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str = _JSON
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def text(cls, status: int, message: str) -> Response:
        """Return a response of one line of text."""
        return cls(status, f"{message.rstrip()}\n".encode("utf-8", "replace"), _TEXT)

    @classmethod
    def error(cls, status: int, message: str) -> Response:
        """Return the response `{"error": message}`."""
        return cls(status, codec.encode({"error": message}))


Handler = Callable[[Request], Awaitable[Response]]


class Route(msgspec.Struct, frozen=True):
    method: str
    path: str
    handler: Handler
    #: Only for loopback peers and those with a certificate of the client CA.
    trusted: bool = False
    #: Bytes.
    body_limit: int = 16 * MEBIBYTE


class _ProtocolLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp logs of one server: a caller that does not speak HTTP must not fill the log."""

    def __init__(self, seldom: logs.Seldom) -> None:
        super().__init__(_log, {})
        self._seldom = seldom

    def exception(self, msg: object, *args: object, exc_info: Any = True, **fields: Any) -> None:
        """Log a malformed request seldom and in one line, anything else as it is."""
        if not isinstance(exc_info, http_exceptions.HttpProcessingError):
            super().exception(msg, *args, exc_info=exc_info, **fields)
            return
        kind = type(exc_info).__name__
        extra = {"peer": str(args[0])[:64] if args else "", "error": kind}
        self._seldom.log(_log, logging.WARNING, "malformed request", key=kind, extra=extra)


class _Refusal(Exception):  # noqa: N818 - a response, not a failure
    """The server answers instead of the handler."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class Server:
    """A listening socket with its routes."""

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        tls: certificates.LiveCertificate | None = None,
        drain_timeout: float = 10,
        is_local: addresses.IsLocal = addresses.is_loopback,
    ) -> None:
        self._routes: dict[str, dict[str, Route]] = {}
        for route in routes:
            self._routes.setdefault(route.path, {})[route.method] = route
        self._tls = tls
        self._drain_timeout = drain_timeout
        self._is_local = is_local
        self._runner: web.ServerRunner | None = None
        self._draining = False
        #: Tasks of the requests under way.
        self._under_way: set[asyncio.Task[object]] = set()
        self._refused = logs.Seldom(60)
        #: Bytes of bodies that callers other than local ones have in our memory.
        self.foreign_bytes = 0
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one, which `port` then has."""
        listening = addresses.listen(host, port)
        self.port = listening.getsockname()[1]
        self._draining = False
        self._runner = web.ServerRunner(
            web.Server(
                self._serve,
                handler_cancellation=True,
                access_log=None,
                logger=_ProtocolLog(self._refused),
                keepalive_timeout=_KEEP_ALIVE,
            ),
            shutdown_timeout=_LAST_WRITES,
        )
        await self._runner.setup()
        context = None if self._tls is None else self._tls.context
        site = web.SockSite(self._runner, listening, ssl_context=context, backlog=addresses.BACKLOG)
        await site.start()

    def let_go(self) -> None:
        """Keep answering, but close each connection with its next response.

        Clients then connect to another replica. Closing a connection while a client writes into it
        would lose that request, which Go's clients do not repeat.
        """
        self._draining = True

    async def stop(self) -> None:
        """Take no new connections, wait for requests under way, cancel those that are late.

        Kept-alive connections are served until then, but each response closes its connection.
        """
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        self._draining = True
        for site in runner.sites:
            await site.stop()
        # Let the handlers of requests that have been read begin.
        await asyncio.sleep(0)
        deadline = asyncio.get_running_loop().time() + self._drain_timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._under_way:
                    await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        late = list(self._under_way)
        if late:
            _log.warning(
                "requests cancelled: they took longer than the drain timeout",
                extra={"requests": len(late), "drain_timeout": self._drain_timeout},
            )
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        given = request.headers.get(REQUEST_ID, "")
        request_id = correlation.begin(given if _GOOD_ID.fullmatch(given) else "")
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        # Not when this function ends: the response is written later.
        task.add_done_callback(self._under_way.discard)
        try:
            response = await self._answer(request, request_id)
        except _Refusal as refusal:
            response = refusal.response
            self._log_refusal(request, response.status)
        # An exception of a handler fails this request only.
        except Exception:  # noqa: BLE001 - logged with its traceback
            _log.exception("request failed", extra={"method": request.method, "path": request.path})
            response = Response.error(500, f"internal error; the log has it under id {request_id}")
        return await self._write(request, response, request_id)

    async def _answer(self, request: web.BaseRequest, request_id: str) -> Response:
        route = self._find(request)
        peer = addresses.address(request.transport)
        if route.trusted:
            self._check_peer(request, peer)
        local = self._is_local(peer)
        held = 0

        def hold(length: int) -> None:
            nonlocal held
            if local:
                return
            if self.foreign_bytes + length > _FOREIGN_BODIES:
                raise _Refusal(_closing(Response.error(503, _FULL)))
            held += length
            self.foreign_bytes += length

        try:
            body = b""
            if request.body_exists:
                body = await _read(request, route.body_limit, hold)
            return await route.handler(self._asked(request, request_id, peer, body))
        finally:
            self.foreign_bytes -= held

    def _asked(self, request: web.BaseRequest, request_id: str, peer: str, body: bytes) -> Request:
        query: Mapping[str, str] = request.query if request.query_string else {}
        return Request(
            method=request.method,
            path=request.path,
            query=query,
            headers=request.headers,
            body=body,
            peer=peer,
            id=request_id,
        )

    def _find(self, request: web.BaseRequest) -> Route:
        methods = self._routes.get(request.path)
        if methods is None:
            raise _Refusal(Response.error(404, "there is nothing under this path"))
        route = methods.get(request.method)
        if route is None:
            allowed = ", ".join(sorted(methods))
            answer = Response.error(405, f"this path takes {allowed}")
            raise _Refusal(msgspec.structs.replace(answer, headers=(("Allow", allowed),)))
        return route

    def _check_peer(self, request: web.BaseRequest, peer: str) -> None:
        if self._is_local(peer) or addresses.has_certificate(request.transport, self._tls):
            return
        self._refused.log(
            _log,
            logging.WARNING,
            "caller refused: neither local nor with a certificate of the client CA",
            key=(peer, request.path),
            extra={"path": request.path, "peer": peer},
        )
        rule = "this path answers loopback callers and those with a certificate of the client CA"
        remedy = "call from the same pod, or show a certificate of the CA given as client CA file"
        refused = Response.error(403, f"{rule}, not {peer or 'you'}; {remedy}")
        raise _Refusal(_closing(refused))  # a new connection may show another certificate

    def _log_refusal(self, request: web.BaseRequest, status: int) -> None:
        if status == _FORBIDDEN:
            return  # already logged with its rule
        shown = {"method": request.method[:16], "path": request.path[:256], "status": status}
        # Not by path: a scan of paths would fill the log.
        self._refused.log(_log, logging.WARNING, "request refused", key=status, extra=shown)

    async def _write(
        self, request: web.BaseRequest, response: Response, request_id: str
    ) -> web.StreamResponse:
        headers = {
            "Content-Type": response.content_type,
            REQUEST_ID: request_id,
            **dict(response.headers),
        }
        if isinstance(response.body, bytes):
            answer: web.StreamResponse = web.Response(
                body=response.body, status=response.status, headers=headers
            )
        else:
            answer = web.StreamResponse(status=response.status, headers=headers)
        if self._draining or headers.get("Connection") == "close":
            answer.force_close()
        if not isinstance(response.body, bytes):
            await self._stream(request, answer, response.body)
        return answer

    async def _stream(
        self, request: web.BaseRequest, answer: web.StreamResponse, chunks: AsyncIterator[bytes]
    ) -> None:
        try:
            await answer.prepare(request)
            async with closed_after(chunks):
                async for chunk in chunks:
                    await answer.write(chunk)
            await answer.write_eof()
        except ConnectionError:
            pass  # the caller has disconnected
        # The status is sent already, so the caller learns of a failure by the broken connection.
        except Exception:  # noqa: BLE001 - logged with its traceback
            _log.exception(
                "response stream failed", extra={"method": request.method, "path": request.path}
            )
            if request.transport is not None:
                request.transport.abort()


@contextlib.asynccontextmanager
async def closed_after(chunks: AsyncIterator[bytes]) -> AsyncIterator[None]:
    """Close a stream that is not read to its end, because its reader has disconnected."""
    try:
        yield
    finally:
        close = getattr(chunks, "aclose", None)  # only generators have it
        if close is not None:
            await close()


async def _read(request: web.BaseRequest, limit: int, hold: Callable[[int], None]) -> bytes:
    """Read the body, at most `limit` bytes, whatever its Content-Length is.

    `hold` is called with the length of each part and may refuse it.
    """
    if (request.content_length or 0) > limit:
        raise _Refusal(_too_large(limit))
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    parts: list[bytes] = []
    length = 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            while chunk := await request.content.readany():
                parts.append(chunk)
                length += len(chunk)
                hold(len(chunk))
                if length > limit:
                    raise _Refusal(_too_large(limit))
    except TimeoutError as error:
        slow = f"the body did not arrive within {_BODY_TIMEOUT:.0f} s; send it faster"
        raise _Refusal(_closing(Response.error(408, slow))) from error
    except web.RequestPayloadError as error:
        raise _Refusal(_closing(Response.error(400, "the body is not encoded as announced"))) from (
            error
        )
    # Usually it is one part; joining would copy it.
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> Response:
    rule = f"the body is larger than the {limit} bytes that this path takes"
    return _closing(Response.error(413, f"{rule}; send less, for instance fewer nodes in one call"))


def _closing(response: Response) -> Response:
    return msgspec.structs.replace(response, headers=(("Connection", "close"),))
