"""Who we are to the API server: a token, a certificate, or both.

They come from a kubeconfig, from files that others replace, or from a program
(`hami.kube.exec_credential`). Whoever sends a request asks for the current one each time, and says
when the server refused it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from hami.kube import files


class Identity(msgspec.Struct, frozen=True):
    """What we show of ourselves; either may be empty. Certificate and key are PEM."""

    token: str = ""
    certificate: str = ""
    key: str = ""


class Identities(Protocol):
    """Where our identity comes from."""

    async def current(self) -> Identity:
        """Return what to show now; the same object for as long as it does not change."""

    def refused(self, shown: Identity) -> bool:
        """Take note that the server refused it; return whether `current` may give a newer one."""


class FromFiles:
    """An identity whose parts are files, replaced from time to time."""

    def __init__(
        self,
        *,
        token: files.Source | None = None,
        certificate: files.Source | None = None,
        key: files.Source | None = None,
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
