"""Make a server certificate with its own authority, and check an existing one.

The authority signs one certificate, and its key is not kept: a client that trusts it trusts exactly
that server. A renewal therefore makes a new authority, too.

This module loads cryptography; `hami.installation.pem`, for processes that serve, does not.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hami.installation import pem

#: Other machines' clocks may be behind.
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
    """PEM: a certificate with its intermediates, its key, and the authorities to trust."""

    certificate: bytes
    key: bytes
    authorities: bytes

    def __repr__(self) -> str:
        return "Pair(...)"  # keeps the key out of logs


def issue(hosts: Sequence[str], *, lifetime: dt.timedelta, now: dt.datetime) -> Pair:
    """Make an authority and the only certificate that it signs."""
    signing_key = ec.generate_private_key(ec.SECP256R1())
    signer = x509.SubjectKeyIdentifier.from_public_key(signing_key.public_key())
    # If a file holds several authorities, their names differ.
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
    address = pem.host_address(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


_SERVING = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
_UNREADABLE = (
    ValueError,
    TypeError,
    exceptions.UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


class Judgement(NamedTuple):
    """Whether a certificate can be used, and until when."""

    #: Why it cannot be used; empty: it can.
    fault: str
    ends: dt.datetime | None = None
    #: It is in the last third of its lifetime.
    old: bool = False


class _Unfit(Exception):  # noqa: N818 - it never leaves this module
    """The certificate cannot be used; the message says why."""


def judge(pair: Pair, hosts: Collection[str], *, now: dt.datetime) -> Judgement:
    """Check that a client that trusts the pair's authorities accepts it for each host.

    Certificates may come from a user's own authority, cert-manager or HAMi's job: chains, wildcards
    and every kind of key are read. Unreadable bytes are a fault, never an exception.
    """
    try:
        with _reading("tls.crt", pair.certificate):
            served = x509.load_pem_x509_certificates(pair.certificate)
            _check_purpose(served[0])
            _check_hosts(served[0], hosts)
        with _reading("tls.key", pair.key):
            _check_key(served[0], pair.key)
        with _reading("ca.crt", pair.authorities):
            trusted = x509.load_pem_x509_certificates(pair.authorities)
        chain = _chain(served, trusted)
        for certificate in chain:
            _check_dates(certificate, now)
    except _Unfit as unfit:
        return Judgement(str(unfit))
    return Judgement(
        "",
        ends=min(certificate.not_valid_after_utc for certificate in chain),
        old=any(_in_last_third(certificate, now) for certificate in chain),
    )


def still_valid(authorities: bytes, *, now: dt.datetime) -> list[bytes]:
    """Return the authorities of a PEM text that can be read and have not expired."""
    return [block for block in pem.blocks(authorities) if _ends_after(block, now)]


def _ends_after(block: bytes, now: dt.datetime) -> bool:
    try:
        return x509.load_pem_x509_certificate(block).not_valid_after_utc > now
    except _UNREADABLE:
        return False


@contextlib.contextmanager
def _reading(what: str, content: bytes) -> Iterator[None]:
    if not content:
        raise _Unfit(f"has no {what}")
    try:
        yield
    except _UNREADABLE as error:
        raise _Unfit(f"has a {what} that cannot be read") from error


def _check_purpose(certificate: x509.Certificate) -> None:
    with contextlib.suppress(x509.ExtensionNotFound):
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if _SERVING.isdisjoint(usages):
            raise _Unfit("has a certificate that is not for servers")


def _check_hosts(certificate: x509.Certificate, hosts: Collection[str]) -> None:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        raise _Unfit("has a certificate that names no host") from None
    names = extension.value.get_values_for_type(x509.DNSName)
    addresses = extension.value.get_values_for_type(x509.IPAddress)
    for host in hosts:
        if not pem.covered(host, names, addresses):
            raise _Unfit(f"has a certificate that does not cover {host}")


def _check_key(certificate: x509.Certificate, content: bytes) -> None:
    own = serialization.load_pem_private_key(content, None).public_key()
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if own.public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise _Unfit("has the key of another certificate")


def _chain(
    served: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate]
) -> list[x509.Certificate]:
    """Return the chain from a certificate to a trusted authority."""
    chain = [served[0]]
    between = list(served[1:])
    while True:
        if root := _signer(chain[-1], trusted):
            return [*chain, root]
        step = _signer(chain[-1], between)
        if step is None:
            raise _Unfit("has a ca.crt that did not sign its certificate")
        between.remove(step)
        chain.append(step)


def _signer(
    certificate: x509.Certificate, candidates: Sequence[x509.Certificate]
) -> x509.Certificate | None:
    for candidate in candidates:
        with contextlib.suppress(exceptions.InvalidSignature, *_UNREADABLE):
            certificate.verify_directly_issued_by(candidate)
            return candidate
    return None


def _check_dates(certificate: x509.Certificate, now: dt.datetime) -> None:
    if now >= certificate.not_valid_after_utc:
        raise _Unfit(f"has expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
    if now < certificate.not_valid_before_utc:
        raise _Unfit(f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC")


def _in_last_third(certificate: x509.Certificate, now: dt.datetime) -> bool:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return ends - now < (ends - begins) / 3
