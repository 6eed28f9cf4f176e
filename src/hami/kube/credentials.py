"""Credentials: tokens, certificates, exec plugins, files that change.

A token, a certificate or both come from a kubeconfig, from files that are replaced while we run, or
from a program that the kubeconfig names (client.authentication.k8s.io). A client asks for the
current ones before each request, and reports when the server refused them.

kubelet swaps a projected volume by a symbolic link, cert-manager by a rename; either way the path
leads to another file. So each use checks the file's identity, which costs microseconds, and reads
it when that has changed. Some file systems show changes late, so it is read again now and then in
any case. A file that cannot be read for a moment keeps its last content.

A program is run when credentials are needed, not at the start. Its answer is kept until the time
that it names, and forgotten when the server refuses it. Requests at the same moment wait for one
run.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from hami.kube import errors
from hami.wire import codec
from hami.wire import errors as wire_errors

_MOST = 1024 * 1024
_AT_LATEST = 60.0


class File:
    """A file that is read when it changes."""

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._text: str | None = None
        self._identity: tuple[int, int, int, int] | None = None
        self._read_at = 0.0

    def forget(self) -> None:
        """Read it again at the next use, even if it seems unchanged."""
        self._identity = None

    def text(self) -> str:
        try:
            return self._current()
        except (OSError, UnicodeError) as error:
            if self._text is not None:
                return self._text
            raise unreadable(self.path, error) from error

    def _current(self) -> str:
        found = pathlib.Path(self.path).stat()
        identity = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        old = self._clock() - self._read_at > _AT_LATEST
        if self._text is None or old or identity != self._identity:
            if found.st_size > _MOST:
                raise OSError(f"it has {found.st_size} bytes, more than {_MOST}")
            self._text = pathlib.Path(self.path).read_text(encoding="utf-8")
            self._identity = identity
            self._read_at = self._clock()
        return self._text


class Text:
    """A text that never changes, used like a file."""

    def __init__(self, text: str) -> None:
        self._text = text

    def forget(self) -> None:
        """Do nothing: there is no newer one."""

    def text(self) -> str:
        return self._text


Source = File | Text


def unreadable(path: str, error: Exception) -> errors.AccessError:
    """Return the error for a file that cannot be read."""
    reason = getattr(error, "strerror", None) or str(error)
    return errors.AccessError(
        path, f"cannot be read: {reason}", "check that it exists and that this user may read it"
    )


class Identity(msgspec.Struct, frozen=True):
    """What we show to the server; either may be empty. Certificate and key are PEM."""

    token: str = ""
    certificate: str = ""
    key: str = ""


class Identities(Protocol):
    """The source of our identity."""

    async def current(self) -> Identity:
        """Return what to show now; the same object for as long as it does not change."""

    def refused(self, shown: Identity) -> bool:
        """Take note that the server refused it; return whether `current` may give a newer one."""


class FromFiles:
    """An identity whose parts are files, replaced from time to time."""

    def __init__(
        self,
        *,
        token: Source | None = None,
        certificate: Source | None = None,
        key: Source | None = None,
    ) -> None:
        self._sources = (token, certificate, key)
        self._identity = Identity()

    async def current(self) -> Identity:
        token, certificate, key = (source.text() if source else "" for source in self._sources)
        found = Identity(token.strip(), certificate, key)
        if found != self._identity:
            self._identity = found
        return self._identity

    def refused(self, shown: Identity) -> bool:
        for source in self._sources:
            if source is not None:
                source.forget()
        # What other requests were given meanwhile may be newer already.
        now = tuple(source.text() if source else "" for source in self._sources)
        return Identity(now[0].strip(), *now[1:]) != shown


VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_TIMEOUT = 60.0
#: Seconds before its end that an answer is no longer used: the request takes time as well.
_MARGIN = 5.0


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """The program to run."""

    command: str
    api_version: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    #: What the program may know of the cluster; None: nothing.
    cluster: Mapping[str, object] | None = None
    install_hint: str = ""


class _Status(codec.Object, frozen=True):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class _Answer(codec.Object, frozen=True):
    api_version: str | None = None
    kind: str | None = None
    status: _Status | None = None


class FromProgram:
    """An identity that a program gives."""

    def __init__(
        self,
        plugin: Plugin,
        *,
        source: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._plugin = plugin
        self._source = f"{source}: exec {plugin.command}"
        self._now = now
        self._lock = asyncio.Lock()
        self._identity: Identity | None = None
        self._ends: float | None = None

    async def current(self) -> Identity:
        async with self._lock:
            if self._identity is None or (
                self._ends is not None and self._now() > self._ends - _MARGIN
            ):
                self._identity, self._ends = self._read(await self._run())
            return self._identity

    def refused(self, shown: Identity) -> bool:
        if self._identity is shown:
            self._identity = None
        return True

    async def _run(self) -> bytes:
        request = {
            "apiVersion": self._plugin.api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False}
            | ({"cluster": self._plugin.cluster} if self._plugin.cluster else {}),
        }
        environment = {
            **os.environ,
            **self._plugin.environment,
            "KUBERNETES_EXEC_INFO": codec.encode(request).decode(),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                self._plugin.command,
                *self._plugin.arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = self._plugin.install_hint or "install it, or correct users[].user.exec.command"
            raise self._failed(f"cannot be run: {error.strerror or error}", hint) from error
        try:
            async with asyncio.timeout(_TIMEOUT):
                out, err = await process.communicate()
        except TimeoutError as error:
            raise self._failed(
                f"gave no answer within {_TIMEOUT:g} s", "run it by hand and see what it asks"
            ) from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            last = errors.cut(err.decode(errors="replace").strip())
            raise self._failed(
                f"ended with code {process.returncode}: {last}", "run it by hand and see"
            )
        return out

    def _read(self, out: bytes) -> tuple[Identity, float | None]:
        try:
            answer = codec.decode(out, _Answer, what="ExecCredential")
        except wire_errors.WireError as error:
            raise self._failed(f"wrote no ExecCredential: {error}", _UPDATE) from error
        if (answer.kind, answer.api_version) != ("ExecCredential", self._plugin.api_version):
            raise self._failed(
                f"wrote {answer.kind} of {answer.api_version} instead of an ExecCredential of "
                f"{self._plugin.api_version}",
                _UPDATE,
            )
        status = answer.status or _Status()
        identity = Identity(
            status.token or "", status.client_certificate_data or "", status.client_key_data or ""
        )
        if not identity.token and not (identity.certificate and identity.key):
            raise self._failed("gave neither a token nor a certificate with its key", _UPDATE)
        return identity, self._end(status.expiration_timestamp)

    def _end(self, text: str | None) -> float | None:
        if not text:
            return None
        try:
            return dt.datetime.fromisoformat(text).timestamp()
        except ValueError as error:
            raise self._failed(f"gave the expirationTimestamp {text[:40]!r}", _UPDATE) from error

    def _failed(self, rule: str, remedy: str) -> errors.AccessError:
        return errors.AccessError(self._source, rule, remedy, retry=errors.Retry.AGAIN)


_UPDATE = "update the program"
