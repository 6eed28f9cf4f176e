"""Certificates for tests: an authority, and what it issues, as PEM text."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 30
_SLACK = dt.timedelta(hours=1)
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Issued(NamedTuple):
    certificate: str
    key: str


class Authority:
    """An authority of a test; `old`: without the extensions that Python 3.13's clients demand."""

    def __init__(self, name: str, *, old: bool = False) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._id = (
            None if old else x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        )
        builder = _builder(self._name, self._name, self._key, days=VALID_DAYS).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        if self._id is not None:
            builder = builder.add_extension(self._id, critical=False)
            builder = builder.add_extension(_SIGNS, critical=True)
        self.pem = self._signed(builder)

    def issue(
        self,
        name: str,
        *,
        groups: Sequence[str] = (),
        hosts: Sequence[str] = ("127.0.0.1",),
        days: float = VALID_DAYS,
    ) -> Issued:
        """Make a certificate for a client that is also, with hosts, one for a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = _builder(_name(name, groups), self._name, key, days=days).add_extension(
            x509.ExtendedKeyUsage(uses), critical=False
        )
        if self._id is not None:
            by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._id)
            builder = builder.add_extension(by, critical=False)
        if hosts:
            names = [_alternative_name(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Issued(self._signed(builder), _key_pem(key))

    def _signed(self, builder: x509.CertificateBuilder) -> str:
        made = builder.sign(self._key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM).decode()


def new_key() -> str:
    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        # Every reader takes this form; kube-apiserver checks tokens with a private key in no other.
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()


def _name(name: str, groups: Sequence[str] = ()) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        + [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: float
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    end = now + dt.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - _SLACK)  # one that has expired was valid once
        .not_valid_after(end)
    )
