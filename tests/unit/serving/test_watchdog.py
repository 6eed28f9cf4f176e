"""The watchdog of the event loop: what blocked it, for how long, by which clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from prometheus_client import parser

from hami.serving import metrics, watchdog
from hami.serving.watchdog import LoopWatchdog
from tests.loop_time import LoopTime

TICK_S = 100.0


class Bed:
    """A watchdog with clocks that only the test moves."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.counts = True
        self.registry = metrics.Registry()
        self.watchdog = LoopWatchdog(
            watchdog.Metrics(self.registry, "x"),
            counts=lambda: self.counts,
            clock=lambda: self.wall,
            cpu_clock=lambda: self.cpu,
        )
        self._time = LoopTime()

    def block(self, wall: float, cpu: float) -> None:
        self.wall += wall
        self.cpu += cpu

    async def tick(self) -> None:
        self.wall += TICK_S
        await self._time.forward(TICK_S + 1)

    def seen(self) -> dict[tuple[str, str], float]:
        """Return the longest times by (by, clock)."""
        text = b"".join(self.registry.render()).decode()
        (family,) = (
            family
            for family in parser.text_string_to_metric_families(text)
            if family.name == "x_loop_blocked_max_seconds"
        )
        return {(s.labels["by"], s.labels["clock"]): round(s.value, 6) for s in family.samples}


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr(watchdog, "INTERVAL_S", TICK_S)
    made = Bed()
    running = asyncio.create_task(made.watchdog.run())
    await asyncio.sleep(0)
    yield made
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_loop_that_is_not_blocked_has_no_samples(bed: Bed) -> None:
    bed.block(0.0009, 0.0009)
    await bed.tick()
    assert bed.seen() == {}


async def test_a_block_is_seen_by_both_clocks(bed: Bed) -> None:
    bed.block(0.050, 0.020)
    await bed.tick()
    assert bed.seen() == {("other", "wall"): 0.05, ("other", "cpu"): 0.02}


async def test_the_longest_block_is_kept(bed: Bed) -> None:
    for wall in (0.010, 0.030, 0.020):
        bed.block(wall, wall)
        await bed.tick()
    assert bed.seen() == {("other", "wall"): 0.03, ("other", "cpu"): 0.03}


async def test_blocks_while_a_process_starts_do_not_count(bed: Bed) -> None:
    bed.counts = False
    bed.block(3, 3)
    await bed.tick()
    bed.counts = True
    await bed.tick()
    assert bed.seen() == {}


async def test_the_steps_of_work_apart_are_counted_apart(bed: Bed) -> None:
    async def work() -> str:
        bed.block(0.030, 0.030)
        await asyncio.sleep(0)
        bed.block(0.010, 0.005)
        return "done"

    async def other() -> None:
        bed.block(0.007, 0.007)

    apart = asyncio.ensure_future(bed.watchdog.apart("filter", work()))
    await asyncio.gather(apart, other())
    assert apart.result() == "done"
    await bed.tick()
    assert bed.seen() == {
        ("filter", "wall"): 0.04,
        ("filter", "cpu"): 0.035,
        ("other", "wall"): 0.007,
        ("other", "cpu"): 0.007,
    }


async def test_work_apart_ends_as_it_would_alone(bed: Bed) -> None:
    ended = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("it")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    with pytest.raises(ValueError, match="it"):
        await bed.watchdog.apart("filter", fails())
    task = asyncio.ensure_future(bed.watchdog.apart("filter", waits()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [1]
