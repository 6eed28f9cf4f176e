"""HTTP connections to one API server: TLS, bodies, lines, backoff, rate.

`Access` is asked before every request, because tokens and certificates change while we run. After a
401 the client calls `refused`, and the next credentials are newer ones, if there are any.

A `Body` can be held back at the last moment. A leader that was frozen between its decision and the
write must not write any more, so a guard is called when the bytes are about to go to the socket:
after waiting for a connection, after TLS, with nothing but that write to follow. aiohttp keeps the
headers back until the body comes, so a guard that refuses has sent nothing at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random as randomness
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import aiohttp
from aiohttp.abc import AbstractCookieJar, AbstractStreamWriter

from hami.kube import credentials as kube_credentials
from hami.kube import errors
from hami.kube.credentials import Identities, Identity

_log = logging.getLogger(__name__)


DEFAULT_NAMESPACE = "default"


class Credentials(NamedTuple):
    """What one request shows to the server, and how it is encrypted."""

    identity: Identity
    #: None for a server of plain HTTP.
    tls: ssl.SSLContext | None


class Access:
    """The address of one API server, and the credentials of this moment."""

    def __init__(
        self,
        server: str,
        *,
        identities: Identities,
        authority: kube_credentials.Source | None = None,
        verify: bool = True,
        server_name: str = "",
        namespace: str = "",
        origin: str = "",
    ) -> None:
        #: Such as https://10.96.0.1:443, perhaps with a path, never with a slash at the end.
        self.server = server.rstrip("/")
        #: The name to expect in the server's certificate; empty: the one in its address.
        self.server_name = server_name
        #: Where commands look that name no namespace.
        self.namespace = namespace or DEFAULT_NAMESPACE
        #: Where all this was found, for messages.
        self.origin = origin or self.server
        self._identities = identities
        self._authority = authority
        self._verify = verify
        self._tls: ssl.SSLContext | None = None
        self._made_of: tuple[str | None, str, str] | None = None

    async def credentials(self) -> Credentials:
        """Return the credentials for a request that is sent now."""
        identity = await self._identities.current()
        if not (identity.token.isascii() and identity.token.isprintable()):
            raise errors.AccessError(
                self.origin, "its token has characters that no token has", "write it again"
            )
        return Credentials(identity, self._tls_with(identity))

    def refused(self, shown: Identity) -> bool:
        """Take note of a 401; return whether another try makes sense."""
        if self._authority is not None:
            self._authority.forget()
        return self._identities.refused(shown)

    def _tls_with(self, identity: Identity) -> ssl.SSLContext | None:
        """Return the context for new connections: another one after each change of certificates.

        Connections are pooled by context, so those made before live on until they are idle.
        """
        if not self.server.startswith("https://"):
            return None
        authority = self._authority.text() if self._authority else None
        made_of = (authority, identity.certificate, identity.key)
        if made_of != self._made_of:
            try:
                self._tls = _context(authority, identity, verify=self._verify)
            except (ssl.SSLError, ValueError) as error:
                # Caught between the replacement of one file and the next: the old ones still work.
                if self._tls is None:
                    raise errors.AccessError(
                        self.origin,
                        f"its certificates cannot be used: {error}",
                        "check that they are PEM, and that certificate and key belong together",
                    ) from error
                _log.warning(
                    "new certificates cannot be used, keeping the old ones",
                    extra={"origin": self.origin, "error": str(error)},
                )
                return self._tls
            self._made_of = made_of
        return self._tls


def _context(authority: str | None, identity: Identity, *, verify: bool) -> ssl.SSLContext:
    if authority is not None and not authority.strip():
        # Python would then trust every authority of this machine.
        raise ValueError("the certificate authority is empty")
    context = ssl.create_default_context(cadata=authority)
    # Python 3.13 refuses CAs without a key identifier; Go, and so every other client, does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if identity.certificate:
        with _as_file(f"{identity.certificate.rstrip()}\n{identity.key.rstrip()}\n") as path:
            context.load_cert_chain(path, password=_no_password)
    return context


def _no_password() -> str:
    raise ValueError("the client key is encrypted, and no user is here to ask for its password")


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Give a path to the text: ssl loads keys from files only, and a key must not reach a disk."""
    descriptor = os.memfd_create("hami-client-key")
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


Guard = Callable[[], None]


