"""Callers of trusted routes: loopback, or a certificate of the client CA."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
import uvloop

from hami.serving import addresses
from hami.serving.certificates import LiveCertificate
from hami.serving.http_server import Request, Route
from hami.wire import codec
from tests.authority import Authority, Issued
from tests.unit.serving import servers
from tests.unit.serving.tls_files import Secret, client_context

ROUTES = (
    Route("GET", "/trusted", servers.answering("come in"), trusted=True),
    Route("GET", "/open", servers.answering("hello")),
)


def none_is_local(_: str) -> bool:
    return False


class Site:
    """A server certificate, a client CA and the files they lie in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers_ca = Authority("servers")
        self.clients_ca = Authority("clients")
        self.certificate, self.key = self.servers_ca.issue("server")
        self.secret = Secret(folder / "secret", **self.files(self.clients_ca))
        self.tls = LiveCertificate(
            self.secret.path("crt"), self.secret.path("key"), self.secret.path("ca")
        )

    def files(self, *clients: Authority) -> dict[str, str]:
        ca = "".join(authority.pem for authority in clients)
        return {"crt": self.certificate, "key": self.key, "ca": ca}

    def client(self, identity: Issued | None = None) -> ssl.SSLContext:
        return client_context(self.servers_ca, self.folder, identity)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    ("peer", "local"),
    {
        "127.0.0.1": True,
        "127.9.9.9": True,
        "::1": True,
        "::ffff:127.0.0.1": True,
        "128.0.0.1": False,
        "::ffff:10.0.0.1": False,
        "::2": False,
        "10.0.0.1": False,
        "localhost": False,
        "": False,
    }.items(),
)
def test_loopback_is_recognized_by_the_address(peer: str, *, local: bool) -> None:
    assert addresses.is_loopback(peer) is local


async def test_a_loopback_caller_may() -> None:
    async with servers.serving(*ROUTES) as server:
        assert (await servers.ask(server.port, "GET", "/trusted"))[0] == 200


async def test_a_caller_from_elsewhere_is_403_with_the_rule() -> None:
    async with servers.serving(*ROUTES, is_local=none_is_local) as server:
        status, _, body = await servers.ask(server.port, "GET", "/trusted")
        assert (await servers.ask(server.port, "GET", "/open"))[0] == 200
    assert status == 403
    message = codec.decode(body, dict[str, str], what="answer")["error"]
    assert "loopback" in message
    assert "client CA" in message
    assert "127.0.0.1" in message


async def test_headers_do_not_make_a_caller_local() -> None:
    forged = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1", "X-Real-IP": "::1"}
    async with servers.serving(*ROUTES, is_local=none_is_local) as server:
        assert (await servers.ask(server.port, "GET", "/trusted", headers=forged))[0] == 403


async def test_a_refused_caller_does_not_reach_the_handler_with_its_body() -> None:
    async def handler(_: Request) -> None:
        raise AssertionError

    route = Route("POST", "/bind", handler, trusted=True)  # type: ignore[arg-type]
    async with servers.serving(route, is_local=none_is_local) as server:
        assert (await servers.ask(server.port, "POST", "/bind", body=b"{}"))[0] == 403


