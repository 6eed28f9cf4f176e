"""Whoever waits for a bind: still there, and for how long."""

from __future__ import annotations

import asyncio
import math

from hami.scheduler.leadership import Leadership
from hami.scheduler.refusals import BindRefusedError


class CallerGoneError(Exception):
    """Nobody waits for this bind any more, and no Binding was sent."""


class Caller:
    def __init__(self, leadership: Leadership, *, waits_until: float = math.inf) -> None:
        self._leadership = leadership
        #: The term of leadership in which the bind began; what was decided holds in it alone.
        self.term = leadership.term
        #: Monotonic.
        self._waits_until = waits_until
        #: Done when the caller has gone away.
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        if not self.left.done():
            self.left.set_result(None)

    def require(self) -> None:
        """Raise unless somebody still waits, and we still lead."""
        self._leadership.check_decision(self.term)
        if self.left.done():
            raise CallerGoneError("whoever asked for the bind has gone away")

    def patience(self, clock: float) -> float:
        """Return for how many more seconds the caller waits for a lock."""
        return max(self._waits_until - clock, 0.0)

    def require_patience(self, clock: float) -> None:
        """Raise unless the caller is there and still willing to wait."""
        self.require()
        if self.patience(clock) <= 0:
            raise out_of_patience()


def out_of_patience() -> BindRefusedError:
    return BindRefusedError(
        "node lock contention: timed out after --node-lock-retry-timeout, which holds for members "
        "of pod groups"
    )
