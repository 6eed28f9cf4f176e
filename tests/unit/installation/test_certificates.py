"""Certificates that hami makes: their fields, and how TLS takes them."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from hami.installation import certificates
from hami.installation.certificates import Pair
from tests.unit.installation import rig as rigs

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
HOSTS = ("hami-webhook.kube-system.svc", "127.0.0.1", "fd00::1")
YEAR = dt.timedelta(days=365)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return certificates.issue(HOSTS, lifetime=YEAR, now=NOW)


def entries(pair: Pair) -> dict[str, bytes]:
    return {"tls.crt": pair.certificate, "tls.key": pair.key}


@pytest.mark.parametrize("host", HOSTS)
def test_a_client_that_trusts_the_authority_accepts_the_server_for_every_host(
    pair: Pair, host: str
) -> None:
    assert rigs.refusal(entries(pair), pair.authorities, host) == ""


@pytest.mark.parametrize("host", ["hami-webhook.other.svc", "127.0.0.2", "kube-system.svc"])
def test_a_client_refuses_it_for_other_hosts(pair: Pair, host: str) -> None:
    assert "mismatch" in rigs.refusal(entries(pair), pair.authorities, host)


def test_the_authority_of_another_certificate_does_not_vouch_for_it(pair: Pair) -> None:
    other = certificates.issue(HOSTS, lifetime=YEAR, now=NOW)
    assert "unable to get" in rigs.refusal(entries(pair), other.authorities, HOSTS[0])


def test_an_ended_one_is_refused() -> None:
    ended = certificates.issue(HOSTS, lifetime=YEAR, now=NOW - 2 * YEAR)
    assert "expired" in rigs.refusal(entries(ended), ended.authorities, HOSTS[0])


def test_dates_leave_room_for_clocks_that_are_behind(pair: Pair) -> None:
    for text in (pair.certificate, pair.authorities):
        made = x509.load_pem_x509_certificate(text)
        assert made.not_valid_before_utc == NOW - dt.timedelta(minutes=5)
        assert made.not_valid_after_utc == NOW + YEAR


def test_the_authority_signs_certificates_and_no_further_authority(pair: Pair) -> None:
    made = x509.load_pem_x509_certificate(pair.authorities)
    basic = made.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    usage = made.extensions.get_extension_for_class(x509.KeyUsage)
    assert (usage.critical, usage.value.key_cert_sign) == (True, True)
    assert not usage.value.digital_signature


def test_the_certificate_serves_and_does_nothing_else(pair: Pair) -> None:
    made = x509.load_pem_x509_certificate(pair.certificate)
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    purposes = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    usage = made.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign) == (True, False)
    key = made.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)


def test_no_key_gets_into_a_log(pair: Pair) -> None:
    assert repr(pair) == f"{pair}" == "Pair(...)"
