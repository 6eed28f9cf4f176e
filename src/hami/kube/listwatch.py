"""List pages, watch events and the bytes of objects.

A watch is one request, read to its end. It yields events in order and raises what went wrong: an
HTTP status, a broken connection or an ERROR event in the middle.

All pages of a list show one moment, that of the first page. If the server forgets this moment
while we read (410), the list begins again, a few times; then it is requested in one piece, which
cannot expire. The server also offers to continue from the present, but then the pages would not
fit together, and an object that was deleted in between would never be missed. A page is read while
it arrives, however many objects it has: old servers send all of them, whatever the limit.

Nothing is kept here; `hami.kube.informer` decides what follows.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from hami.kube import errors
from hami.kube.client import Client
from hami.kube.items import ItemSplitter
from hami.wire import codec, objects
from hami.wire import errors as wire_errors

T = TypeVar("T")

#: Objects in one page of a list.
PAGE = 500
_TRIES_IN_PAGES = 3
_END_OF_LIST = "k8s.io/initial-events-end"
#: Seconds beyond the watch's own time that a connection may stay silent before it counts as dead.
_GRACE = 30.0

WATCH_LIST: Mapping[str, str] = {
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
}


class Stats(msgspec.Struct):
    """Counts since the start."""

    #: Full lists in pages, the periodic ones included.
    lists: int = 0
    #: Full lists by a watch that begins with one.
    watch_lists: int = 0
    #: Watches opened, without those.
    watches: int = 0
    #: Events of objects, bookmarks not counted.
    events: int = 0
    #: Objects seen and not wanted.
    ignored: int = 0
    #: Objects that did not decode.
    undecodable: int = 0
    #: Objects that the periodic list found different although the stream had passed that moment.
    repaired: int = 0
    #: Lists and watches that failed.
    errors: int = 0


class Change(msgspec.Struct, frozen=True):
    """An object was added, changed or deleted."""

    deleted: bool
    object: bytes


class Bookmark(msgspec.Struct, frozen=True):
    """Everything up to this version has been sent."""

    version: int
    #: The objects sent so far are the whole list.
    ends_list: bool


Event = Change | Bookmark


class Page(msgspec.Struct, frozen=True):
    """A part of a list: some of the objects that one response has."""

    #: The list begins here; parts before this one do not count.
    first: bool
    #: The list is complete.
    last: bool
    #: The moment that the list shows; 0 while it is not known, never in the last part.
    version: int
    #: The objects' bytes.
    items: list[bytes]


# Watches.


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


class _Event(codec.Object, frozen=True):
    type: str = ""
    # Copied below: a part of the line that was read would keep all of it in memory.
    object: msgspec.Raw = msgspec.Raw(b"null")


class _BookmarkMeta(codec.Object, frozen=True):
    resource_version: str | None = None
    annotations: dict[str, str | None] | None = None


class _BookmarkObject(codec.Object, frozen=True):
    metadata: _BookmarkMeta = _BookmarkMeta()


def decode(line: bytes) -> Event:
    """Return the event in a line; ERROR becomes an exception."""
    try:
        kind, body = decode_event(line)
        if kind == "BOOKMARK":
            found = codec.decode(body, _BookmarkObject, what="bookmark").metadata
            ends = (found.annotations or {}).get(_END_OF_LIST) == "true"
            return Bookmark(version_number(found.resource_version), ends)
    except wire_errors.WireError as error:
        raise errors.StreamBroken(f"a line of a watch is no event: {error}") from error
    if kind == "ERROR":
        raise errors.of_event(body)
    if kind not in {"ADDED", "MODIFIED", "DELETED"}:
        raise errors.StreamBroken(f"a watch sent an event of the unknown type {kind[:40]!r}")
    return Change(kind == "DELETED", body)


def decode_event(line: bytes) -> tuple[str, bytes]:
    """Return an event's type and the bytes of its object."""
    event = codec.decode(line, _Event, what="watch event")
    return event.type, bytes(event.object)


# Lists.


