"""TLS files: folders like mounted Secrets, and a client's certificate."""

from __future__ import annotations

import itertools
import ssl
from pathlib import Path

from tests.authority import Authority, Issued


class Secret:
    """A folder as kubelet mounts a Secret: files are links through `..data`, which is swapped."""

    def __init__(self, folder: Path, **files: str) -> None:
        self._folder = folder
        self._turns = itertools.count()
        folder.mkdir()
        self.swap(**files)
        for name in files:
            (folder / name).symlink_to(Path("..data") / name)

    def swap(self, **files: str) -> None:
        version = self._folder / f"..version_{next(self._turns)}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_text(content)
        link = self._folder / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self._folder / "..data")

    def path(self, name: str) -> str:
        return str(self._folder / name)


def client_context(
    trusts: Authority, folder: Path, identity: Issued | None = None
) -> ssl.SSLContext:
    """Make the TLS of a client that trusts an authority and may show a certificate."""
    context = ssl.create_default_context(cadata=trusts.pem)
    if identity is not None:
        certificate, key = folder / "client.crt", folder / "client.key"
        certificate.write_text(identity.certificate)
        key.write_text(identity.key)
        context.load_cert_chain(certificate, key)
    return context
