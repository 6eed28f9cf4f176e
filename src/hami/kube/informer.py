"""List, watch and resync one kind of object.

    pods = Informer(client, paths.pods(), read, kind="pods")
    pods.add_handler(changed)
    await pods.run()

The informer keeps what `read` makes of each object, equal to what the server has, for ever. It is
a `hami.kube.store`, which decides without I/O which objects exist. Each event is read and applied,
and all handlers have run, with no await in between. Three loops run, each of which ends only into
the one around it:

- `run` takes a full list, follows the changes until they cannot be trusted any more, and repeats.
  The list comes through a watch that begins with one (WatchList): one request for list and changes,
  at the least cost for the server. Where that fails in any way, the list is read in pages.
- `_follow` watches from the newest version on, again and again.
- `hami.kube.listwatch` is one such watch.

Every `resync_interval` a list in pages is compared with the store, because a server, a proxy or a
fault of ours may have swallowed an event. The watch continues meanwhile: the list is read, then the
stream gets a moment to reach the list's version, then the list counts for everything up to that
version, and later events for the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import random as randomness
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import NoReturn

from hami.kube import errors, listing, listwatch
from hami.kube.client import Client
from hami.kube.lister import Index, T, key_of
from hami.kube.store import Disorder, Read, Store
from hami.kube.transport import Backoff
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Seconds in which WatchList is not tried again after it failed.
_WATCH_LIST_PAUSE = 600.0
#: Seconds of silence after which an initial list that has not ended counts as failed.
_LIST_SILENCE = 30.0
#: Watches that fail one after the other before a full list is taken.
_FAILURES = 3
#: Seconds that a watch lasts, drawn each time, so that not all end at once.
_SHORTEST, _LONGEST = 240, 480
#: A watch that the server ends sooner, having sent nothing, counts as failed.
_TOO_SHORT = 1.0
#: A list whose changes could be followed for so many seconds was worth it.
_LASTED = 5.0
#: Seconds that the stream gets to reach the version of a list that it is compared with.
_CATCH_UP = 2.0


class _Relist(Exception):  # noqa: N818 - not an error: the way back to the full list
    """Only a full list helps."""


class Informer(Store[T]):
    """A store that fills itself from one path and query of the API server."""

    def __init__(
        self,
        client: Client,
        path: str,
        read: Read[T],
        *,
        kind: str,
        query: Mapping[str, str] | None = None,
        indexes: Mapping[str, Index[T]] | None = None,
        resync_interval: float = 900,
        page_size: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        selected = "labelSelector" in (query or {})
        super().__init__(read, kind=kind, indexes=indexes, selected=selected)
        #: When the server last answered or sent an event, by `clock`.
        self.last_contact = 0.0
        self._client = client
        self._path = path
        self._query = dict(query or {})
        self._resync_interval = resync_interval
        #: Objects in one page of a list, which are in memory at once, three times over; None: the
        #: usual number.
        self._page_size = page_size
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._backoff = Backoff(random=random)
        self._synced = asyncio.Event()
        self._resync_now = asyncio.Event()
        self._no_watch_list_until = 0.0
        #: (version, order, future) of `wait_version`, as a heap.
        self._version_waits: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waits_epoch = 0
        self._order = itertools.count()
        #: UID or key -> futures of `wait`.
        self._waits: dict[str, list[asyncio.Future[None]]] = {}
        #: Ends the present watch when it is not trusted any more.
        self._watch_limit: asyncio.Timeout | None = None
        self._distrusted = False
        self.add_handler(self._wake)

    async def wait_synced(self) -> None:
        """Wait for the first complete list."""
        await self._synced.wait()

    async def wait_version(self, version: int) -> None:
        """Wait until the store is at least as new as this version, or versions begin again."""
        if self.version >= version:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._version_waits, (version, next(self._order), reached))
        await reached

    async def wait(
        self,
        key: str,
        predicate: Callable[[T | None], bool],
        timeout: float | None,  # noqa: ASYNC109 - also the caller's only bound
    ) -> T | None:
        """Wait until the predicate holds of an object, by UID or key, and return the object.

        None is an object that does not exist. Raises TimeoutError after so many seconds.
        """
        async with asyncio.timeout(timeout):
            while not predicate(found := self.get(key) or self.by_key(key)):
                changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waits.setdefault(key, []).append(changed)
                try:
                    await changed
                finally:
                    self._stop_waiting(key, changed)
        return found

    def _stop_waiting(self, key: str, changed: asyncio.Future[None]) -> None:
        waits = self._waits.get(key, [])
        if changed in waits:
            waits.remove(changed)
            if not waits:
                del self._waits[key]

    def _wake(self, old: T | None, new: T | None) -> None:
        if not self._waits:
            return
        obj = new or old
        assert obj is not None
        for key in (obj.uid, key_of(obj)):
            for changed in self._waits.pop(key, ()):
                if not changed.done():
                    changed.set_result(None)

    def resync(self) -> None:
        """Compare with a new list now, instead of when the interval is over."""
        self._resync_now.set()

    async def run(self) -> NoReturn:
        """Keep the store equal to the server, for ever; end by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync_periodically(), name=f"resync {self.kind}")
            again = Backoff(random=self._random)
            while True:
                began = self._clock()
                try:
                    await self._list_and_follow()
                except (errors.KubeError, wire_errors.WireError) as error:
                    await self._pause("list failed", error)
                    continue
                # Lists that work and watches that never do would take turns without a pause.
                if self._clock() - began > _LASTED:
                    again.reset()
                await self._sleep(again.next())

    # The full list, and what follows it.

    async def _list_and_follow(self) -> None:
        """Take a full list and follow its changes; returns when another list is needed."""
        self._distrusted = False
        with contextlib.suppress(_Relist):
            if self._clock() >= self._no_watch_list_until:
                listed = await self._watch_list()
                if listed:
                    await self._follow()
                    return
                self._no_watch_list_until = self._clock() + _WATCH_LIST_PAUSE
            await self._list()
            await self._follow()

    async def _list(self) -> None:
        self.stats.lists += 1
        version = 0
        # Before the request: what is learned while the answer is on its way may be newer than it.
        self.begin_list()
        async with contextlib.aclosing(self._pages()) as pages:
            async for page in pages:
                if page.first:
                    self.restart_list()
                async for bodies in listing.in_turns(page.items):
                    for body in bodies:
                        self.listed(body)
                version = page.version
        await listing.search(self._listing, list(self._objects))
        self.end_list(version)
        self._list_ended()

    def _pages(self) -> AsyncGenerator[listwatch.Page, None]:
        return listwatch.pages(self._client, self._path, self._query, size=self._page_size)

    async def _watch_list(self) -> bool:
        """List and watch in one request; return whether the list was complete."""
        self.stats.watch_lists += 1
        complete = False
        self.begin_list()
        query = {**self._query, **listwatch.WATCH_LIST}
        try:
            async with self._watch(query, limit=_LIST_SILENCE) as (events, limit):
                async for event in events:
                    if complete:
                        self._take(event)
                    elif isinstance(event, listwatch.Change):
                        limit.reschedule(asyncio.get_running_loop().time() + _LIST_SILENCE)
                        # What changes while the list is sent comes before its end, too.
                        if event.deleted:
                            self.unlisted(event.object)
                        else:
                            self.listed(event.object)
                    elif event.ends_list:
                        limit.reschedule(None)
                        await listing.search(self._listing, list(self._objects))
                        self.end_list(event.version)
                        self._list_ended()
                        complete = True
        except (errors.KubeError, wire_errors.WireError) as error:
            if complete:
                await self._judge(error)
            else:
                self.stats.errors += 1
                _log.info(
                    "no list through a watch, listing in pages",
                    extra={"kind": self.kind, "error": str(error)},
                )
        return complete

    # Watches.

    async def _follow(self) -> NoReturn:
        """Watch from the newest version on; raises _Relist when only a full list helps."""
        failures = 0
        while True:
            if self._distrusted:
                raise _Relist
            before, began = self.version, self._clock()
            self.stats.watches += 1
            query = {**self._query, "resourceVersion": str(before)}
            connected = True
            try:
                async with self._watch(query) as (events, _):
                    async for event in events:
                        self._take(event)
                if self.version > before or self._clock() - began > _TOO_SHORT:
                    failures = 0
                    continue
                error: errors.KubeError = errors.Unreachable("the watch ended at once")
            except (errors.KubeError, wire_errors.WireError) as raised:
                broken = errors.StreamBroken(str(raised))
                error = raised if isinstance(raised, errors.KubeError) else broken
                # A server that is not there says nothing about what we know.
                connected = not isinstance(raised, errors.Unreachable) or raised.outcome_unknown
            if self.version > before:
                failures = 0
            failures += connected
            await self._judge(error)
            if failures >= _FAILURES:
                _log.warning("watches fail, listing again", extra={"kind": self.kind})
                raise _Relist

    @contextlib.asynccontextmanager
    async def _watch(
        self, query: Mapping[str, str], *, limit: float | None = None
    ) -> AsyncIterator[tuple[AsyncIterator[listwatch.Event], asyncio.Timeout]]:
        """Open a watch that `_distrust` can end, and that ends when `limit` seconds are over."""
        seconds = _SHORTEST + int(self._random() * (_LONGEST - _SHORTEST))
        self.begin_stream()
        try:
            async with asyncio.timeout(limit) as bound:
                self._watch_limit = bound
                opened = listwatch.watch(self._client, self._path, query, seconds=seconds)
                async with opened as events:
                    yield events, bound
        except TimeoutError:
            if self._distrusted:
                raise _Relist from None
            raise errors.Unreachable(f"the list did not go on for {_LIST_SILENCE:g} s") from None
        except Disorder as error:
            self.stats.errors += 1
            _log.warning(
                "a watch is out of order, listing again",
                extra={"kind": self.kind, "error": str(error)},
            )
            raise _Relist from error
        finally:
            self._watch_limit = None

    def _take(self, event: listwatch.Event) -> None:
        if isinstance(event, listwatch.Bookmark):
            self.bookmark(event.version)
        else:
            self.event(event.object, deleted=event.deleted)
        self._progressed()

    async def _judge(self, error: Exception) -> None:
        """Wait, and then watch again; or raise _Relist where that cannot help."""
        if isinstance(error, errors.Gone | errors.StreamBroken):
            self.stats.errors += 1
            _log.info("listing again", extra={"kind": self.kind, "error": str(error)})
            raise _Relist from error
        await self._pause("watch failed", error)

    async def _pause(self, what: str, error: Exception) -> None:
        self.stats.errors += 1
        wait = self._backoff.next(getattr(error, "retry_after", None))
        _log.warning(what, extra={"kind": self.kind, "error": str(error), "wait": round(wait, 3)})
        await self._sleep(wait)

    # The periodic resync.

    async def _resync_periodically(self) -> NoReturn:
        backoff = Backoff(first=1.0, longest=60.0, random=self._random)
        await self._synced.wait()
        while True:
            jitter = 0.9 + 0.2 * self._random()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._resync_interval * jitter):
                    await self._resync_now.wait()
            self._resync_now.clear()
            try:
                await self._resync_once()
                backoff.reset()
            except (errors.KubeError, wire_errors.WireError) as error:
                self.stats.errors += 1
                _log.warning("resync failed", extra={"kind": self.kind, "error": str(error)})
                await self._sleep(backoff.next(getattr(error, "retry_after", None)))
                self._resync_now.set()

    async def _resync_once(self) -> None:
        self.stats.lists += 1
        resync = self.begin_resync()
        async with contextlib.aclosing(self._pages()) as pages:
            async for page in pages:
                if page.first:
                    resync.begin()
                resync.version = page.version
                async for bodies in listing.in_turns(page.items):
                    self.compare(resync, bodies)
        await listing.search(resync, list(self._objects))
        if resync.is_restored:
            # The server's store was restored from a backup: only a full list starts a new epoch.
            self._distrust(f"the server is at version {resync.version}, known was {resync.known}")
            return
        if self.differs(resync):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CATCH_UP):
                    await self.wait_version(resync.version)
        if self.end_resync(resync):
            self._progressed()

    def _distrust(self, why: str) -> None:
        """End the present watch and take a full list."""
        _log.warning("listing again", extra={"kind": self.kind, "error": why})
        self._distrusted = True
        if self._watch_limit is not None and not self._watch_limit.expired():
            self._watch_limit.reschedule(asyncio.get_running_loop().time())

    # Progress.

    def _list_ended(self) -> None:
        self._progressed()
        if not self._synced.is_set():
            _log.info("synced", extra={"kind": self.kind, "objects": len(self)})
        self._synced.set()

    def _progressed(self) -> None:
        self.last_contact = self._clock()
        self._backoff.reset()
        version = self.version
        if self._waits_epoch != self.epoch:  # versions of the epoch before never come
            self._waits_epoch, version = self.epoch, sys.maxsize
        while self._version_waits and self._version_waits[0][0] <= version:
            _, _, reached = heapq.heappop(self._version_waits)
            if not reached.done():
                reached.set_result(None)
