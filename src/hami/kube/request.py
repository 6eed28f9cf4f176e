"""One request to the API server: what is sent, until when, and on which terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from hami.kube.transport import Body, Credentials, Guard
from hami.wire import correlation

Query = Mapping[str, str]

JSON = "application/json"
_MOST_ID = 128


class Terms(NamedTuple):
    """What is known of a request only when its turn has come: how long it may take, and a guard."""

    query: Query
    #: From now, with its response.
    seconds: float
    guard: Guard


class Request:
    """A request and its deadline."""

    def __init__(
        self,
        method: str,
        path: str,
        query: Query | None,
        *,
        deadline: float = 0.0,
        retry_busy: bool = False,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.deadline = deadline
        self.retry_busy = retry_busy
        self.data: bytes | None = None
        self.content_type = JSON
        self.guard: Guard | None = None
        self.terms: Callable[[], Terms] | None = None

    def body(self) -> Body | None:
        if self.data is None:
            return None
        return Body(self.data, content_type=self.content_type, guard=self.guard)


def headers(credentials: Credentials) -> dict[str, str]:
    """Return the headers that differ between requests: credentials, and an id for the audit log."""
    found: dict[str, str] = {}
    if credentials.identity.token:
        found["Authorization"] = f"Bearer {credentials.identity.token}"
    id_ = correlation.current()
    # It came from outside; an id that does not fit a header stays in our log only.
    if id_ and len(id_) <= _MOST_ID and id_.isascii() and id_.isprintable():
        found["Audit-ID"] = id_
    return found
