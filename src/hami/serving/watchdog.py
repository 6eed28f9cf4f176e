"""Watchdog of the event loop: how long it was blocked, and by which work.

All requests and all background work of a process share one loop. A piece of work that does not
await for 50 ms delays every request by 50 ms, and no histogram of a verb shows it. So a timer runs
every 2 ms: when it is late, the loop was blocked. What is measured is at most 2 ms too short.

The time of work that may block (`apart`) is measured by itself and subtracted. Two clocks: `wall`
is what a caller waits, `cpu` leaves out the time in which another process had the CPU.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple, TypeVar

from hami.serving.metrics import Registry

INTERVAL_S = 0.002
#: Shorter ones are not worth a sample: timers are a millisecond late on an idle machine.
_LEAST_S = 0.001
_BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
OTHER = "other"

T = TypeVar("T")


class _Spent(NamedTuple):
    """Seconds of both clocks; a moment, or a duration."""

    wall: float
    cpu: float


class Metrics:
    """The metrics, with their prefix, for instance hami_scheduler."""

    def __init__(self, registry: Registry, prefix: str) -> None:
        self.blocked = registry.histogram(
            f"{prefix}_loop_blocked_seconds",
            "Times for which the event loop was blocked, of 1 ms and more, since this replica has "
            "read the cluster; by: filter, or other work; clock: wall, or cpu.",
            ("by", "clock"),
            buckets=_BUCKETS,
        )
        self.longest = registry.gauge(
            f"{prefix}_loop_blocked_max_seconds", "The longest of these times.", ("by", "clock")
        )


class LoopWatchdog:
    def __init__(
        self,
        metrics: Metrics,
        *,
        counts: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Build it; `counts` returns whether what is seen now counts: not while starting."""
        self._metrics = metrics
        self._counts = counts
        self._clock = clock
        self._cpu_clock = cpu_clock
        #: By name: what was spent apart since the last tick.
        self._apart: dict[str, _Spent] = {}
        self._longest: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Measure for ever; end by cancellation."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(INTERVAL_S, lambda: None)
        before = self._now()

        def tick() -> None:
            nonlocal timer, before
            now = self._now()
            self._saw(late=now.wall - before.wall - INTERVAL_S, cpu=now.cpu - before.cpu)
            self._apart.clear()
            before = self._now()
            timer = loop.call_later(INTERVAL_S, tick)

        tick()
        try:
            await asyncio.Event().wait()
        finally:
            timer.cancel()

    def _now(self) -> _Spent:
        return _Spent(self._clock(), self._cpu_clock())

    def _saw(self, *, late: float, cpu: float) -> None:
        if late < _LEAST_S or not self._counts():
            return
        for by, spent in self._apart.items():
            self._observe(by, _Spent(min(late, spent.wall), min(late, spent.cpu)))
            late, cpu = late - spent.wall, cpu - spent.cpu
        self._observe(OTHER, _Spent(late, min(late, cpu)))

    def _observe(self, by: str, spent: _Spent) -> None:
        for clock, seconds in spent._asdict().items():
            if seconds >= _LEAST_S:
                self._metrics.blocked.labels(by, clock).observe(seconds)
                if seconds > self._longest.get((by, clock), 0.0):
                    self._longest[by, clock] = seconds
                    self._metrics.longest.labels(by, clock).set(seconds)

    @types.coroutine
    def apart(self, by: str, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run a coroutine and account for its steps, without the time in which it awaits."""
        step: Callable[[Any], Any] = work.send
        value: Any = None
        while True:
            begin = self._now()
            try:
                awaited = step(value)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                now, had = self._now(), self._apart.get(by, _Spent(0, 0))
                self._apart[by] = _Spent(
                    had.wall + now.wall - begin.wall, had.cpu + now.cpu - begin.cpu
                )
            try:
                value = yield awaited
                step = work.send
            except BaseException as error:  # noqa: BLE001 - a cancellation goes to the work
                step, value = work.throw, error
