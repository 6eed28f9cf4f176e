"""A token bucket: so many a second on average, so many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class TokenBucket:
    def __init__(
        self,
        *,
        rate: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rate = rate
        self._burst = max(burst, 1)
        self._clock = clock
        self._sleep = sleep
        self._tokens = float(self._burst)
        self._filled = clock()

    def try_take(self) -> bool:
        """Take a token if there is one."""
        self._fill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def take(self) -> None:
        """Take a token, waiting for one where there is none; who comes first goes first."""
        self._fill()
        # Taken now and paid for later, so that the next caller queues behind this one.
        self._tokens -= 1
        if self._tokens < 0:
            await self._sleep(-self._tokens / self._rate)

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