async def pages(
    client: Client, path: str, query: Mapping[str, str], *, size: int | None = None
) -> AsyncGenerator[Page, None]:
    """Yield a list as it is now, in parts; `first` on a later part restarts the list."""
    for attempt in range(_TRIES_IN_PAGES + 1):
        whole = attempt == _TRIES_IN_PAGES
        asked = query if whole else {**query, "limit": str(size or PAGE)}
        try:
            async with contextlib.aclosing(_pages(client, path, asked)) as found:
                async for page in found:
                    yield page
        except errors.Gone:
            if whole:
                raise
            continue
        return


async def _pages(client: Client, path: str, query: Mapping[str, str]) -> AsyncGenerator[Page, None]:
    first, token = True, ""
    while True:
        asked = {**query, "continue": token} if token else query
        splitter = _splitter()
        async with client.chunks(path, asked, idle=client.timeout, listing=True) as chunks:
            async for chunk in chunks:
                items = splitter.feed(chunk)
                if items:
                    yield Page(first=first, last=False, version=0, items=items)
                    first = False
        items, envelope = splitter.end()
        meta = codec.decode(envelope, _List, what="list").metadata
        token = meta.continue_ or ""
        version = version_number(meta.resource_version)
        yield Page(first=first, last=not token, version=version, items=items)
        first = False
        if not token:
            return


async def list_version(client: Client, path: str) -> int:
    """Return the version of a list as it is now, of which as little as possible is read.

    One object is asked for. A server that sends all of them nevertheless is left when it has sent
    the version, which is before the objects.
    """
    splitter = _splitter()
    async with client.chunks(path, {"limit": "1"}, idle=client.timeout, listing=True) as chunks:
        async for chunk in chunks:
            splitter.feed(chunk)
            head = splitter.head()
            version = codec.decode(head, _List, what="list").metadata if head else _ListMeta()
            if version.resource_version:
                return version_number(version.resource_version)
    meta = codec.decode(splitter.end()[1], _List, what="list").metadata
    return version_number(meta.resource_version)


class _ListMeta(codec.Object, frozen=True):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(name="continue", default=None)


class _List(codec.Object, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _Whole:
    """In place of an ItemSplitter, with a msgspec that does not tell where a value ends."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        self._chunks.append(chunk)
        return []

    def head(self) -> bytes:
        return b""

    def end(self) -> tuple[list[bytes], bytes]:
        whole = b"".join(self._chunks)
        found = codec.decode(whole, _List, what="list")
        return [bytes(item) for item in found.items or ()], whole


def _splitter() -> ItemSplitter | _Whole:
    return ItemSplitter() if codec.finds_lengths() else _Whole()


# Objects. Of a hundred thousand pods few ask for a card: searching the bytes for a few words
# decides that without decoding the pod.


class _Meta(codec.Object, frozen=True):
    uid: str | None = None
    resource_version: str | None = None


class _Identified(codec.Object, frozen=True):
    metadata: _Meta | None = None


def identity(body: bytes) -> tuple[str, int]:
    """Return UID and resourceVersion of an object, without decoding the rest."""
    found = codec.decode(body, _Identified, what="object").metadata
    if found is None or not found.uid:
        raise wire_errors.WireError("object", body, "has no metadata.uid")
    return found.uid, version_number(found.resource_version)


def version_number(text: str | None) -> int:
    """Return a resourceVersion as a number, so that versions can be compared.

    Kubernetes long called them opaque. Since 1.35 their order is promised, and it always held.
    """
    text = text or ""
    if not (text.isascii() and text.isdigit() and len(text) <= objects.VERSION_DIGITS):
        raise wire_errors.WireError("resourceVersion", text, "is not a whole number")
    return int(text)


def mentions(body: bytes, words: Sequence[bytes]) -> bool:
    """Return whether any of these words is anywhere in the bytes."""
    for word in words:  # noqa: SIM110  a generator would take as long as the search
        if word in body:
            return True
    return False


def pods_with(words: Iterable[str]) -> Callable[[bytes], objects.Pod | None]:
    """Return a reader of pods in whose JSON any of these words is; others are not decoded."""
    wanted = tuple(word.encode() for word in words)

    def read(body: bytes) -> objects.Pod | None:
        return codec.decode(body, objects.Pod, what="pod") if mentions(body, wanted) else None

    return read


def all_of(kind: type[T], what: str) -> Callable[[bytes], T]:
    """Return a reader that keeps every object, as this type."""

    def read(body: bytes) -> T:
        return codec.decode(body, kind, what=what)

    return read
