"""Certificates for tests: authorities, and folders that look like mounted Secrets."""

from __future__ import annotations

import datetime as dt
import ipaddress
import itertools
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_numbers = itertools.count(1)


class Authority:
    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            _builder(self._name, self._name, self._key, days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *, days: float = 30) -> tuple[bytes, bytes]:
        """Return certificate and key, both PEM, for 127.0.0.1 and for clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            _builder(subject, self._name, key, days=days)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), key_pem(key)


def key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: float
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(next(_numbers))
        .not_valid_before(now - dt.timedelta(days=400))
        .not_valid_after(now + dt.timedelta(days=days))
    )


class Secret:
    """A folder as kubelet mounts a Secret: files are links through `..data`, which is swapped."""

    def __init__(self, folder: Path, **files: bytes) -> None:
        self._folder = folder
        self._turns = itertools.count()
        folder.mkdir()
        self.swap(**files)
        for name in files:
            (folder / name).symlink_to(Path("..data") / name)

    def swap(self, **files: bytes) -> None:
        version = self._folder / f"..version_{next(self._turns)}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_bytes(content)
        link = self._folder / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self._folder / "..data")

    def path(self, name: str) -> str:
        return str(self._folder / name)


def client_context(
    trusts: Authority, folder: Path, identity: tuple[bytes, bytes] | None = None
) -> ssl.SSLContext:
    """Make the TLS of a client that trusts an authority and may show a certificate."""
    context = ssl.create_default_context(cadata=trusts.pem.decode())
    if identity is not None:
        certificate, key = folder / "client.crt", folder / "client.key"
        certificate.write_bytes(identity[0])
        key.write_bytes(identity[1])
        context.load_cert_chain(certificate, key)
    return context
