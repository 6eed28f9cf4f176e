"""Address and credentials of an API server, from a kubeconfig or given.

Certificates are kept as PEM text, whether they came from a file or as base64, so that a client
can be copied with other credentials and never depends on a file that is gone later.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import pathlib
import ssl
import tempfile
from typing import Any

import yaml


class KubeconfigError(ValueError):
    """The kubeconfig cannot be used; the message names the file and what it lacks."""


@dataclasses.dataclass(frozen=True)
class Access:
    server: str
    ca: str | None = None
    token: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True

    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca)
        # Python 3.13 refuses CAs without a key identifier; Go, and so every other client, does not.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate and self.key:
            # The ssl module loads a client's key only from a file.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
                pem.write(f"{self.certificate.rstrip()}\n{self.key.rstrip()}\n")
                pem.flush()
                context.load_cert_chain(pem.name)
        return context


def read(path: pathlib.Path, context: str | None = None) -> Access:
    """Return the access that a context of a kubeconfig gives; without a name, its current one."""
    config = yaml.safe_load(path.read_text())
    if not isinstance(config, dict):
        raise KubeconfigError(f"{path} is not a kubeconfig: it holds {type(config).__name__}")
    chosen = context or config.get("current-context")
    if not chosen:
        raise KubeconfigError(f"{path} has no current-context; name one of its contexts")
    link = _entry(path, config, "context", str(chosen))
    cluster = _entry(path, config, "cluster", str(link.get("cluster")))
    user = _entry(path, config, "user", str(link["user"])) if link.get("user") else {}
    if "exec" in user or "auth-provider" in user:
        raise KubeconfigError(
            f"{path}: user {link['user']!r} gets its credentials from a program; "
            f"give a token or a client certificate instead"
        )
    if not cluster.get("server"):
        raise KubeconfigError(f"{path}: cluster {link.get('cluster')!r} has no server")
    token = user.get("token")
    if token is None and "tokenFile" in user:
        token = (path.parent / user["tokenFile"]).read_text().strip()
    return Access(
        server=cluster["server"],
        ca=_pem(path, cluster, "certificate-authority"),
        token=token,
        certificate=_pem(path, user, "client-certificate"),
        key=_pem(path, user, "client-key"),
        verify=not cluster.get("insecure-skip-tls-verify", False),
    )


def write(access: Access, path: pathlib.Path) -> None:
    """Write a kubeconfig that `read` and kubectl understand, for the owner's eyes only."""

    def data(pem: str) -> str:
        return base64.b64encode(pem.encode()).decode()

    cluster: dict[str, Any] = {"server": access.server}
    if access.ca:
        cluster["certificate-authority-data"] = data(access.ca)
    if not access.verify:
        cluster["insecure-skip-tls-verify"] = True
    user: dict[str, Any] = {}
    if access.token:
        user["token"] = access.token
    if access.certificate and access.key:
        user["client-certificate-data"] = data(access.certificate)
        user["client-key-data"] = data(access.key)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default",
        "clusters": [{"name": "default", "cluster": cluster}],
        "users": [{"name": "default", "user": user}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
    }
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        yaml.safe_dump(config, file, sort_keys=False)


def _entry(path: pathlib.Path, config: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    for entry in config.get(f"{kind}s") or []:
        if entry.get("name") == name:
            found: dict[str, Any] = entry.get(kind) or {}
            return found
    raise KubeconfigError(f"{path} has no {kind} named {name!r}")


def _pem(path: pathlib.Path, section: dict[str, Any], field: str) -> str | None:
    """As kubectl does: the inline data counts where both are given; paths start at the file."""
    if section.get(f"{field}-data"):
        return base64.b64decode(section[f"{field}-data"]).decode()
    if section.get(field):
        return (path.parent / str(section[field])).read_text()
    return None
