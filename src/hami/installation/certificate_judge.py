"""Whether a certificate that exists still serves, as a TLS client would judge it.

Certificates may come from others: a user's own authority, cert-manager, HAMi's job. So chains,
wildcards and every kind of key are understood, and whatever the bytes are, the answer is a
judgement and never an exception.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from hami.installation import host_names, pem
from hami.installation.certificates import Pair

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
    #: Why it cannot serve; empty: it can.
    fault: str
    ends: dt.datetime | None = None
    #: Whether it is in the last third of its life.
    old: bool = False


class _Unfit(Exception):  # noqa: N818 - it never leaves this module
    """It cannot serve; says why."""


def judge(pair: Pair, hosts: Collection[str], *, now: dt.datetime) -> Judgement:
    """Tell whether who trusts the authorities of a pair takes its certificate for each host."""
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
    """Return those authorities of a PEM text that can be read and have not ended."""
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
        raise _Unfit("has a certificate for no host at all") from None
    names = extension.value.get_values_for_type(x509.DNSName)
    addresses = extension.value.get_values_for_type(x509.IPAddress)
    for host in hosts:
        if not host_names.covered(host, names, addresses):
            raise _Unfit(f"has a certificate for other hosts than {host}")


def _check_key(certificate: x509.Certificate, content: bytes) -> None:
    own = serialization.load_pem_private_key(content, None).public_key()
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if own.public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise _Unfit("has the key of another certificate")


def _chain(
    served: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate]
) -> list[x509.Certificate]:
    """Return the way from a certificate to an authority that is trusted."""
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
        raise _Unfit(f"has ended on {certificate.not_valid_after_utc:%Y-%m-%d}")
    if now < certificate.not_valid_before_utc:
        raise _Unfit(f"begins only on {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC")


def _in_last_third(certificate: x509.Certificate, now: dt.datetime) -> bool:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return ends - now < (ends - begins) / 3
