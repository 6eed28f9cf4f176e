"""Access to the sandbox's API server: certificate, tokens, kubeconfig files.

Every sandbox gets new ones, which are removed with its folder.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import secrets
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hami.installation import certificates
from hami.node import files

AUTHORITY = "ca.crt"
CERTIFICATE = "tls.crt"
KEY = "tls.key"
TOKENS = "tokens.json"
KUBELET_TOKEN = "kubelet-token"  # noqa: S105 - the name of a file
ADMIN = "kubernetes-admin"
LOOPBACK = ("127.0.0.1", "localhost")

_MASTERS = "system:masters"
_LIFETIME = dt.timedelta(days=30)


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A row of tokens.json: a request with the token is the user's."""

    token: str
    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()


def make(folder: Path, hosts: Sequence[str] = LOOPBACK, *, users: Sequence[str] = ()) -> None:
    """Create everything that the server needs; the first token is the administrator's.

    Further users are administrators under other names, which the server's log shows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pair = certificates.issue(hosts, lifetime=_LIFETIME, now=dt.datetime.now(dt.UTC))
    (folder / AUTHORITY).write_bytes(pair.authorities)
    (folder / CERTIFICATE).write_bytes(pair.certificate)
    _write_private(folder / KEY, pair.key)
    known = [
        User(token=secrets.token_urlsafe(32), user=user, uid=user, groups=(_MASTERS,))
        for user in (ADMIN, *users)
    ]
    _write_private(folder / TOKENS, msgspec.json.encode(known))
    _write_private(folder / KUBELET_TOKEN, secrets.token_urlsafe(32).encode())


def users(folder: Path) -> list[User]:
    return msgspec.json.decode((folder / TOKENS).read_bytes(), type=list[User])


def write_kubeconfig(
    path: Path,
    *,
    server: str,
    ca: bytes,
    token: str,
    namespace: str = "default",
    user: str = ADMIN,
) -> None:
    """Write a kubeconfig atomically, as JSON, which is YAML too."""
    name = "hami-sandbox"
    authority = b64encode(ca).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": user, "namespace": namespace}}
        ],
        "current-context": name,
    }
    files.write_atomic(path, json.dumps(config, indent=2).encode() + b"\n", mode=0o600)


def _write_private(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
