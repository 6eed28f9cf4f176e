"""The cluster's certificates and kubeconfigs: one identity per component.

Identities are the ones that Kubernetes' own roles are written for, so RBAC and the node authorizer
judge our components as they would in any cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import authority as authorities
from tests.kubeapi import access
from tests.kubeapi.access import Access


@dataclass(frozen=True)
class Authority:
    issuer: authorities.Authority
    file: Path


def new_authority(folder: Path, name: str) -> Authority:
    issuer = authorities.Authority(name)
    file = folder / f"{name}.crt"
    file.write_text(issuer.pem)
    return Authority(issuer, file)


def issue(
    folder: Path,
    authority: Authority,
    file_name: str,
    user: str,
    groups: Sequence[str] = (),
    *,
    addresses: Sequence[str] = (),
) -> tuple[Path, Path]:
    """Write a certificate and key that serve both as client and, with addresses, as server."""
    issued = authority.issuer.issue(user, groups=groups, hosts=addresses)
    certificate = folder / f"{file_name}.crt"
    certificate.write_text(issued.certificate)
    return certificate, _write_key(folder / f"{file_name}.key", issued.key)


def new_signing_key(folder: Path, name: str) -> Path:
    """Write the key that service-account tokens are signed with (its public half lies in it)."""
    return _write_key(folder / f"{name}.key", authorities.new_key())


def write_kubeconfig(
    path: Path, server: str, authority: Authority, identity: tuple[Path, Path]
) -> Path:
    """Write one that depends on no other file, so that it works inside a machine's root as well."""
    certificate, key = identity
    access.write(
        Access(
            server,
            ca=authority.file.read_text(),
            certificate=certificate.read_text(),
            key=key.read_text(),
        ),
        path,
    )
    return path


def _write_key(path: Path, key: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(key)
    return path