class Body(aiohttp.Payload):
    """A request's body with a guard that may refuse it right before it is written."""

    def __init__(self, data: bytes, *, content_type: str, guard: Guard | None = None) -> None:
        super().__init__(data, content_type=content_type)
        self._size = len(data)
        self._data = data
        self._guard = guard
        #: Whether any of it may have left this process.
        self.sent = False
        #: What the guard raised.
        self.refusal: Exception | None = None

    async def write(self, writer: AbstractStreamWriter) -> None:
        # aiohttp repeats a PUT or DELETE by itself when a connection breaks, unless its body is
        # consumed. We do not want that: the first one may have been done.
        self._consumed = True
        if self._guard is not None:
            try:
                self._guard()
            except Exception as error:
                # aiohttp wraps it, and the caller gets it as it was.
                self.refusal = error
                raise
        self.sent = True
        await writer.write(self._data)

    async def write_with_length(
        self,
        writer: AbstractStreamWriter,
        content_length: int | None,  # noqa: ARG002 - always all of it
    ) -> None:
        await self.write(writer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._data.decode(encoding, errors)


#: kube-apiserver closes what was idle for 90 s; a request must not meet that.
_IDLE = 30.0
_PROBE_AFTER, _PROBE_EVERY, _PROBES = 15, 5, 3


def session(user_agent: str) -> aiohttp.ClientSession:
    """Return pooled connections that notice when their other end is dead.

    A connection whose other end vanished silently (a node lost power, a firewall forgot it) would
    seem alive for hours. The kernel's keepalive probes find that within half a minute, also on
    watches, which may rightly be silent for longer.
    """
    jar: AbstractCookieJar = aiohttp.DummyCookieJar()
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            # Requests are counted by `hami.kube.connections`, before they come here.
            limit=0,
            keepalive_timeout=_IDLE,
            socket_factory=_probing_socket,
        ),
        headers={
            "Accept": "application/json",
            # Compressing costs both ends more than it saves within a cluster.
            "Accept-Encoding": "identity",
            "User-Agent": user_agent,
        },
        cookie_jar=jar,
    )


def _probing_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    # The same for what was sent and is not acknowledged, which silences the probes.
    limit = 1000 * (_PROBE_AFTER + _PROBES * _PROBE_EVERY)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
    return made


class Backoff:
    """Seconds to wait after a failure: longer each time, and never in step with others.

    Full jitter: anything between nothing and the current limit, so that a thousand clients of a
    server that comes back are spread over the whole time.
    """

    def __init__(
        self,
        *,
        first: float = 0.1,
        longest: float = 30.0,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self._first = first
        self._longest = longest
        self._random = random
        self._limit = first

    def reset(self) -> None:
        """Something went well: begin small again."""
        self._limit = self._first

    def next(self, retry_after: float | None = None) -> float:
        """Return the seconds to wait now; at least what the server asked for."""
        wait = self._random() * self._limit
        self._limit = min(self._limit * 2, self._longest)
        # A server that asks for more than any outage lasts is not believed.
        return max(wait, min(retry_after or 0.0, 4 * self._longest))


class TokenBucket:
    """A limit of so many a second on average, and so many at once."""

    def __init__(
        self,
        *,
        rate: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rate = rate
        self._burst = max(burst, 1)
        self._clock = clock
        self._sleep = sleep
        self._tokens = float(self._burst)
        self._filled = clock()

    def try_take(self) -> bool:
        """Take a token if there is one."""
        self._fill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def take(self) -> None:
        """Take a token, waiting for one where there is none; callers are served in order."""
        self._fill()
        # Taken now and paid for later, so that the next caller queues behind this one.
        self._tokens -= 1
        if self._tokens < 0:
            await self._sleep(-self._tokens / self._rate)

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now


#: Many times what etcd stores in one object.
LIMIT = 64 * 1024 * 1024


class Splitter:
    """Feed it chunks, get whole lines without their newlines; empty lines are left out.

    A watch is one JSON document per line, and a pod can be a megabyte long; aiohttp's own readline
    stops at a fixed size. Every byte is read once, however many chunks a line spans. Bytes after
    the last newline are no line: a stream that ends there was cut.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        #: The beginning of a line, in pieces: joined once, when its end has come.
        self._begun: list[bytes] = []
        self._length = 0

    @property
    def pending(self) -> int:
        """Bytes of a line that has not ended."""
        return self._length

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in this chunk; raises StreamBroken for one that is too long."""
        *ended, rest = chunk.split(b"\n")
        if ended and self._begun:
            ended[0] = b"".join([*self._begun, ended[0]])
            self._begun.clear()
            self._length = 0
        if rest:
            self._begun.append(rest)
            self._length += len(rest)
        if self._length > self._limit or any(len(line) > self._limit for line in ended):
            raise errors.StreamBroken(
                f"a line of more than {self._limit} bytes came; is this an API server?"
            )
        return [line for line in ended if line]
