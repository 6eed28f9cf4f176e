"""The certificate that we serve, exchanged while we serve.

kubelet swaps a mounted Secret by turning one symlink (`..data`); other tools rewrite the files one
after the other. `watch` looks at the files every second, makes a whole new TLS context when they
changed, and takes it over only if certificate and key belong together: a half-written pair leaves
the old one in service.

A context cannot forget a client CA, and it resumes sessions that a forgotten CA vouched for. So it
is never changed but replaced: `LiveCertificate.context` is a front that hands each new connection
to the newest context. Connections that exist keep theirs; those of a client whose CA has been
taken away are no longer vouched for (`vouches_for`), even if they are kept alive.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import pathlib
import ssl
from collections.abc import Callable
from typing import Any

from hami.serving import certificate_dates, errors

_log = logging.getLogger(__name__)

_DAY = dt.timedelta(days=1)

#: What tells a changed file: of the file, and of the folder's `..data` link.
_Signature = tuple[tuple[int, int, int] | None, ...]


class _Context(ssl.SSLContext):
    """One state of the files."""

    #: The client CAs, each as its bytes.
    authorities: frozenset[bytes] = frozenset()


class _Front(ssl.SSLContext):
    """Stands for whichever context is newest, in servers that take one context for their life.

    asyncio and uvloop ask the context for one thing per connection: `wrap_bio`.
    """

    newest: _Context

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*args, **kwargs)


class LiveCertificate:
    """Certificate, key and client CA as the files have them now."""

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
            raise errors.ServingError(
                f"certificate file {cert_file!r} and key file {key_file!r}: one of them is empty; "
                "name both, or none for plain HTTP"
            )
        self._cert_file = cert_file
        self._key_file = key_file
        self._client_ca_file = client_ca_file
        self._poll_interval = poll_interval
        self._now = now
        self._seen = self._signature()
        #: What was refused last, so that each content is reported once.
        self._refused: _Signature | None = None
        #: Given to the server; never changes, hands connections to the newest context.
        self.context = _Front(ssl.PROTOCOL_TLS_SERVER)
        self.expires_at: dt.datetime
        self._load()

    @property
    def days(self) -> float:
        """Days until the certificate expires; below 0 once it has."""
        return (self.expires_at - self._now()) / _DAY

    def vouches_for(self, connection: ssl.SSLObject | None) -> bool:
        """Tell whether the peer has shown a certificate of a client CA that is still trusted."""
        if connection is None or not isinstance(connection.context, _Context):
            return False
        if not connection.getpeercert(binary_form=True):
            return False
        # Which of the CAs vouched is not told, so none may have gone since.
        return connection.context.authorities <= self.context.newest.authorities

    async def watch(self) -> None:
        """Follow the files for ever."""
        while True:
            await asyncio.sleep(self._poll_interval)
            self.refresh()

    def refresh(self) -> bool:
        """Take over the files if they have changed and fit; returns whether they were."""
        # Taken before the files are read: a change meanwhile is seen the next time.
        signature = self._signature()
        if signature == self._seen:
            return False
        try:
            self._load()
        except errors.ServingError as error:
            if signature != self._refused:
                _log.warning(
                    "changed certificate is not usable; the one before stays in service",
                    extra={"file": self._cert_file, "error": str(error)},
                )
                self._refused = signature
            return False
        self._seen, self._refused = signature, None
        _log.info(
            "certificate exchanged",
            extra={"file": self._cert_file, "expires": self.expires_at.isoformat()},
        )
        return True

    def _load(self) -> None:
        """Make a context of the files, and only if all is well the newest one."""
        expires_at = self._expiry()
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # An encrypted key would otherwise ask for its password on a terminal.
            context.load_cert_chain(self._cert_file, self._key_file, password="")
        except (OSError, ValueError) as error:
            raise errors.ServingError(
                f"certificate {self._cert_file} and key {self._key_file} do not make a pair: "
                f"{_reason(error)}; write a PEM certificate chain, its own certificate first, "
                "and the unencrypted PEM key that belongs to it"
            ) from error
        if self._client_ca_file:
            self._trust_clients(context)
        self.context.newest = context
        self.expires_at = expires_at
        if self.days < 0:
            _log.error(
                "certificate has expired, clients will refuse it; renew it",
                extra={"file": self._cert_file, "expires": expires_at.isoformat()},
            )

    def _trust_clients(self, context: _Context) -> None:
        # Optional: without a certificate a client may still ask for what anybody may.
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cafile=self._client_ca_file)
        except (OSError, ValueError) as error:
            raise errors.ServingError(
                f"client CA {self._client_ca_file} cannot be read: {_reason(error)}; "
                "write one or more CA certificates in PEM form"
            ) from error
        context.authorities = frozenset(context.get_ca_certs(binary_form=True))
        if not context.authorities:
            raise errors.ServingError(
                f"client CA {self._client_ca_file} holds no CA certificate, so nobody could be "
                "trusted; write the certificate of the CA that signs the clients' certificates"
            )

    def _expiry(self) -> dt.datetime:
        try:
            text = pathlib.Path(self._cert_file).read_text(encoding="ascii", errors="replace")
            return certificate_dates.expiry(text)
        except OSError as error:
            raise errors.ServingError(
                f"certificate {self._cert_file} cannot be read: {_reason(error)}; "
                "mount the Secret or correct the path"
            ) from error
        except (ValueError, IndexError) as error:
            raise errors.ServingError(
                f"certificate {self._cert_file} is none: {error}; "
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
