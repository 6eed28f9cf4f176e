"""/debug: what runs, where time goes, what memory holds."""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from types import FrameType

import pytest

from hami.serving import endpoints
from hami.serving.http_server import Server
from tests.unit.kube.following import PATIENCE_S
from tests.unit.serving import servers


async def get(server: Server, path: str) -> tuple[int, str]:
    status, _, body = await servers.ask(server.port, "GET", path)
    return status, body.decode()


async def test_strangers_see_nothing() -> None:
    async with servers.serving(*endpoints.debug_routes(), is_local=lambda _: False) as server:
        for path in ("/debug/tasks", "/debug/profile", "/debug/memory"):
            assert (await get(server, path))[0] == 403


async def test_tasks_are_named_with_where_they_wait() -> None:
    async def wait_for_godot() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(wait_for_godot(), name="waiting for pods")
    async with servers.serving(*endpoints.debug_routes()) as server:
        status, text = await get(server, "/debug/tasks")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert status == 200
    assert "\nwaiting for pods\n" in text
    assert "in wait_for_godot" in text


async def test_a_profile_shows_what_the_loop_was_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the loop is watched while it really works, until it was seen at it."""
    ended, seen = threading.Event(), threading.Event()
    folded = endpoints._folded

    def noted(frame: FrameType | None) -> str:
        stack = folded(frame)
        if "work_hard" in stack.split(";")[-1]:  # else it was within `is_set`
            seen.set()
        return stack

    monkeypatch.setattr(endpoints, "_folded", noted)
    sampling = asyncio.create_task(
        asyncio.to_thread(endpoints._sample, threading.get_ident(), seconds=60, ended=ended)
    )
    await asyncio.sleep(0)
    work_hard(seen)
    ended.set()
    stacks = await sampling
    assert any("work_hard" in stack.split(";")[-1] for stack in stacks)


def work_hard(seen: threading.Event) -> None:
    end = time.monotonic() + PATIENCE_S  # catches hangs only
    while not seen.is_set() and time.monotonic() < end:
        sum(range(100))


@pytest.mark.parametrize("seconds", ["0", "61", "-1", "1.5", "x", "", "9" * 5000])
async def test_a_profile_takes_1_to_60_seconds(seconds: str) -> None:
    async with servers.serving(*endpoints.debug_routes()) as server:
        status, text = await get(server, f"/debug/profile?seconds={seconds}")
    assert status == 400
    assert "from 1 to 60" in text


async def test_one_profile_at_a_time_and_a_caller_that_goes_away_ends_it() -> None:
    async with servers.serving(*endpoints.debug_routes()) as server:
        async with servers.connected(server.port) as one, servers.connected(server.port) as other:
            answers = [asyncio.create_task(connection.answer()) for connection in (one, other)]
            for connection in (one, other):
                await connection.send(servers.head("GET", "/debug/profile?seconds=60", {}))
            (early,), (late,) = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            assert (await early)[0] == 429
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            while (await get(server, "/debug/profile?seconds=1"))[0] != 200:
                pass


async def test_memory_says_what_is_resident_and_what_is_traced() -> None:
    async with servers.serving(*endpoints.debug_routes()) as server:
        status, text = await get(server, "/debug/memory")
        assert status == 200
        resident = int(text.splitlines()[0].removeprefix("resident bytes: "))
        assert 2**20 < resident < 2**40
        assert "PYTHONTRACEMALLOC" in text
        tracemalloc.start()
        try:
            _, text = await get(server, "/debug/memory")
        finally:
            tracemalloc.stop()
        assert "largest allocations:" in text
