"""A small Kubernetes client for tests: plain HTTP, parsed JSON, API errors.

It knows nothing of the product, so it can judge it. One client may be used by many threads.
"""

from __future__ import annotations

import http.client
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from tests.kubeapi import access as accesses
from tests.kubeapi.access import Access
from tests.kubeapi.connections import Connections, Request
from tests.kubeapi.waiting import wait_for
from tests.kubeapi.watching import Event, Watch

__all__ = ["ApiError", "Client", "Event", "Object", "Response", "Watch", "wait_for"]

Object = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
RETRIES = 10


class Response(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Object:
        parsed: Object = json.loads(self.body)
        return parsed


class ApiError(Exception):
    """The server refused: its status code, reason and message, and the whole answer."""

    def __init__(self, status: int, reason: str, message: str, body: Object) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.body = body

    @classmethod
    def of(cls, response: Response) -> Self:
        try:
            body: Any = json.loads(response.body)
        except ValueError:
            body = None
        if not isinstance(body, dict) or body.get("kind") != "Status":
            return cls(response.status, "", response.body[:500].decode(errors="replace"), {})
        return cls(response.status, body.get("reason", ""), body.get("message", ""), body)


class Client:
    def __init__(
        self,
        server: str,
        *,
        ca_file: pathlib.Path | None = None,
        token: str | None = None,
        cert: tuple[pathlib.Path, pathlib.Path] | None = None,
        timeout: float = 30,
    ) -> None:
        access = Access(
            server=server,
            ca=ca_file.read_text() if ca_file else None,
            token=token,
            certificate=cert[0].read_text() if cert else None,
            key=cert[1].read_text() if cert else None,
        )
        self._set_up(access, timeout)

    @classmethod
    def from_kubeconfig(cls, path: pathlib.Path, context: str | None = None) -> Self:
        return cls.from_access(accesses.read(path, context))

    @classmethod
    def from_access(cls, access: Access, timeout: float = 30) -> Self:
        client = cls.__new__(cls)
        client._set_up(access, timeout)
        return client

    def _set_up(self, access: Access, timeout: float) -> None:
        self.access = access
        self.timeout = timeout
        self._connections = Connections(access)

    def with_token(self, token: str | None) -> Client:
        """Return a client of the same server as somebody else; with None, as nobody."""
        access = Access(self.access.server, self.access.ca, token, verify=self.access.verify)
        return Client.from_access(access, self.timeout)

    def close(self) -> None:
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: object | bytes | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Ask and return the answer, whatever its status. Objects go out as JSON, bytes as is."""
        sent = {**self._headers(accept), "Content-Type": content_type, **(headers or {})}
        connection = self._connections.take(self.timeout)
        try:
            answer = self._connections.send(
                connection, Request(method, path, query or {}, sent, body)
            )
            response = Response(answer.status, answer.headers, answer.read())
        except BaseException:
            connection.close()
            raise
        self._connections.keep(connection)
        return response

    def call(self, method: str, path: str, **options: Any) -> Object:
        """Like `request`, but return the parsed answer and raise ApiError for 400 and above.

        A server that is busy for the moment and says so is asked again, as client-go does it.
        """
        response = self.request(method, path, **options)
        for _ in range(RETRIES):
            wait = response.headers.get("Retry-After", "")
            if response.status != http.client.TOO_MANY_REQUESTS or not wait.isdecimal():
                break
            time.sleep(int(wait))
            response = self.request(method, path, **options)
        if response.status >= http.client.BAD_REQUEST:
            raise ApiError.of(response)
        return response.json()

    def get(self, path: str, **query: str | float) -> Object:
        return self.call("GET", path, query=_strings(query))

    def find(self, path: str, **query: str | float) -> Object | None:
        """Like `get`, but None where there is no such object."""
        try:
            return self.get(path, **query)
        except ApiError as error:
            if error.status == http.client.NOT_FOUND:
                return None
            raise

    def create(self, path: str, body: object, **query: str | float) -> Object:
        return self.call("POST", path, body=body, query=_strings(query))

    def replace(self, path: str, body: object, **query: str | float) -> Object:
        return self.call("PUT", path, body=body, query=_strings(query))

    def patch(
        self, path: str, body: object, content_type: str = MERGE_PATCH, **query: str | float
    ) -> Object:
        return self.call("PATCH", path, body=body, query=_strings(query), content_type=content_type)

    def delete(self, path: str, body: object = None, **query: str | float) -> Object:
        return self.call("DELETE", path, body=body, query=_strings(query))

    def watch(
        self,
        path: str,
        *,
        timeout_seconds: int = 300,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
    ) -> Watch:
        """Open a watch; it is open when this returns, and ApiError is raised if it is refused."""
        asked = {"watch": "1", "timeoutSeconds": str(timeout_seconds), **(query or {})}
        connection = self._connections.new(timeout_seconds + self.timeout)
        try:
            connection.connect()
            sock = connection.sock  # the connection forgets it where the answer says "close"
            answer = self._connections.send(
                connection, Request("GET", path, asked, self._headers(accept))
            )
            if answer.status == http.client.OK:
                return Watch(sock, answer)
            refused = Response(answer.status, answer.headers, answer.read())
        except BaseException:
            connection.close()
            raise
        connection.close()
        raise ApiError.of(refused)

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept, "User-Agent": "hami-tests"}
        if self.access.token is not None:
            headers["Authorization"] = f"Bearer {self.access.token}"
        return headers


def _strings(query: Mapping[str, str | float]) -> dict[str, str]:
    # JSON writes true, not True, and so does Kubernetes.
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in query.items()
    }
