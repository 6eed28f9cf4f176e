"""One watch: one request, read to its end.

It yields what happened, in order, and raises what went wrong, be it an HTTP status, a broken
connection or an ERROR event in the middle. It keeps nothing; `hami.kube.reflector` decides what
follows.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import msgspec

from hami.kube import errors, raw
from hami.kube.client import Client
from hami.wire import codec
from hami.wire import errors as wire_errors

_END_OF_LIST = "k8s.io/initial-events-end"
#: Seconds beyond the watch's own time that a connection may stay silent before it counts as dead.
_GRACE = 30.0

WATCH_LIST: Mapping[str, str] = {
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
}


class _BookmarkMeta(codec.Object, frozen=True):
    resource_version: str | None = None
    annotations: dict[str, str | None] | None = None


class _BookmarkObject(codec.Object, frozen=True):
    metadata: _BookmarkMeta = _BookmarkMeta()


class Change(msgspec.Struct, frozen=True):
    """An object was added, changed or deleted."""

    deleted: bool
    object: bytes


class Bookmark(msgspec.Struct, frozen=True):
    """Everything up to this version has been sent."""

    version: int
    #: The objects sent so far are all that there were.
    ends_list: bool


Event = Change | Bookmark


@contextlib.asynccontextmanager
async def watch(
    client: Client, path: str, query: Mapping[str, str], *, seconds: int
) -> AsyncIterator[AsyncIterator[Event]]:
    """Open a watch that the server ends after so many seconds."""
    asked = {
        **query,
        "watch": "1",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(seconds),
    }
    async with client.stream(path, asked, idle=seconds + _GRACE) as lines:
        yield _events(lines)


async def _events(lines: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    async for line in lines:
        yield decode(line)


def decode(line: bytes) -> Event:
    """Return what a line says; ERROR becomes an exception."""
    try:
        kind, body = raw.decode_event(line)
        if kind == "BOOKMARK":
            found = codec.decode(body, _BookmarkObject, what="bookmark").metadata
            ends = (found.annotations or {}).get(_END_OF_LIST) == "true"
            return Bookmark(raw.version(found.resource_version), ends)
    except wire_errors.WireError as error:
        raise errors.StreamBroken(f"a line of a watch is no event: {error}") from error
    if kind == "ERROR":
        raise errors.of_event(body)
    if kind not in {"ADDED", "MODIFIED", "DELETED"}:
        raise errors.StreamBroken(f"a watch sent an event of the type {kind[:40]!r}")
    return Change(kind == "DELETED", body)
