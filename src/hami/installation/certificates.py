"""A server's certificate with an authority of its own.

The authority signs one certificate, and its key is forgotten: whoever trusts it trusts exactly that
server. A renewal therefore makes a new authority, too.

This module loads cryptography, an extra that only the jobs of an installation need. Import it where
a certificate must be made or read, not before. Whether an existing one still serves is told by
`hami.installation.certificate_judge`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hami.installation import host_names

#: Clocks of other machines may be behind.
_SLACK = dt.timedelta(minutes=5)
_SHOWN_DIGITS = 8
_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class Pair(NamedTuple):
    """PEM: a certificate with what stands between it and its authority; its key; authorities."""

    certificate: bytes
    key: bytes
    authorities: bytes

    def __repr__(self) -> str:
        return "Pair(...)"  # a key must not get into a log


def issue(hosts: Sequence[str], *, lifetime: dt.timedelta, now: dt.datetime) -> Pair:
    """Make an authority and its one certificate."""
    signing_key = ec.generate_private_key(ec.SECP256R1())
    signer = x509.SubjectKeyIdentifier.from_public_key(signing_key.public_key())
    # Where a file holds several authorities, the names tell a person which is which.
    issuer = _name(f"hami CA {signer.digest.hex()[:_SHOWN_DIGITS]}")
    dates = (now - _SLACK, now + lifetime)
    authority = (
        _begun(issuer, issuer, signing_key, dates)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign"), critical=True)
    )
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])
    by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer)
    server = (
        _begun(_name("hami"), issuer, key, dates)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(by, critical=False)
        .add_extension(names, critical=False)
    )
    return Pair(
        certificate=_signed(server, signing_key),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        authorities=_signed(authority, signing_key),
    )


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    dates: tuple[dt.datetime, dt.datetime],
) -> x509.CertificateBuilder:
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dates[0])
        .not_valid_after(dates[1])
        .add_extension(own, critical=False)
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage == allowed for usage in _USAGES})


def _alternative_name(host: str) -> x509.GeneralName:
    address = host_names.address(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)
