"""How long to wait after a failure: longer each time, and never in step with others.

Full jitter: anything between nothing and the current limit, so that a thousand clients of a server
that comes back are spread over the whole time.
"""

from __future__ import annotations

import random as randomness
from collections.abc import Callable


class Backoff:
    def __init__(
        self,
        *,
        first: float = 0.1,
        longest: float = 30.0,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self._first = first
        self._longest = longest
        self._random = random
        self._limit = first

    def reset(self) -> None:
        """Something went well: begin small again."""
        self._limit = self._first

    def next(self, retry_after: float | None = None) -> float:
        """Return the seconds to wait now; at least what the server asked for."""
        wait = self._random() * self._limit
        self._limit = min(self._limit * 2, self._longest)
        # A server that asks for more than any outage lasts is not believed.
        return max(wait, min(retry_after or 0.0, 4 * self._longest))
