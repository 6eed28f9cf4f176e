"""Keeps a sink equal to what the server has, for ever.

Three loops in one another, each of which ends only into the one around it:

- `run` takes a full list, follows the changes until they cannot be trusted any more, and begins
  again. The list comes through a watch that begins with one (WatchList), which is one request for
  list and changes and costs the server least; where that fails in any way, in pages.
- `_follow` watches from the newest version on, again and again.
- `hami.kube.listwatch` is one such watch.

What a list or an event means is decided by `hami.kube.store`, without I/O; each event is read and
applied with no await in between.

Beside them, every `resync_interval` a list in pages is compared with what we hold, because a
server, a proxy or we ourselves may have swallowed an event. The watch goes on meanwhile: the list
is gathered first, then the stream gets a moment to reach the list's version, then the list counts
for everything up to that version, and later events for the rest. No stream is restarted, and none
of it is seen half applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import random as randomness
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Generic, NoReturn, TypeVar

from hami.kube import errors, listwatch
from hami.kube.client import Client
from hami.kube.store import Decode, Disorder, Ignored, Kept, Mirror, Sink, Stats
from hami.kube.transport import Backoff
from hami.wire import errors as wire_errors

__all__ = ["Decode", "Ignored", "Reflector", "Sink", "Stats"]

_log = logging.getLogger(__name__)

T = TypeVar("T", bound=Kept)

#: Seconds that WatchList is left alone after it failed.
_WATCH_LIST_PAUSE = 600.0
#: Seconds of silence after which an initial list that has not ended counts as failed.
_LIST_SILENCE = 30.0
#: Watches that fail one after the other before a full list is taken.
_FAILURES = 3
#: Seconds that a watch lasts, drawn anew each time, so that not all end at once.
_SHORTEST, _LONGEST = 240, 480
#: A watch that the server ends sooner, having sent nothing, counts as failed.
_TOO_SHORT = 1.0
#: A list whose changes could be followed for so many seconds was worth it.
_LASTED = 5.0
#: Seconds that the stream gets to reach the version of a list that it is compared with.
_CATCH_UP = 2.0


class _Afresh(Exception):  # noqa: N818 - not an error: the way back to the full list
    """Only a full list helps."""


class Reflector(Generic[T]):
    def __init__(
        self,
        client: Client,
        path: str,
        *,
        decode: Decode[T],
        sink: Sink[T],
        kind: str,
        query: Mapping[str, str] | None = None,
        resync_interval: float = 900,
        page_size: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        #: What it watches, for logs.
        self.kind = kind
        self._client = client
        self._path = path
        self._query = dict(query or {})
        self._resync_interval = resync_interval
        #: Objects in one answer of a list, which are in memory at once, three times over; None:
        #: as many as usual.
        self._page_size = page_size
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._mirror = Mirror(decode=decode, sink=sink, kind=kind)
        self._backoff = Backoff(random=random)
        self._synced = asyncio.Event()
        self._relist = asyncio.Event()
        self._no_watch_list_until = 0.0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        #: Ends the present watch when somebody finds that it is not to be trusted.
        self._watch_limit: asyncio.Timeout | None = None
        self._distrusted = False
        #: When the server last said anything, by `clock`.
        self.last_contact = 0.0

    @property
    def stats(self) -> Stats:
        return self._mirror.stats

    @property
    def synced(self) -> bool:
        """Whether a complete list has been taken since the start."""
        return self._synced.is_set()

    @property
    def resource_version(self) -> int:
        """The newest version seen, in an event, a bookmark or a list; the sink is as new."""
        return self._mirror.version

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def wait_version(self, version: int) -> None:
        """Wait until the sink is at least as new as this version."""
        if self.resource_version >= version:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (version, next(self._order), reached))
        await reached

    def request_relist(self) -> None:
        """Compare with a list now, instead of when the interval is over."""
        self._relist.set()

    async def run(self) -> NoReturn:
        """Keep the sink in step; end by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync(), name=f"resync {self.kind}")
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
        with contextlib.suppress(_Afresh):
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
        async for page in listwatch.pages(
            self._client, self._path, self._query, size=self._page_size
        ):
            if page.first:
                self._mirror.begin_list()
            for body in page.items:
                self._mirror.listed(body)
            version = page.version
        self._mirror.end_list(version)
        self._is_synced()

    async def _watch_list(self) -> bool:
        """List and watch in one request; return whether the list was complete."""
        self.stats.watch_lists += 1
        complete = False
        self._mirror.begin_list()
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
                            self._mirror.unlisted(event.object)
                        else:
                            self._mirror.listed(event.object)
                    elif event.ends_list:
                        limit.reschedule(None)
                        self._mirror.end_list(event.version)
                        self._is_synced()
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
        """Watch from the newest version on; raises _Afresh when only a full list helps."""
        failures = 0
        while True:
            if self._distrusted:
                raise _Afresh
            before, began = self._mirror.version, self._clock()
            self.stats.watches += 1
            query = {**self._query, "resourceVersion": str(before)}
            connected = True
            try:
                async with self._watch(query) as (events, _):
                    async for event in events:
                        self._take(event)
                if self._mirror.version > before or self._clock() - began > _TOO_SHORT:
                    failures = 0
                    continue
                error: errors.KubeError = errors.Unreachable("the watch ended at once")
            except (errors.KubeError, wire_errors.WireError) as raised:
                error = _kube_error(raised)
                # A server that is not there says nothing about what we know.
                connected = not isinstance(raised, errors.Unreachable) or raised.outcome_unknown
            if self._mirror.version > before:
                failures = 0
            failures += connected
            await self._judge(error)
            if failures >= _FAILURES:
                _log.warning("watches fail, listing again", extra={"kind": self.kind})
                raise _Afresh

    @contextlib.asynccontextmanager
    async def _watch(
        self, query: Mapping[str, str], *, limit: float | None = None
    ) -> AsyncIterator[tuple[AsyncIterator[listwatch.Event], asyncio.Timeout]]:
        """Open a watch that `_distrust` can end, and that ends when `limit` seconds are over."""
        seconds = _SHORTEST + int(self._random() * (_LONGEST - _SHORTEST))
        self._mirror.begin_stream()
        try:
            async with asyncio.timeout(limit) as bound:
                self._watch_limit = bound
                opened = listwatch.watch(self._client, self._path, query, seconds=seconds)
                async with opened as events:
                    yield events, bound
        except TimeoutError:
            if self._distrusted:
                raise _Afresh from None
            raise errors.Unreachable(f"the list did not go on for {_LIST_SILENCE:g} s") from None
        except Disorder as error:
            self.stats.errors += 1
            _log.warning(
                "a watch is out of order, listing again",
                extra={"kind": self.kind, "error": str(error)},
            )
            raise _Afresh from error
        finally:
            self._watch_limit = None

    def _take(self, event: listwatch.Event) -> None:
        if isinstance(event, listwatch.Bookmark):
            self._mirror.bookmark(event.version)
        else:
            self._mirror.event(event.object, deleted=event.deleted)
        self._progressed()

    async def _judge(self, error: Exception) -> None:
        """Wait, and then watch again; or raise _Afresh where that cannot help."""
        if isinstance(error, errors.Gone | errors.StreamBroken):
            self.stats.errors += 1
            _log.info("listing again", extra={"kind": self.kind, "error": str(error)})
            raise _Afresh from error
        await self._pause("watch failed", error)

    async def _pause(self, what: str, error: Exception) -> None:
        self.stats.errors += 1
        wait = self._backoff.next(getattr(error, "retry_after", None))
        _log.warning(what, extra={"kind": self.kind, "error": str(error), "wait": round(wait, 3)})
        await self._sleep(wait)

    # The periodic comparison.

    async def _resync(self) -> NoReturn:
        backoff = Backoff(first=1.0, longest=60.0, random=self._random)
        await self._synced.wait()
        while True:
            jitter = 0.9 + 0.2 * self._random()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._resync_interval * jitter):
                    await self._relist.wait()
            self._relist.clear()
            try:
                await self._compare()
                backoff.reset()
            except (errors.KubeError, wire_errors.WireError) as error:
                self.stats.errors += 1
                _log.warning("resync failed", extra={"kind": self.kind, "error": str(error)})
                await self._sleep(backoff.next(getattr(error, "retry_after", None)))
                self._relist.set()

    async def _compare(self) -> None:
        self.stats.lists += 1
        before = self._mirror.version
        comparison = self._mirror.begin_comparison()
        async for page in listwatch.pages(
            self._client, self._path, self._query, size=self._page_size
        ):
            if page.first:
                comparison.begin()
            comparison.version = page.version
            self._mirror.compare(comparison, page.items)
        if comparison.version < before:
            # The server's past is another one: its store was restored from a backup.
            self._distrust(f"the server is at version {comparison.version}, we saw {before}")
            return
        if self._mirror.differs(comparison):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CATCH_UP):
                    await self.wait_version(comparison.version)
        if self._mirror.end_comparison(comparison):
            self._progressed()

    def _distrust(self, why: str) -> None:
        """End the present watch and take a full list."""
        _log.warning("listing again", extra={"kind": self.kind, "error": why})
        self._distrusted = True
        if self._watch_limit is not None and not self._watch_limit.expired():
            self._watch_limit.reschedule(asyncio.get_running_loop().time())

    # Telling those who wait.

    def _is_synced(self) -> None:
        self._progressed()
        if not self._synced.is_set():
            _log.info("synced", extra={"kind": self.kind, "objects": len(self._mirror)})
        self._synced.set()

    def _progressed(self) -> None:
        self.last_contact = self._clock()
        self._backoff.reset()
        version = self._mirror.version
        while self._waiting and self._waiting[0][0] <= version:
            _, _, reached = heapq.heappop(self._waiting)
            if not reached.done():
                reached.set_result(None)


def _kube_error(error: errors.KubeError | wire_errors.WireError) -> errors.KubeError:
    return error if isinstance(error, errors.KubeError) else errors.StreamBroken(str(error))
