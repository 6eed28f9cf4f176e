"""Whether this replica may decide now, and how it becomes so.

Three things are needed: every cache has been filled, we lead, and since we lead the pods have
caught up with everything the leader before us did. The last is a barrier: after we gained the
lease we ask the API server for a version that is newer than all Bindings of the old leader (no
such Binding can come later, `hami.scheduler.leadership`), and wait until our pod watch has reached
it. Without it a new leader with a slow watch would hand out cards that were bound a second ago.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from hami.kube import errors
from hami.scheduler.leadership import Leadership
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

RETRY_S = 0.5


class Synced(Protocol):
    """What of a reflector decides readiness."""

    @property
    def synced(self) -> bool: ...


class NotReadyError(Exception):
    """This replica cannot decide now; the message says why."""


class Readiness:
    def __init__(
        self,
        leadership: Leadership,
        caches: Mapping[str, Synced],
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._leadership = leadership
        self._caches = caches
        self._catch_up = catch_up
        #: The term for which the barrier was passed.
        self._caught_up = 0
        self._changed = asyncio.Condition()

    @property
    def caches_synced(self) -> bool:
        return all(cache.synced for cache in self._caches.values())

    @property
    def ready(self) -> bool:
        return (
            self._leadership.leading
            and self._caught_up == self._leadership.term
            and self.caches_synced
        )

    def why_not(self) -> str:
        waiting = [kind for kind, cache in self._caches.items() if not cache.synced]
        if waiting:
            return f"the caches of {', '.join(waiting)} are not filled yet"
        if not self._leadership.leading:
            return self._leadership.why_not()
        return "the caches are catching up with the leader before us"

    async def require(self, budget: float, *, leading: bool = True) -> None:
        """Wait until ready, at most so many seconds; raise if it takes longer.

        Whoever decides nothing needs not lead, but full caches all the same.
        """

        def fine() -> bool:
            return self.ready if leading else self.caches_synced

        if fine():
            return
        try:
            async with asyncio.timeout(budget), self._changed:
                await self._changed.wait_for(fine)
        except TimeoutError:
            raise NotReadyError(self.why_not()) from None

    async def run(self) -> None:
        """Pass the barrier once in each term."""
        while True:
            self._leadership.tick()
            async with self._changed:
                self._changed.notify_all()
            term = self._leadership.term
            if self._leadership.leading and self._caught_up != term and self.caches_synced:
                try:
                    await self._catch_up()
                except (errors.KubeError, wire_errors.WireError, TimeoutError) as error:
                    _log.warning("catching up failed, trying again", extra={"error": str(error)})
                    await asyncio.sleep(RETRY_S)
                    continue
                self._caught_up = term  # worth nothing if the term has ended meanwhile
                _log.info("caught up, ready to schedule", extra={"term": term})
                continue
            await asyncio.sleep(0.05)
