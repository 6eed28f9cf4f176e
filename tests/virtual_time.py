"""An event loop whose time passes only while nothing can run.

    virtual_time.run(main())

A timer is due at once when no callback is ready and no socket has bytes: hours take milliseconds,
and what the processor needs takes no time at all. Both ends of every connection must be in this
loop. `loop.time` is the only clock; hand it to whatever reads another one.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds of real time in which bytes arrive that this process has sent to itself.
_ARRIVAL = 0.002


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not found and (timeout is None or timeout > 0):
            found = super().select(_ARRIVAL if timeout is not None else None)
            if not found and timeout is not None:
                self.passed += timeout
        return found


class Loop(asyncio.SelectorEventLoop):
    """A loop with its own time, which begins at 1000 s."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return 1000.0 + self._virtual.passed


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(work)
