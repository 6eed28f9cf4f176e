"""List and watch requests: pages, bookmarks, ends.

One watch: one request, read to its end.
It yields what happened, in order, and raises what went wrong, be it an HTTP status, a broken
connection or an ERROR event in the middle. It keeps nothing; `hami.kube.informer` decides what
follows.

A whole list, page by page.
All pages together show one moment, that of the first page. A server that forgets this moment
while we read (410) makes us begin again, a few times; then everything is asked for at once, which
cannot expire. It could also offer to go on from the present, but then the pages would not fit
together, and what was deleted in between would never be missed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import msgspec

from hami.kube import errors, store
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
        kind, body = store.decode_event(line)
        if kind == "BOOKMARK":
            found = codec.decode(body, _BookmarkObject, what="bookmark").metadata
            ends = (found.annotations or {}).get(_END_OF_LIST) == "true"
            return Bookmark(store.raw_version(found.resource_version), ends)
    except wire_errors.WireError as error:
        raise errors.StreamBroken(f"a line of a watch is no event: {error}") from error
    if kind == "ERROR":
        raise errors.of_event(body)
    if kind not in {"ADDED", "MODIFIED", "DELETED"}:
        raise errors.StreamBroken(f"a watch sent an event of the type {kind[:40]!r}")
    return Change(kind == "DELETED", body)


PAGE = 500
_TRIES_IN_PAGES = 3


class _ListMeta(codec.Object, frozen=True):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(name="continue", default=None)


class _List(codec.Object, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class Page(msgspec.Struct, frozen=True):
    #: Forget the pages before this one: the list begins here.
    first: bool
    #: This was the last one; the list is complete.
    last: bool
    #: The moment that the list shows.
    version: int
    #: The objects' bytes.
    items: list[bytes]


async def pages(
    client: Client, path: str, query: Mapping[str, str], *, size: int | None = None
) -> AsyncIterator[Page]:
    """Yield the pages of a list as it is now. A page may say that those before do not count."""
    for _ in range(_TRIES_IN_PAGES):
        try:
            async for page in _pages(client, path, {**query, "limit": str(size or PAGE)}):
                yield page
        except errors.Gone:
            continue
        return
    yield await _page(client, path, query, first=True)


async def _pages(client: Client, path: str, query: Mapping[str, str]) -> AsyncIterator[Page]:
    token: str | None = ""
    while token is not None:
        asked = {**query, "continue": token} if token else query
        body = await client.get(path, asked)
        page, following = _decoded(body, first=not token)
        token = following or None
        yield page


async def _page(client: Client, path: str, query: Mapping[str, str], *, first: bool) -> Page:
    page, _ = _decoded(await client.get(path, query), first=first)
    return page


def _decoded(body: bytes, *, first: bool) -> tuple[Page, str]:
    found = codec.decode(body, _List, what="list")
    token = found.metadata.continue_ or ""
    page = Page(
        first=first,
        last=not token,
        version=store.raw_version(found.metadata.resource_version),
        items=[bytes(item) for item in found.items or ()],
    )
    return page, token
