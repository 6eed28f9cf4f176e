"""Keys that want attention come once each, at their time."""

from __future__ import annotations

import asyncio

from hami_sandbox.controllers.controller import Queue


async def test_a_key_that_is_added_twice_comes_once() -> None:
    queue = Queue()
    for key in "aba":
        queue.add(key)
    assert [await queue.take(), await queue.take()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_that_is_added_while_it_is_worked_on_comes_again() -> None:
    queue = Queue()
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    assert await queue.take() == "a"


async def test_the_earliest_time_counts() -> None:
    queue = Queue()
    queue.add_after("a", 3600)
    queue.add_after("a", 0.01)
    queue.add_after("a", 3600)
    assert await asyncio.wait_for(queue.take(), 10) == "a"
    queue.add_after("b", 3600)
    queue.add("b")
    assert await queue.take() == "b"
    assert len(queue) == 0  # the later time is gone with it


async def test_whoever_waits_is_woken() -> None:
    queue = Queue()
    taken = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    assert await taken == "a"


async def test_failures_wait_longer_each_time_until_one_succeeds() -> None:
    queue = Queue(first=10, longest=15)
    loop = asyncio.get_running_loop()

    def waits() -> float:
        queue.add_failed("a")
        wait = queue._later["a"].when() - loop.time()
        queue.add("a")
        return round(wait)

    found = [waits() for _ in range(3) if await _drained(queue)]
    await _drained(queue)
    queue.succeeded("a")
    assert [*found, waits()] == [10, 15, 15, 10]


async def _drained(queue: Queue) -> bool:
    while len(queue):
        await queue.take()
    return True