def own_address() -> str:
    """Return an address of this machine that is not loopback; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing, only chooses a route
        except OSError:
            return ""
        return str(probe.getsockname()[0])


async def test_this_machines_other_address_is_not_loopback() -> None:
    address = own_address()
    if not address or addresses.is_loopback(address):
        pytest.skip("this machine has no other address")
    async with servers.serving(*ROUTES) as server:
        await server.stop()
        await server.start("", 0)
        async with servers.connected(server.port, host=address) as connection:
            assert (await connection.ask("GET", "/trusted"))[0] == 403
        async with servers.connected(server.port) as connection:
            assert (await connection.ask("GET", "/trusted"))[0] == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_certificate_of_the_client_ca_opens_and_none_does_not(
    site: Site, version: ssl.TLSVersion
) -> None:
    async with servers.serving(*ROUTES, tls=site.tls, is_local=none_is_local) as server:
        identity = site.client(site.clients_ca.issue("kube-scheduler"))
        identity.maximum_version = version
        assert (await servers.ask(server.port, "GET", "/trusted", tls=identity))[0] == 200
        without = site.client()
        assert (await servers.ask(server.port, "GET", "/trusted", tls=without))[0] == 403
        assert (await servers.ask(server.port, "GET", "/open", tls=without))[0] == 200


async def refused(site: Site, port: int, identity: Issued) -> None:
    """See that no request goes through; in TLS 1.3 the client learns it only when it reads."""
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await servers.ask(port, "GET", "/open", tls=site.client(identity))


@pytest.mark.parametrize("days", [30, -1])
async def test_a_certificate_that_does_not_verify_ends_the_handshake(
    site: Site, days: float
) -> None:
    issuer = Authority("strangers") if days > 0 else site.clients_ca
    async with servers.serving(*ROUTES, tls=site.tls, is_local=none_is_local) as server:
        await refused(site, server.port, issuer.issue("kube-scheduler", days=days))


async def test_without_a_client_ca_no_certificate_helps(site: Site) -> None:
    tls = LiveCertificate(site.secret.path("crt"), site.secret.path("key"))
    identity = site.client(site.clients_ca.issue("kube-scheduler"))
    async with servers.serving(*ROUTES, tls=tls, is_local=none_is_local) as server:
        assert (await servers.ask(server.port, "GET", "/trusted", tls=identity))[0] == 403


async def test_a_client_ca_that_is_taken_away_is_forgotten_and_another_trusted(site: Site) -> None:
    old = site.clients_ca.issue("kube-scheduler")
    new_ca = Authority("new clients")
    async with servers.serving(*ROUTES, tls=site.tls, is_local=none_is_local) as server:
        assert (await servers.ask(server.port, "GET", "/trusted", tls=site.client(old)))[0] == 200
        site.secret.swap(**site.files(new_ca))
        assert site.tls.refresh()
        await refused(site, server.port, old)
        new = site.client(new_ca.issue("kube-scheduler"))
        assert (await servers.ask(server.port, "GET", "/trusted", tls=new))[0] == 200


async def test_a_kept_connection_loses_trust_with_its_ca_but_not_when_one_is_added(
    site: Site,
) -> None:
    identity = site.client(site.clients_ca.issue("kube-scheduler"))
    added = Authority("added")
    async with (
        servers.serving(*ROUTES, tls=site.tls, is_local=none_is_local) as server,
        servers.connected(server.port, tls=identity) as connection,
    ):
        assert (await connection.ask("GET", "/trusted"))[0] == 200
        site.secret.swap(**site.files(site.clients_ca, added))
        assert site.tls.refresh()
        assert (await connection.ask("GET", "/trusted"))[0] == 200
        site.secret.swap(**site.files(added))
        assert site.tls.refresh()
        status, headers, _ = await connection.ask("GET", "/trusted")
        assert (status, headers["connection"]) == (403, "close")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_that_a_forgotten_ca_vouched_for_is_not_resumed(
    site: Site, version: ssl.TLSVersion
) -> None:
    client = site.client(site.clients_ca.issue("kube-scheduler"))
    client.maximum_version = version
    session = handshake(site.tls.context, client, None).session
    assert handshake(site.tls.context, client, session).session_reused
    site.secret.swap(**site.files(Authority("new clients")))
    assert site.tls.refresh()
    with pytest.raises(ssl.SSLError, match=r"(?i)unknown|verify"):
        handshake(site.tls.context, client, session)


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None
) -> ssl.SSLObject:
    """Let two ends talk in memory; returns the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1", session=session),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    done: set[ssl.SSLObject] = set()
    while len(done) < len(ends):
        for end in ends:
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
    ends[1].write(b"x")
    ends[0].read(1)
    return ends[0]


def test_the_same_holds_on_uvloop(site: Site) -> None:
    async def scenario() -> None:
        identity = site.client(site.clients_ca.issue("kube-scheduler"))
        new = Authority("new clients")
        async with servers.serving(*ROUTES, tls=site.tls, is_local=none_is_local) as server:
            assert (await servers.ask(server.port, "GET", "/trusted", tls=identity))[0] == 200
            assert (await servers.ask(server.port, "GET", "/trusted", tls=site.client()))[0] == 403
            async with servers.connected(server.port, tls=identity) as kept:
                assert (await kept.ask("GET", "/trusted"))[0] == 200
                site.secret.swap(**site.files(new))
                assert site.tls.refresh()
                assert (await kept.ask("GET", "/trusted"))[0] == 403
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await servers.ask(server.port, "GET", "/open", tls=identity)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
