"""The serving certificate: reloaded while serving; expiry dates.

kubelet swaps a mounted Secret by changing one symlink (`..data`); other tools rewrite the files one
after the other. `watch` checks the files every second and makes a whole new TLS context when they
have changed. It is used only if certificate and key belong together: a half-written pair leaves
the old one in use.

A context cannot remove a client CA, and it resumes sessions that a removed CA signed. So it is
never changed but replaced: `LiveCertificate.context` passes each new connection to the newest
context. Existing connections keep theirs; clients of a removed CA are no longer trusted
(`vouches_for`), even on connections that are kept alive.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import pathlib
import ssl
from collections.abc import Callable
from typing import Any

from hami.serving import lifetime

_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_END = "-----END CERTIFICATE-----"
_LONG_FORM = 0x80


def expiry(pem: str) -> dt.datetime:
    """Return when the first certificate of a PEM text expires; ValueError if unreadable.

    Python's ssl module gives the dates only of a verified peer, and a library for it would be
    larger than this. A certificate is DER, nested (tag, length, content); the path to `notAfter` is
    short.
    """
    first, end, _ = pem.partition(_END)
    start = first.find("-----BEGIN CERTIFICATE-----")
    if not end or start < 0:
        raise ValueError("no certificate in PEM form")
    certificate = ssl.PEM_cert_to_DER_cert(first[start:] + end)
    (to_be_signed, *_) = _parts(_only(certificate, _SEQUENCE))
    fields = _parts(_content(to_be_signed, _SEQUENCE))
    # version (absent in version 1), serial number, algorithm, issuer, validity.
    validity = fields[4 if fields[0][0] == _VERSION else 3]
    _, (tag, until) = _parts(_content(validity, _SEQUENCE))
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError("its expiry is no time")
    text = until.decode("ascii")
    # Two digits of a year count from 1950 (RFC 5280); strptime counts from 1969.
    if tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC)


def _parts(data: bytes) -> list[tuple[int, bytes]]:
    """Split DER into its (tag, content)."""
    found = []
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("it is cut off")
        tag, length = data[at], data[at + 1]
        at += 2
        if length >= _LONG_FORM:
            size = length - _LONG_FORM
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("it is cut off")
        found.append((tag, data[at : at + length]))
        at += length
    return found


def _content(part: tuple[int, bytes], tag: int) -> bytes:
    if part[0] != tag:
        raise ValueError(f"it has tag {part[0]} instead of {tag}")
    return part[1]


def _only(data: bytes, tag: int) -> bytes:
    (part,) = _parts(data)
    return _content(part, tag)


_log = logging.getLogger(__name__)

_DAY = dt.timedelta(days=1)

#: Identity of the files and of the folder's `..data` link; it differs after a change.
_Signature = tuple[tuple[int, int, int] | None, ...]


class _Context(ssl.SSLContext):
    """The TLS context of one version of the files."""

    #: The client CAs, each as its bytes.
    authorities: frozenset[bytes] = frozenset()


class _Front(ssl.SSLContext):
    """Passes each connection to the newest context, for servers that take one context only.

    asyncio and uvloop call one method of it per connection: `wrap_bio`.
    """

    newest: _Context

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*args, **kwargs)


class LiveCertificate:
    """Certificate, key and client CA as the files are now."""

    def __init__(
        self,
        cert_file: str,
        key_file: str,
        client_ca_file: str = "",
        *,
        poll_interval: float = 1.0,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        if not (cert_file and key_file):
            raise lifetime.ServingError(
                f"certificate file {cert_file!r} and key file {key_file!r}: one of them is empty; "
                "name both, or none for plain HTTP"
            )
        self._cert_file = cert_file
        self._key_file = key_file
        self._client_ca_file = client_ca_file
        self._poll_interval = poll_interval
        self._now = now
        self._seen = self._signature()
        #: The files that were refused last, so that each version is reported once.
        self._refused: _Signature | None = None
        #: For the server; it never changes and passes connections to the newest context.
        self.context = _Front(ssl.PROTOCOL_TLS_SERVER)
        self.expires_at: dt.datetime
        self._load()

    @classmethod
    def from_files(
        cls, cert_file: str, key_file: str, client_ca_file: str = ""
    ) -> LiveCertificate | None:
        """Return the certificate in these files; None without one: plain HTTP."""
        return cls(cert_file, key_file, client_ca_file) if cert_file else None

    def days_left(self) -> float:
        """Return the days until the certificate expires; below 0 once it has."""
        return (self.expires_at - self._now()) / _DAY

    def vouches_for(self, connection: ssl.SSLObject | None) -> bool:
        """Tell whether the peer presented a certificate of a client CA that is still trusted."""
        if connection is None or not isinstance(connection.context, _Context):
            return False
        if not connection.getpeercert(binary_form=True):
            return False
        # ssl does not name the CA that signed it, so all of them must still be trusted.
        return connection.context.authorities <= self.context.newest.authorities

    async def watch(self) -> None:
        """Check the files periodically, without end."""
        while True:
            await asyncio.sleep(self._poll_interval)
            self.refresh()

    def refresh(self) -> bool:
        """Load the files if they have changed and are valid; returns whether they were loaded."""
        # Taken before the files are read: a change meanwhile is found at the next check.
        signature = self._signature()
        if signature == self._seen:
            return False
        try:
            self._load()
        except lifetime.ServingError as error:
            if signature != self._refused:
                _log.warning(
                    "changed certificate is not usable, the previous one stays in use",
                    extra={"file": self._cert_file, "error": str(error)},
                )
                self._refused = signature
            return False
        self._seen, self._refused = signature, None
        _log.info(
            "certificate reloaded",
            extra={"file": self._cert_file, "expires": self.expires_at.isoformat()},
        )
        return True

    def _load(self) -> None:
        """Make a context of the files; it becomes the newest one if all of them are valid."""
        expires_at = self._expiry()
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # An encrypted key would otherwise ask for its password on a terminal.
            context.load_cert_chain(self._cert_file, self._key_file, password="")
        except (OSError, ValueError) as error:
            raise lifetime.ServingError(
                f"certificate {self._cert_file} and key {self._key_file} do not make a pair: "
                f"{_reason(error)}; write a PEM certificate chain, its own certificate first, "
                "and the unencrypted PEM key that belongs to it"
            ) from error
        if self._client_ca_file:
            self._trust_clients(context)
        self.context.newest = context
        self.expires_at = expires_at
        if self.days_left() < 0:
            _log.error(
                "certificate has expired, clients refuse it; renew it with `hami certs create`",
                extra={"file": self._cert_file, "expires": expires_at.isoformat()},
            )

    def _trust_clients(self, context: _Context) -> None:
        # Optional: a client without a certificate may still use the public paths.
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cafile=self._client_ca_file)
        except (OSError, ValueError) as error:
            raise lifetime.ServingError(
                f"client CA {self._client_ca_file} cannot be read: {_reason(error)}; "
                "write one or more CA certificates in PEM form"
            ) from error
        context.authorities = frozenset(context.get_ca_certs(binary_form=True))
        if not context.authorities:
            raise lifetime.ServingError(
                f"client CA {self._client_ca_file} holds no CA certificate, so no client could be "
                "trusted; write the certificate of the CA that signs the clients' certificates"
            )

    def _expiry(self) -> dt.datetime:
        try:
            text = pathlib.Path(self._cert_file).read_text(encoding="ascii", errors="replace")
            return expiry(text)
        except OSError as error:
            raise lifetime.ServingError(
                f"certificate {self._cert_file} cannot be read: {_reason(error)}; "
                "mount the Secret or correct the path"
            ) from error
        except (ValueError, IndexError) as error:
            raise lifetime.ServingError(
                f"certificate {self._cert_file} cannot be decoded: {error}; "
                "write a PEM certificate chain, its own certificate first"
            ) from error

    def _signature(self) -> _Signature:
        named = (self._cert_file, self._key_file, self._client_ca_file)
        files = [file for file in named if file]
        links = [str(pathlib.Path(file).parent / "..data") for file in files]
        return (*map(_stat, files), *(_stat(link, follow=False) for link in links))


def _stat(path: str, *, follow: bool = True) -> tuple[int, int, int] | None:
    try:
        found = pathlib.Path(path).stat(follow_symlinks=follow)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
