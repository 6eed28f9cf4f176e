"""The way to one API server, as it is at this moment.

Asked before every request, because tokens and certificates change while we run:
`Access.credentials()` gives those of now. After a 401 the client calls `refused`, and what it is
given next is new, if there is anything newer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Iterator
from typing import NamedTuple

from hami.kube import errors, files
from hami.kube.identity import Identities, Identity

_log = logging.getLogger(__name__)


DEFAULT_NAMESPACE = "default"


class Credentials(NamedTuple):
    identity: Identity
    #: None for a server of plain HTTP.
    tls: ssl.SSLContext | None


class Access:
    def __init__(
        self,
        server: str,
        *,
        identities: Identities,
        authority: files.Source | None = None,
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
        identity = await self._identities.current()
        if not (identity.token.isascii() and identity.token.isprintable()):
            raise errors.AccessError(
                self.origin, "its token has characters that no token has", "write it anew"
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
        # Python would take that for the wish to trust every authority of this machine.
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
    raise ValueError("the client key is encrypted, and there is nobody to ask for its password")


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
