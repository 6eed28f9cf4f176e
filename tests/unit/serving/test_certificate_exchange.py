"""Certificates change while serving; broken ones are not used."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hami.serving import certificates, lifetime
from hami.serving.certificates import LiveCertificate
from hami.serving.http_server import Route
from tests.authority import Authority
from tests.unit.kube.following import PATIENCE_S
from tests.unit.serving import servers
from tests.unit.serving.tls_files import Secret, client_context

ROUTE = Route("GET", "/", servers.answering("hello"))


async def served(port: int, trusts: Authority, folder: Path) -> int:
    """Return the serial number of the certificate that a new connection is shown."""
    context = client_context(trusts, folder)
    async with servers.connected(port, tls=context) as connection:
        shown: ssl.SSLObject = connection.writer.get_extra_info("ssl_object")
        reply = shown.getpeercert()
        assert reply is not None
        return int(str(reply["serialNumber"]), 16)


@pytest.fixture
def ca() -> Authority:
    return Authority("servers")


async def test_a_swapped_secret_serves_new_connections_while_old_ones_go_on(
    ca: Authority, tmp_path: Path
) -> None:
    certificate, key = ca.issue("server")
    secret = Secret(tmp_path / "secret", crt=certificate, key=key)
    tls = LiveCertificate(secret.path("crt"), secret.path("key"), poll_interval=0.001)
    watching = asyncio.create_task(tls.watch())
    async with (
        servers.serving(ROUTE, tls=tls) as server,
        servers.connected(server.port, tls=client_context(ca, tmp_path)) as kept,
    ):
        assert (await kept.ask("GET", "/"))[0] == 200
        before = await served(server.port, ca, tmp_path)
        certificate, key = ca.issue("server")
        secret.swap(crt=certificate, key=key)
        async with asyncio.timeout(PATIENCE_S):
            while await served(server.port, ca, tmp_path) == before:
                pass
        assert (await kept.ask("GET", "/"))[0] == 200
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


class Files:
    """Certificate and key as plain files that are rewritten in place."""

    def __init__(self, ca: Authority, folder: Path) -> None:
        self.ca = ca
        self.crt, self.key = folder / "crt", folder / "key"
        self.write(*ca.issue("server"))
        self.now = dt.datetime.now(dt.UTC)
        self.live = LiveCertificate(str(self.crt), str(self.key), now=lambda: self.now)

    def write(self, crt: str, key: str) -> None:
        self.crt.write_text(crt)
        self.key.write_text(key)


@pytest.fixture
def files(ca: Authority, tmp_path: Path) -> Files:
    return Files(ca, tmp_path)


def test_unchanged_files_are_left_alone(files: Files) -> None:
    assert not files.live.refresh()


def test_a_half_written_pair_is_ignored_and_reported_once_and_the_whole_one_taken(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    in_service, expires_at = files.live.context.newest, files.live.expires_at
    certificate, key = files.ca.issue("server", days=60)
    files.crt.write_text(certificate)
    for _ in range(3):
        assert not files.live.refresh()
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert (files.live.context.newest, files.live.expires_at) == (in_service, expires_at)
    files.key.write_text(key)
    assert files.live.refresh()
    assert files.live.context.newest is not in_service
    assert files.live.days_left() == pytest.approx(60, abs=0.1)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nMIIB", b"\xff\x00"])
def test_a_cut_file_is_ignored(files: Files, content: bytes) -> None:
    in_service = files.live.context.newest
    files.crt.write_bytes(content)
    assert not files.live.refresh()
    assert files.live.context.newest is in_service


def test_a_file_that_vanishes_and_returns_is_taken(files: Files) -> None:
    files.crt.unlink()
    assert not files.live.refresh()
    files.write(*files.ca.issue("server"))
    assert files.live.refresh()


def test_an_expired_certificate_serves_but_is_reported(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(*files.ca.issue("server", days=-2))
    assert files.live.refresh()
    assert files.live.days_left() == pytest.approx(-2, abs=0.1)
    assert "expired" in caplog.text


def test_older_protocols_than_tls_1_2_are_refused(files: Files) -> None:
    assert files.live.context.newest.minimum_version is ssl.TLSVersion.TLSv1_2


def remove_certificate(folder: Path) -> None:
    (folder / "crt").unlink()


def remove_key(folder: Path) -> None:
    (folder / "key").unlink()


def exchange_key(folder: Path) -> None:
    (folder / "key").write_text(Authority("other").issue("other").key)


def encrypt_key(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    (folder / "key").write_bytes(encrypted)


def write_text(folder: Path) -> None:
    (folder / "crt").write_text("hello")


def empty_ca(folder: Path) -> None:
    (folder / "ca").write_bytes(b"")


def no_authority(folder: Path) -> None:
    (folder / "ca").write_bytes((folder / "crt").read_bytes())


@pytest.mark.parametrize(
    ("damage", "reply"),
    [
        (remove_certificate, ["crt", "No such file", "mount the Secret"]),
        (remove_key, ["key", "No such file", "pair"]),
        (exchange_key, ["crt", "key", "pair", "belongs to it"]),
        (encrypt_key, ["key", "unencrypted"]),
        (write_text, ["crt", "PEM"]),
        (empty_ca, ["ca", "CA certificates in PEM form"]),
        (no_authority, ["ca", "no CA certificate"]),
    ],
)
def test_bad_files_at_the_start_are_named_with_rule_and_remedy(
    ca: Authority, tmp_path: Path, damage: Callable[[Path], None], reply: list[str]
) -> None:
    certificate, key = ca.issue("server")
    for name, content in (("crt", certificate), ("key", key), ("ca", ca.pem)):
        (tmp_path / name).write_text(content)
    names = [str(tmp_path / name) for name in ("crt", "key", "ca")]
    assert LiveCertificate(*names).days_left() == pytest.approx(30, abs=0.1)
    damage(tmp_path)
    with pytest.raises(lifetime.ServingError) as raised:
        LiveCertificate(*names)
    for part in reply:
        assert part in str(raised.value)


def test_a_certificate_without_a_key_is_refused() -> None:
    with pytest.raises(lifetime.ServingError, match="name both, or none"):
        LiveCertificate("/some/crt", "")


@pytest.mark.parametrize("days", [-300, 1, 30, 365 * 20, 365 * 40])
def test_the_end_of_a_certificate_is_read_to_the_second(ca: Authority, days: int) -> None:
    """Beyond 2049 the time is written in another form."""
    certificate, _ = ca.issue("server", days=days)
    want = x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc
    assert certificates.expiry("bag attributes\n" + certificate) == want


@pytest.mark.parametrize("length", range(0, 300, 7))
def test_the_end_of_a_damaged_certificate_is_a_plain_error(ca: Authority, length: int) -> None:
    certificate, _ = ca.issue("server")
    der = ssl.PEM_cert_to_DER_cert(certificate)[:length]
    with pytest.raises((ValueError, IndexError)):
        certificates.expiry(ssl.DER_cert_to_PEM_cert(der))
