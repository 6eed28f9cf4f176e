"""The cluster's certificates and kubeconfig files: one authority, one identity per component.

Identities are the ones that Kubernetes' own roles are written for, so RBAC and the node authorizer
judge our components as they would in any cluster.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.kubeapi import access
from tests.kubeapi.access import Access

VALID_DAYS = 30


@dataclass(frozen=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    file: Path


def new_authority(folder: Path, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _certificate(subject, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key, _write_certificate(folder / f"{name}.crt", certificate))


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
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        + [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    )
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = _certificate(subject, authority.certificate.subject, key.public_key()).add_extension(
        x509.ExtendedKeyUsage(uses), critical=False
    )
    if addresses:
        names = [_alternative_name(address) for address in addresses]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = _write_certificate(
        folder / f"{file_name}.crt", builder.sign(authority.key, hashes.SHA256())
    )
    return certificate, _write_key(folder / f"{file_name}.key", key)


def new_signing_key(folder: Path, name: str) -> Path:
    """Write the key that service-account tokens are signed with (its public half lies in it)."""
    return _write_key(folder / f"{name}.key", ec.generate_private_key(ec.SECP256R1()))


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


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=VALID_DAYS))
    )


def _alternative_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _write_certificate(path: Path, certificate: x509.Certificate) -> Path:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return path


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path
