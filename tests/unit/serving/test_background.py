"""Background tasks: none ends without a log line, an error and an exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from hami.serving import lifetime


async def fails() -> None:
    assert not "a rule of ours"


async def ends() -> None:
    await asyncio.sleep(0)


async def is_cancelled_from_inside() -> None:
    """Wait for something that another part gives up."""
    given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    given_up.cancel()
    await given_up


async def run(works: dict[str, Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        lifetime.start(group, works)
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("work", "error"),
    [(fails, AssertionError), (ends, RuntimeError), (is_cancelled_from_inside, RuntimeError)],
    ids=["fails", "ends", "is cancelled from inside"],
)
async def test_a_background_task_that_ends_ends_the_process_and_is_named(
    work: Any, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    works: dict[str, Coroutine[Any, Any, None]] = {"the third part": work()}
    with pytest.raises(ExceptionGroup) as raised:
        await run(works)
    assert raised.group_contains(error)
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert vars(record)["task"] == "the third part"


async def test_a_background_task_that_is_asked_to_stop_stops_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = lifetime.start(group, {"waits": _wait()})
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
    assert not caplog.records


async def _wait() -> None:
    await asyncio.Event().wait()


async def test_a_task_that_no_other_waits_for_logs_its_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = asyncio.create_task(fails(), name="alone")
    task.add_done_callback(lifetime.log_failure)
    await asyncio.wait([task])
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert vars(record)["task"] == "alone"
    assert record.exc_info is not None
