"""Listen addresses: forms, errors, and the sockets that result."""

from __future__ import annotations

import socket

import pytest

from hami.serving import addresses, lifetime
from hami.serving.http_server import Route, Server
from tests.unit.serving import servers


@pytest.mark.parametrize(
    ("text", "want"),
    {
        ":9395": ("", 9395),
        "127.0.0.1:8080": ("127.0.0.1", 8080),
        "[::1]:443": ("::1", 443),
        "[::]:443": ("::", 443),
        "localhost:0": ("localhost", 0),
        " :65535 ": ("", 65535),
    }.items(),
)
def test_the_forms_of_go_are_read(text: str, want: tuple[str, int]) -> None:
    assert addresses.parse(text) == want


@pytest.mark.parametrize(
    ("text", "reply"),
    {
        "": "has no port",
        "9395": "has no port",
        ":": "port ''",
        ":http": "port 'http'",
        ":65536": "port '65536'",
        ":-1": "port '-1'",
        ":" + "9" * 5000: "port '999",
        ":٣": "port '٣'",
        "::1:443": "in brackets",
        "[::1:443": "only one bracket",
        "[::1]": "port '1]'",
        "[here]:443": "'here' is no IPv6 address",
    }.items(),
)
def test_what_is_no_address_is_named_with_the_forms(text: str, reply: str) -> None:
    with pytest.raises(lifetime.ServingError) as raised:
        addresses.parse(text)
    assert reply in str(raised.value)
    assert repr(text) in str(raised.value)
    assert "127.0.0.1:8080" in str(raised.value)


def test_a_taken_port_is_named_with_the_remedy() -> None:
    with socket.create_server((servers.LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(lifetime.ServingError, match="Address already in use; choose") as raised:
            addresses.listen(servers.LOCAL, port)
    assert f"127.0.0.1:{port}" in str(raised.value)


@pytest.mark.parametrize("host", ["203.0.113.1", "2001:db8::1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(lifetime.ServingError, match=r"cannot listen on .*choose"):
        addresses.listen(host, 0)


async def test_no_host_is_every_address_of_both_kinds() -> None:
    server = Server([Route("GET", "/", servers.answering("hello"))])
    await server.start("", 0)
    hosts = ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
    for host in hosts:
        async with servers.connected(server.port, host=host) as connection:
            assert (await connection.ask("GET", "/"))[0] == 200
    await server.stop()


async def test_localhost_listens_where_127_0_0_1_finds_it() -> None:
    server = Server([Route("GET", "/", servers.answering("hello"))])
    await server.start("localhost", 0)
    assert (await servers.ask(server.port, "GET", "/"))[0] == 200
    await server.stop()
