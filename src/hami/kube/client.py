"""Requests to the API server: bytes in, bytes out, one error type.

A request is sent once. Two refusals are answered here, because in both the server has done nothing:
401 (the credentials are renewed, once) and 429 (wait as the server asks, within the request's
time). All other errors are the caller's to handle (`hami.kube.errors`).

A client has so many connections for its requests (`hami.kube.connections`); what must not queue
behind them has connections of its own (`Client.apart`). Decoding is left to callers, who know which
few fields they need.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

import aiohttp
import yarl

from hami.kube import connections, errors, transport
from hami.kube.connections import Connections, NoConnectionError
from hami.kube.request import Query, Request, Terms, headers
from hami.kube.streams import Chunks, Lines
from hami.kube.transport import Guard

#: Seconds for one request, unless the caller sets another limit.
DEFAULT_TIMEOUT_S = 30.0


class PatchKind(enum.Enum):
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class Client:
    """A client of one server. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        access: transport.Access,
        *,
        user_agent: str,
        timeout: float = 0,
        qps: float = 0,
        burst: int = 0,
        most: int = connections.MOST,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Make a client that sends at most `most` requests at once."""
        self.access = access
        #: Seconds that a request may take, with all its waiting.
        self.timeout = timeout or DEFAULT_TIMEOUT_S
        self._user_agent = user_agent
        self._clock = clock
        self._sleep = sleep
        self._bucket = (
            transport.TokenBucket(rate=qps, burst=burst or int(2 * qps), clock=clock, sleep=sleep)
            if qps > 0
            else None
        )
        self._connections = Connections(user_agent, most)
        self._apart: list[Client] = []

    def apart(self, most: int) -> Client:
        """Return a client of the same server with connections of its own, and without a rate.

        For the few requests that must not wait for the many: a lease, events. It is closed with
        this one.
        """
        made = Client(
            self.access,
            user_agent=self._user_agent,
            timeout=self.timeout,
            most=most,
            clock=self._clock,
            sleep=self._sleep,
        )
        self._apart.append(made)
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for other in self._apart:
            await other.close()
        await self._connections.close()

    async def get(
        self,
        path: str,
        query: Query | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - one of several limits of a request
        retry_busy: bool = True,
    ) -> bytes:
        return await self._ask(self._request("GET", path, query, timeout, retry_busy=retry_busy))

    async def create(
        self,
        path: str,
        body: bytes,
        *,
        query: Query | None = None,
        guard: Guard | None = None,
        terms: Callable[[], Terms] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        retry_busy: bool = True,
    ) -> bytes:
        """POST. `guard` is called right before the body's bytes are written, at every attempt.

        If it raises, nothing is sent, the connection is dropped, and its exception is raised here.
        `terms` is called instead when a connection is free, and `timeout` is then only the time to
        wait for that.
        """
        request = self._request("POST", path, query, timeout, retry_busy=retry_busy)
        request.data, request.guard, request.terms = body, guard, terms
        return await self._ask(request)

    async def patch(
        self,
        path: str,
        body: bytes,
        *,
        kind: PatchKind = PatchKind.MERGE,
        query: Query | None = None,
        guard: Guard | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        retry_busy: bool = True,
    ) -> bytes:
        request = self._request("PATCH", path, query, timeout, retry_busy=retry_busy)
        request.data, request.content_type, request.guard = body, kind.value, guard
        return await self._ask(request)

    async def replace(
        self,
        path: str,
        body: bytes,
        *,
        query: Query | None = None,
        guard: Guard | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        retry_busy: bool = False,
    ) -> bytes:
        """PUT."""
        request = self._request("PUT", path, query, timeout, retry_busy=retry_busy)
        request.data, request.guard = body, guard
        return await self._ask(request)

    async def delete(
        self,
        path: str,
        body: bytes | None = None,
        *,
        query: Query | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        retry_busy: bool = False,
    ) -> bytes:
        request = self._request("DELETE", path, query, timeout, retry_busy=retry_busy)
        # Never without a body: aiohttp would repeat a DELETE by itself when its connection breaks.
        request.data = body if body is not None else b"{}"
        return await self._ask(request)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        query: Query | None = None,
        *,
        idle: float | None = None,
        line_limit: int = transport.LIMIT,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an endless answer; inside, iterate over its lines.

        `idle` is how many seconds it may be silent before the connection counts as dead.
        """
        async with self.chunks(path, query, idle=idle) as chunks:
            yield Lines(chunks, line_limit)

    @contextlib.asynccontextmanager
    async def chunks(
        self,
        path: str,
        query: Query | None = None,
        *,
        idle: float | None = None,
        listing: bool = False,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an answer of any length; inside, iterate over its bytes as they arrive.

        `listing`: it counts for the rate, and a busy server is asked again, as with requests.
        """
        request = self._request("GET", path, query, None, retry_busy=listing)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout, sock_read=idle)
        session = self._connections.streams()
        try:
            async with asyncio.timeout(self.timeout):
                while True:
                    if self._bucket is not None and listing:
                        await self._bucket.take()
                    try:
                        response = await self._renewing(session, request, limits)
                        break
                    except errors.TooManyRequests as busy:
                        await self._wait_if_busy(request, busy)
        except TimeoutError as error:
            raise self._unreachable(request, error, sent=True) from error
        try:
            yield Chunks(response, functools.partial(self._unreachable, request, sent=True))
        finally:
            response.close()

    def _request(
        self,
        method: str,
        path: str,
        query: Query | None,
        timeout: float | None,
        *,
        retry_busy: bool,
    ) -> Request:
        deadline = self._clock() + (self.timeout if timeout is None else timeout)
        return Request(method, path, query, deadline=deadline, retry_busy=retry_busy)

    async def _ask(self, request: Request) -> bytes:
        while True:
            if self._bucket is not None:
                await self._bucket.take()
            left = self._left(request)
            try:
                async with self._connections.turn(left):
                    limits = aiohttp.ClientTimeout(total=self._left(request))
                    session = self._connections.requests()
                    response = await self._renewing(session, request, limits)
                    return await self._read(request, response)
            except NoConnectionError:
                problem = f"no connection became free within {left:.3g} s"
                raise self._failed(request, problem, sent=False) from None
            except errors.TooManyRequests as busy:
                await self._wait_if_busy(request, busy)

    async def _wait_if_busy(self, request: Request, busy: errors.TooManyRequests) -> None:
        wait = busy.retry_after
        if not request.retry_busy or wait is None or self._clock() + wait >= request.deadline:
            raise busy
        await self._sleep(wait)

    def _left(self, request: Request) -> float:
        return max(request.deadline - self._clock(), 0.001)

    async def _renewing(
        self, session: aiohttp.ClientSession, request: Request, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Send it; if the server does not know us any more, once more with new credentials."""
        credentials = await self.access.credentials()
        try:
            return await self._send(session, request, credentials, limits)
        except errors.Unauthorized as refusal:
            if not self.access.refused(credentials.identity):
                raise self._unknown(refusal) from None
        credentials = await self.access.credentials()
        try:
            return await self._send(session, request, credentials, limits)
        except errors.Unauthorized as refusal:
            raise self._unknown(refusal) from None

    async def _send(
        self,
        session: aiohttp.ClientSession,
        request: Request,
        credentials: transport.Credentials,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Return the answer once its head has come; an error for any refusal."""
        if request.terms is not None:
            request.query, seconds, request.guard = request.terms()
            limits = aiohttp.ClientTimeout(total=seconds)
        body = request.body()
        try:
            response = await session.request(
                request.method,
                self._url(request),
                data=body,
                headers=headers(credentials),
                ssl=credentials.tls if credentials.tls is not None else True,
                server_hostname=self.access.server_name or None,
                timeout=limits,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError) as error:
            if body is not None and body.refusal is not None:
                raise body.refusal from None
            sent = body is None or body.sent
            raise self._unreachable(request, error, sent=sent) from error
        if response.status not in _GOOD:
            answer = await self._read(request, response)
            raise errors.of_answer(
                response.status, answer, retry_after=response.headers.get("Retry-After")
            )
        return response

    async def _read(self, request: Request, response: aiohttp.ClientResponse) -> bytes:
        try:
            async with response:
                return await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(request, error, sent=True) from error

    def _url(self, request: Request) -> yarl.URL:
        query = urllib.parse.urlencode(request.query) if request.query else ""
        return yarl.URL(
            f"{self.access.server}{request.path}{'?' if query else ''}{query}", encoded=True
        )

    def _unreachable(self, request: Request, error: Exception, *, sent: bool) -> errors.Unreachable:
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            sent = False
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            problem = (
                f"its certificate is not trusted: {error.certificate_error}; "
                f"correct certificate-authority or the server's name in {self.access.origin}"
            )
        elif isinstance(error, TimeoutError):
            problem = "no answer in time" if sent else "no connection could be made in time"
        else:
            problem = errors.cut(str(error) or type(error).__name__)
        return self._failed(request, problem, sent=sent)

    def _failed(self, request: Request, problem: str, *, sent: bool) -> errors.Unreachable:
        about = f"{request.method} {request.path} at {self.access.server}"
        return errors.Unreachable(f"{about}: {problem}", outcome_unknown=sent)

    def _unknown(self, refusal: errors.Unauthorized) -> errors.Unauthorized:
        return errors.Unauthorized(
            refusal.status,
            refusal.reason,
            f"{self.access.server} does not accept our credentials (expired or revoked?); "
            f"renew those of {self.access.origin}; its answer: {refusal.message}",
        )


_GOOD = range(200, 300)
