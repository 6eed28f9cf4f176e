"""The tests' own client, against a small server of plain HTTP.

The server answers what no API server does: broken streams, a proxy's pages, 429 by count. So
it is none of the common ones.
"""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.kubeapi.access import Access
from tests.kubeapi.client import ApiError, Client, wait_for
from tests.kubeapi.watching import WatchBroken


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.chunks: list[bytes] = []
        self.hold = threading.Event()
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.ports: set[int] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        self.server.ports.add(self.client_address[1])
        if "/refuse" in self.path:
            status = {"kind": "Status", "reason": "Conflict", "message": "no", "code": 409}
            self.send(409, json.dumps(status).encode())
        elif "/busy" in self.path and len(self.server.seen) < 3:
            self.send(429, b"busy", {"Retry-After": "0"})
        elif "/html" in self.path:
            self.send(502, b"<html>bad gateway</html>")
        elif "watch=1" in self.path:
            self.stream()
        else:
            self.send(200, b'{"kind": "Thing"}')

    do_GET = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the names are http.server's

    def send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in self.server.chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        self.server.hold.wait(20)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.hold.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url + "/prefix/", token="t0k", timeout=10) as made:  # noqa: S106 - nobody's
        yield made


def test_a_request_carries_method_prefix_query_token_and_json(
    client: Client, server: Server
) -> None:
    assert client.create("/things", {"a": 1}, dryRun="All", limit=2, force=True) == {
        "kind": "Thing"
    }
    ((method, path, headers, body),) = server.seen
    assert (method, path) == ("POST", "/prefix/things?dryRun=All&limit=2&force=true")
    assert headers["Authorization"] == "Bearer t0k"
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body) == {"a": 1}


def test_a_patch_is_a_merge_patch_unless_told_otherwise(client: Client, server: Server) -> None:
    client.patch("/things/a", {})
    client.patch("/things/a", [], "application/json-patch+json")
    kinds = [headers["Content-Type"] for _, _, headers, _ in server.seen]
    assert kinds == ["application/merge-patch+json", "application/json-patch+json"]


def test_a_request_without_a_body_names_no_content_type(client: Client, server: Server) -> None:
    client.delete("/things/a")
    assert "Content-Type" not in server.seen[0][2]


def test_a_connection_is_used_again_and_by_one_call_at_a_time(
    client: Client, server: Server
) -> None:
    for _ in range(5):
        client.get("/things")
    assert len(server.ports) == 1
    failures: list[Exception] = []

    def ask() -> None:
        try:
            for _ in range(20):
                client.get("/things")
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(server.ports) <= 9


def test_a_connection_that_the_server_closed_is_not_used_again(
    client: Client, server: Server
) -> None:
    client.get("/things")
    (connection,) = client._connections._idle
    connection.sock.shutdown(socket.SHUT_WR)  # the server sees the end and closes its side
    assert connection.sock.recv(1, socket.MSG_PEEK) == b""
    client.get("/things")
    assert len(server.ports) == 2


def test_a_refusal_is_an_error_with_the_servers_words(client: Client) -> None:
    with pytest.raises(ApiError, match="409 Conflict: no") as caught:
        client.get("/refuse")
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    assert client.request("GET", "/refuse").status == 409
    with pytest.raises(ApiError, match="502 : <html>bad gateway"):
        client.get("/html")


def test_a_busy_server_is_asked_again(client: Client, server: Server) -> None:
    assert client.request("GET", "/busy").status == 429
    assert client.get("/busy") == {"kind": "Thing"}
    assert len(server.seen) == 3


def event(name: str) -> bytes:
    return json.dumps({"type": "ADDED", "object": {"metadata": {"name": name}}}).encode()


def names(events: list[Any]) -> list[str]:
    return [found["object"]["metadata"]["name"] for found in events]


def test_events_are_found_however_the_stream_is_cut(client: Client, server: Server) -> None:
    whole = event("a") + b"\n" + event("bä" * 40_000) + b"\n\n" + event("c") + b"\n"
    server.chunks = [whole[i : i + 7001] for i in range(0, len(whole), 7001)]
    server.hold.set()
    assert names(list(client.watch("/things"))) == ["a", "bä" * 40_000, "c"]


def test_a_watch_can_be_waited_for_and_closed_by_another_thread(
    client: Client, server: Server
) -> None:
    server.chunks = [event("a") + b"\n"]
    with client.watch("/things") as watch:
        assert names(watch.until("ADDED")) == ["a"]
        with pytest.raises(TimeoutError, match="the watch sent nothing"):
            watch.next(timeout=0.05)
        with pytest.raises(TimeoutError, match="DELETED of b; the watch is open"):
            watch.until("DELETED", "b", timeout=0.05)
        closer = threading.Timer(0.05, watch.close)
        closer.start()
        assert list(watch) == []
        closer.join()
    assert watch.next() is None
    assert [thread for thread in threading.enumerate() if thread.name == "watch"] == []


@pytest.mark.parametrize("rest", [b'{"type": "ADD', b"[]\n", b"nonsense\n"])
def test_a_watch_that_breaks_says_so_after_what_was_whole(
    client: Client, server: Server, rest: bytes
) -> None:
    server.chunks = [event("a") + b"\n" + rest]
    server.hold.set()
    with client.watch("/things") as watch:
        assert names(watch.until("ADDED")) == ["a"]
        with pytest.raises((WatchBroken, ValueError)):
            watch.next()


def test_a_refused_watch_is_an_error_at_once(client: Client) -> None:
    with pytest.raises(ApiError, match="409 Conflict"):
        client.watch("/refuse")


def test_waiting_returns_what_was_found_and_else_tells_what_was_seen() -> None:
    answers = iter([None, False, "found"])
    empty: dict[str, str] = {}
    assert wait_for("an answer", lambda: next(answers), 10, 0) == "found"
    with pytest.raises(TimeoutError, match="0 s for a key; last seen: KeyError: 'k'"):
        wait_for("a key", lambda: empty["k"], 0)
    with pytest.raises(ZeroDivisionError):
        wait_for("nothing", lambda: 1 // 0, 10)


def test_another_token_replaces_every_credential(server: Server) -> None:
    client = Client.from_access(Access(server.url, token="a", certificate="c", key="k"))  # noqa: S106 - no real one
    with client.with_token("b") as other:
        other.get("/things")
        assert (other.access.token, other.access.certificate) == ("b", None)
    with client.with_token(None) as nobody:
        nobody.get("/things")
    seen = [headers.get("Authorization") for _, _, headers, _ in server.seen]
    assert seen == ["Bearer b", None]


def test_an_address_that_is_none_is_refused_with_a_hint() -> None:
    with pytest.raises(ValueError, match=r"'h:6443' is no address .* http"):
        Client("h:6443")
