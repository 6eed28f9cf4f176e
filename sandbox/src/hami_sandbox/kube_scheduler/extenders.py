"""Calls to extenders over HTTP, as kube-scheduler makes them."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import aiohttp

from hami.wire import errors
from hami_sandbox.errors import SandboxError
from hami_sandbox.kube_scheduler import configuration, extender_messages
from hami_sandbox.kube_scheduler.extender_messages import AnswerError
from hami_sandbox.kube_scheduler.nodes import Row
from hami_sandbox.kube_scheduler.pods import Pod

_log = logging.getLogger(__name__)

_OK = 200
_CONNECT_S = 30.0


class ExtenderError(Exception):
    """An extender did not answer, or answered with an error."""


class Extender:
    """One extender."""

    def __init__(
        self,
        settings: configuration.Extender,
        session: aiohttp.ClientSession,
        *,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.settings = settings
        self._session = session
        self._managed = frozenset(managed.name for managed in settings.managed)
        self._tls = tls

    def is_interested(self, pod: Pod) -> bool:
        """Return whether it is asked about a pod: one that names a resource that it manages."""
        return not self._managed or not self._managed.isdisjoint(pod.names)

    @property
    def binds(self) -> bool:
        return bool(self.settings.bind_verb)

    async def filter(self, pod: Pod, rows: Sequence[Row]) -> tuple[list[Row], Counter[str]]:
        """Return the nodes that it leaves, and its reasons against the others, counted."""
        settings = self.settings
        if not settings.filter_verb:
            return list(rows), Counter()
        names_only = settings.node_cache_capable
        body = extender_messages.ask_nodes(pod, rows, names_only=names_only)
        answer = await self._send(settings.filter_verb, body)
        try:
            found = extender_messages.filtered(answer, names_only=names_only)
        except (AnswerError, errors.WireError) as error:
            raise ExtenderError(str(error)) from error
        by_name = {row.name: row for row in rows}
        for name in found.names:
            if name not in by_name:
                raise ExtenderError(
                    f'extender "{settings.url}" claims a filtered node "{name}" which is not found '
                    "in the input node list"
                )
        return [by_name[name] for name in found.names], Counter(found.failed.values())

    async def points(self, pod: Pod, rows: Sequence[Row]) -> Counter[str]:
        """Return its points for nodes, times its weight; none where it is not asked or fails."""
        settings = self.settings
        if not settings.prioritize_verb:
            return Counter()
        names_only = settings.node_cache_capable
        body = extender_messages.ask_nodes(pod, rows, names_only=names_only)
        try:
            given = extender_messages.points(await self._send(settings.prioritize_verb, body))
        except (ExtenderError, errors.WireError) as error:
            # The points of the others are enough to choose.
            _log.warning(
                "extender failed to prioritize, ignored",
                extra={"pod": pod.key, "error": str(error)},
            )
            return Counter()
        return Counter({name: points * settings.weight for name, points in given.items()})

    async def bind(self, pod: Pod, node: str) -> None:
        answer = await self._send(self.settings.bind_verb, extender_messages.ask_bind(pod, node))
        try:
            extender_messages.check_bound(answer)
        except (AnswerError, errors.WireError) as error:
            raise ExtenderError(str(error)) from error

    async def _send(self, verb: str, body: bytes) -> bytes:
        url = f"{self.settings.url}/{verb.lstrip('/')}"
        server_name = (self.settings.tls.server_name if self.settings.tls else "") or None
        try:
            async with (
                asyncio.timeout(self.settings.timeout),
                self._session.post(
                    url,
                    data=body,
                    headers={"Content-Type": "application/json"},
                    ssl=self._tls if self._tls is not None else True,
                    server_hostname=server_name,
                    allow_redirects=False,
                ) as response,
            ):
                if response.status != _OK:
                    raise ExtenderError(
                        f"failed {verb} with extender at URL {url}, code {response.status}"
                    )
                return await response.read()
        except TimeoutError as error:
            why = f"no answer within {self.settings.timeout:g} s"
            raise ExtenderError(f'Post "{url}": {why}') from error
        except (aiohttp.ClientError, OSError) as error:
            raise ExtenderError(f'Post "{url}": {str(error) or type(error).__name__}') from error


class Extenders:
    """All extenders, in the order of the configuration."""

    def __init__(self, settings: Iterable[configuration.Extender]) -> None:
        self._settings = tuple((extender, _tls(extender)) for extender in settings)
        self._session: aiohttp.ClientSession | None = None
        self._all: tuple[Extender, ...] = ()

    async def __aenter__(self) -> Self:
        # No limit of connections: a bind may wait for the node's lock for minutes.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "Go-http-client/1.1", "Accept-Encoding": "identity"},
        )
        self._all = tuple(
            Extender(settings, self._session, tls=tls) for settings, tls in self._settings
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def filter(self, pod: Pod, rows: Sequence[Row]) -> tuple[list[Row], Counter[str]]:
        """Call one after the other, each with the nodes that the former left."""
        left, reasons = list(rows), Counter[str]()
        for extender in self._interested(pod):
            if not left:
                break
            try:
                left, refused = await extender.filter(pod, left)
            except ExtenderError as error:
                _ignore(error, extender, pod)
            else:
                reasons += refused
        return left, reasons

    async def points(self, pod: Pod, rows: Sequence[Row]) -> Counter[str]:
        asked = [extender.points(pod, rows) for extender in self._interested(pod)]
        total = Counter[str]()
        for given in await asyncio.gather(*asked):
            total.update(given)
        return total

    async def bind(self, pod: Pod, node: str) -> bool:
        """Bind a pod through the extender that binds it; False: no extender does."""
        for extender in self._interested(pod):
            if not extender.binds:
                continue
            try:
                await extender.bind(pod, node)
            except ExtenderError as error:
                _ignore(error, extender, pod)
            else:
                return True
        return False

    def _interested(self, pod: Pod) -> list[Extender]:
        return [extender for extender in self._all if extender.is_interested(pod)]


def _ignore(error: ExtenderError, extender: Extender, pod: Pod) -> None:
    """Log the error of an ignorable extender; raise that of any other."""
    if not extender.settings.ignorable:
        raise error
    _log.warning(
        "extender failed, ignored as the configuration says",
        extra={"pod": pod.key, "error": str(error)},
    )


def _tls(settings: configuration.Extender) -> ssl.SSLContext | None:
    if not settings.url.startswith("https:"):
        return None
    asked = settings.tls or configuration.Tls()
    try:
        context = ssl.create_default_context(cafile=asked.ca_file or None)
        if asked.cert_file:
            context.load_cert_chain(asked.cert_file, asked.key_file or None)
    except OSError as error:  # an SSLError is one
        rule = f"the files of tlsConfig cannot be used: {error}"
        raise SandboxError(f"extender {settings.url}", rule, "name PEM files that exist") from error
    # As Go: a certificate need not have every extension that Python 3.13 demands.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if asked.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
