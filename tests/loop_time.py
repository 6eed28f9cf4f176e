"""The running loop's clock, which a test sets forward instead of sleeping.

    time = LoopTime()
    asking = asyncio.create_task(filter(pod))  # waits for 30 s at most
    await time.forward(31)

Between two calls it runs as the real one does, so bounds against hangs still work. They are moved
by `forward` as well: a test sets the clock forward by less than its own patience. Only asyncio's
own loops can be set; uvloop keeps its time to itself.
"""

from __future__ import annotations

import asyncio

#: A timer that is due wakes a task, which may wake another one, and so on.
_TURNS = 10


class LoopTime:
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._real = loop.time
        self._ahead = 0.0
        loop.time = self  # type: ignore[method-assign]  # the loop ends with its test

    def __call__(self) -> float:
        return self._real() + self._ahead

    async def forward(self, seconds: float) -> None:
        """Make every timer of the next `seconds` due; return once what they wake has run."""
        self._ahead += seconds
        for _ in range(_TURNS):
            await asyncio.sleep(0)
