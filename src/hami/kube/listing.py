"""A whole list, page by page.

All pages together show one moment, that of the first page. A server that forgets this moment
while we read (410) makes us begin again, a few times; then everything is asked for at once, which
cannot expire. It could also offer to go on from the present, but then the pages would not fit
together, and what was deleted in between would never be missed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import msgspec

from hami.kube import errors, raw
from hami.kube.client import Client
from hami.wire import codec

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
        version=raw.version(found.metadata.resource_version),
        items=[bytes(item) for item in found.items or ()],
    )
    return page, token
