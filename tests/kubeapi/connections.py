"""Open connections to one API server, each used by one call at a time."""

from __future__ import annotations

import http.client
import json
import select
import ssl
import threading
import urllib.parse
import weakref
from collections.abc import Mapping
from typing import NamedTuple

from tests.kubeapi.access import Access


class Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: object = None


class Connections:
    def __init__(self, access: Access) -> None:
        address = urllib.parse.urlsplit(access.server)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise ValueError(f"{access.server!r} is no address of an API server; write http(s)://…")
        self._host = address.hostname
        self._port = address.port
        self._prefix = address.path.rstrip("/")
        self._tls: ssl.SSLContext | None = access.tls() if address.scheme == "https" else None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        # A client that goes out of scope leaves no open socket, and so no warning, behind.
        weakref.finalize(self, _close_all, self._idle)

    def take(self, timeout: float) -> http.client.HTTPConnection:
        """Return an idle connection if there is a live one, else a new one."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            # An idle connection with something to read is one that the server has closed.
            if connection.sock is not None and not _readable(connection):
                return connection
            connection.close()
        return self.new(timeout)

    def new(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout, context=self._tls
        )

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Take back a connection whose last answer was read to its end."""
        with self._lock:
            self._idle.append(connection)

    def send(
        self, connection: http.client.HTTPConnection, request: Request
    ) -> http.client.HTTPResponse:
        query = "?" + urllib.parse.urlencode(request.query) if request.query else ""
        body = request.body
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(
            request.method,
            self._prefix + request.path + query,
            body=sent,
            headers={k: v for k, v in request.headers.items() if sent or k != "Content-Type"},
        )
        return connection.getresponse()

    def close(self) -> None:
        with self._lock:
            _close_all(self._idle)


def _readable(connection: http.client.HTTPConnection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()
