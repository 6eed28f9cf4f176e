"""Watches: present objects, then changes, as lines, until a time limit.

A watch reads the history at its own pace, and nothing is kept for it. If the history has moved on,
the watch ends with 410.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

from hami_sandbox.apiserver import answers, store
from hami_sandbox.apiserver.answers import Writer
from hami_sandbox.apiserver.lists import ListOptions
from hami_sandbox.apiserver.refusals import Refusal
from hami_sandbox.apiserver.selectors import Selection
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.table import Change

ADDED, MODIFIED, DELETED = b"ADDED", b"MODIFIED", b"DELETED"
#: Seconds between bookmarks, and how long before the end the last one comes.
_BOOKMARKS = 60.0
_LAST_BOOKMARK = 2.0
#: Seconds that a watch lasts by default: between this and twice this.
_SHORTEST = 1800
#: Events sent at once, so that other requests have their turn.
_BATCH = 500


class Watch:
    """One watch; `lines` is what its client reads."""

    def __init__(
        self,
        store: Store,
        where: tuple[str, str],
        options: ListOptions,
        by: Selection,
        writer: Writer,
    ) -> None:
        self._store = store
        self._where = where
        self._table = store.table(where)
        self._options = options
        self._by = by
        self._writer = writer
        self._woken = asyncio.Event()
        # The version up to which everything was sent, and that of the last bookmark.
        self._seen = 0
        self._bookmarked = 0
        self._position = 0
        self._loop = asyncio.get_running_loop()
        seconds = options.timeout or random.uniform(_SHORTEST, 2 * _SHORTEST)  # noqa: S311 - spreads
        self._ends = self._loop.time() + seconds

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield lines, several at once where there are several."""
        self._table.wake(self._woken.set)
        try:
            async for chunk in self._lines():
                yield chunk
        finally:
            self._table.let_sleep(self._woken.set)

    async def _lines(self) -> AsyncIterator[bytes]:
        options = self._options
        asked = options.revision or 0
        if options.initial_events is True:
            if not await store.reached(self._store, asked):
                yield answers.error(store.too_large(asked, self._store.revision))
                return
            for chunk in self._initial():
                yield chunk
            if options.bookmarks:
                yield self._writer.bookmark(self._seen, initial_end=True)
        elif asked == 0 and options.initial_events is None:
            for chunk in self._initial():
                yield chunk
        else:
            self._from(asked or self._store.revision)
            if self._seen < self._table.history.forgotten:
                yield answers.error(self._expired(asked))
                return
        self._bookmarked = self._seen
        async for chunk in self._following():
            yield chunk

    def _from(self, revision: int) -> None:
        self._seen = revision
        self._position = self._table.history.position(revision)

    def _initial(self) -> list[bytes]:
        """Return what is there now, in pieces."""
        revision = self._store.revision
        self._from(revision)
        by = self._by
        lines = [
            self._writer.event(ADDED, stored)
            for _, stored in self._table.now(revision).items(by.namespace)
            if not by.selective or by.matches(stored.object)
        ]
        return [b"".join(lines[at : at + _BATCH]) for at in range(0, len(lines), _BATCH)]

    async def _following(self) -> AsyncIterator[bytes]:
        bookmark_at = self._next_bookmark()
        while True:
            self._woken.clear()
            if self._store.stopping or not self._store.has(self._where, self._table):
                return  # the server stops, or the kind was deleted
            changes = self._table.history.since(self._position)
            if changes is None:
                yield answers.error(self._expired(self._seen))
                return
            for at in range(0, len(changes), _BATCH):
                chunk = self._written(changes[at : at + _BATCH])
                if chunk:
                    yield chunk
            self._position += len(changes)
            now = self._loop.time()
            if now >= self._ends:
                return
            if self._options.bookmarks and now >= bookmark_at:
                # The history may have grown while the last lines were sent.
                if (
                    self._position == self._table.history.end
                    and self._store.revision > self._bookmarked
                ):
                    self._bookmarked = max(self._seen, self._store.revision)
                    yield self._writer.bookmark(self._bookmarked)
                bookmark_at = self._next_bookmark()
            if not self._woken.is_set():
                await self._sleep(bookmark_at)

    async def _sleep(self, bookmark_at: float) -> None:
        until = min(self._ends, bookmark_at) if self._options.bookmarks else self._ends
        try:
            async with asyncio.timeout_at(until):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _next_bookmark(self) -> float:
        now = self._loop.time()
        last = self._ends - _LAST_BOOKMARK
        if now < last:
            return min(now + _BOOKMARKS, last)
        return now + 1

    def _written(self, changes: list[Change]) -> bytes:
        lines = [line for line in map(self._line, changes) if line]
        return b"".join(lines)

    def _line(self, change: Change) -> bytes:
        """Return the line for a change; empty if the change does not concern this watch."""
        if change.revision <= self._seen:
            return b""
        self._seen = change.revision
        by = self._by
        new = change.new if change.new is not None and by.matches(change.new.object) else None
        old = change.old if change.old is not None and by.matches(change.old.object) else None
        if new is not None:
            return self._writer.event(ADDED if old is None else MODIFIED, new)
        if old is not None:
            return self._writer.event(DELETED, change.removed)
        return b""

    def _expired(self, asked: int) -> Refusal:
        oldest = self._table.history.forgotten
        return store.expired(f"too old resource version: {asked} ({oldest})")
