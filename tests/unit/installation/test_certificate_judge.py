"""Valid certificates: ours, those of others, and bytes that are none."""

from __future__ import annotations

import datetime as dt
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from hami.installation import certificates
from hami.installation.certificates import Pair
from tests import authority as authorities

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)
HOST = "hami-webhook.kube-system.svc"
HOSTS = (HOST, "127.0.0.1")
GOOD = certificates.issue(HOSTS, lifetime=90 * DAY, now=NOW)
OTHER = certificates.issue(HOSTS, lifetime=90 * DAY, now=NOW)


def fault(pair: Pair, *hosts: str, now: dt.datetime = NOW) -> str:
    return certificates.judge(pair, hosts or HOSTS, now=now).fault


def test_what_we_make_is_good_until_its_end() -> None:
    judged = certificates.judge(GOOD, HOSTS, now=NOW)
    assert (judged.fault, judged.old) == ("", False)
    assert judged.ends == (NOW + 90 * DAY).replace(microsecond=0)


@pytest.mark.parametrize(("days", "old"), [(59, False), (61, True)])
def test_it_is_old_in_the_last_third_of_its_life(days: int, old: bool) -> None:
    judged = certificates.judge(GOOD, HOSTS, now=NOW + days * DAY)
    assert (judged.fault, judged.old) == ("", old)


@pytest.mark.parametrize(
    ("pair", "reply"),
    [
        (GOOD._replace(certificate=b""), "has no tls.crt"),
        (GOOD._replace(key=b""), "has no tls.key"),
        (GOOD._replace(authorities=b""), "has no ca.crt"),
        (GOOD._replace(certificate=b"garbage"), "has a tls.crt that cannot be read"),
        (GOOD._replace(key=b"garbage"), "has a tls.key that cannot be read"),
        (GOOD._replace(authorities=b"garbage"), "has a ca.crt that cannot be read"),
        (GOOD._replace(key=OTHER.key), "has the key of another certificate"),
        (
            GOOD._replace(authorities=OTHER.authorities),
            "has a ca.crt that did not sign its certificate",
        ),
        (GOOD._replace(certificate=GOOD.certificate[:-60]), "has a tls.crt that cannot be read"),
    ],
)
def test_what_cannot_serve_is_named(pair: Pair, reply: str) -> None:
    assert fault(pair) == reply


def test_every_host_counts() -> None:
    assert fault(GOOD, *HOSTS, "other.svc") == "has a certificate that does not cover other.svc"
    assert fault(GOOD, "127.0.0.2") == "has a certificate that does not cover 127.0.0.2"
    assert fault(GOOD, HOST) == ""


def test_dates_count() -> None:
    assert fault(GOOD, now=NOW + 91 * DAY).startswith("has expired on 20")
    assert fault(GOOD, now=NOW - DAY).startswith("is not valid before 20")


@given(st.binary(max_size=200), st.sampled_from(Pair._fields), st.integers(0, 600))
def test_whatever_the_bytes_are_it_is_a_judgement(junk: bytes, field: str, at: int) -> None:
    whole = getattr(GOOD, field)
    spoiled = whole[:at] + junk + whole[at + len(junk) :]
    judged = certificates.judge(GOOD._replace(**{field: spoiled}), HOSTS, now=NOW)
    assert isinstance(judged.fault, str)


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ("a003020102", "a003020105"),  # a version that does not exist
        ("551d25", "551d13"),  # the same extension twice
        ("8704" + "7f000001", "a304" + "7f000001"),  # a kind of name that is not in use
        ("8704" + "7f000001", "8703" + "7f000001"),  # lengths that do not add up
    ],
)
def test_a_certificate_that_breaks_a_rule_of_its_format_cannot_be_read(
    found: str, instead: str
) -> None:
    whole = ssl.PEM_cert_to_DER_cert(GOOD.certificate.decode()).hex()
    assert whole.count(found) == 1
    spoiled = ssl.DER_cert_to_PEM_cert(bytes.fromhex(whole.replace(found, instead)))
    pair = GOOD._replace(certificate=spoiled.encode())
    assert fault(pair) == "has a tls.crt that cannot be read"


def test_an_encrypted_key_cannot_be_read() -> None:
    key = serialization.load_pem_private_key(GOOD.key, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    assert fault(GOOD._replace(key=encrypted)) == "has a tls.key that cannot be read"


class Theirs:
    """A certificate as others make them: RSA, a wildcard, and an authority in between."""

    def __init__(self, *, purpose: x509.ObjectIdentifier, names: list[str]) -> None:
        root_key, middle_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        leaf_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        root = self._signed("root", "root", root_key.public_key(), root_key, ca=True)
        middle = self._signed("middle", "root", middle_key.public_key(), root_key, ca=True)
        extra: list[x509.ExtensionType] = [x509.ExtendedKeyUsage([purpose])]
        if names:
            extra.append(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]))
        leaf = self._signed(
            "leaf", "middle", leaf_key.public_key(), middle_key, ca=False, extra=extra
        )
        self.pair = Pair(
            leaf + middle,
            leaf_key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            ),
            root,
        )
        self.leaf = leaf

    @staticmethod
    def _signed(
        subject: str,
        issuer: str,
        public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
        key: ec.EllipticCurvePrivateKey,
        *,
        ca: bool,
        extra: list[x509.ExtensionType] | None = None,
    ) -> bytes:
        def name(common: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

        builder = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name(issuer))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - DAY)
            .not_valid_after(NOW + 90 * DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        for extension in extra or ():
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_chain_a_wildcard_and_another_kind_of_key_are_understood() -> None:
    theirs = Theirs(purpose=ExtendedKeyUsageOID.SERVER_AUTH, names=["*.kube-system.svc"])
    assert fault(theirs.pair, HOST) == ""
    assert fault(theirs.pair, "kube-system.svc").startswith("has a certificate that does not cover")
    assert fault(theirs.pair, "a.b.kube-system.svc").startswith(
        "has a certificate that does not cover"
    )
    alone = theirs.pair._replace(certificate=theirs.leaf)
    assert fault(alone, HOST) == "has a ca.crt that did not sign its certificate"


def test_one_without_names_is_for_no_host() -> None:
    theirs = Theirs(purpose=ExtendedKeyUsageOID.SERVER_AUTH, names=[])
    assert fault(theirs.pair, HOST) == "has a certificate that names no host"


def test_one_for_clients_only_does_not_serve() -> None:
    theirs = Theirs(purpose=ExtendedKeyUsageOID.CLIENT_AUTH, names=[HOST])
    assert fault(theirs.pair, HOST) == "has a certificate that is not for servers"


def test_of_authorities_only_readable_ones_that_have_not_ended_stay() -> None:
    ended = certificates.issue(HOSTS, lifetime=DAY, now=NOW - 9 * DAY).authorities
    broken = OTHER.authorities.replace(b"MII", b"AAA", 1)
    text = ended + b"words between\n" + OTHER.authorities + broken + GOOD.authorities
    kept = certificates.still_valid(text, now=NOW)
    assert kept == [OTHER.authorities, GOOD.authorities]


def test_the_certificates_of_the_tests_serve_as_well() -> None:
    theirs = authorities.Authority("somebody")
    issued = theirs.issue("server", hosts=HOSTS)
    pair = Pair(issued.certificate.encode(), issued.key.encode(), theirs.pem.encode())
    assert fault(pair) == ""
