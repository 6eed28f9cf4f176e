"""Crashes at any moment of a bind: no card is given twice, lost or stuck.

A replica in a process of its own places a pod and kills itself at the n-th suspension of its bind,
for every n until the bind ends before. The API server goes on with what it has received. Then
another replica starts on the same API server.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import time
import types
import urllib.request
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from hami.wire import codec, objects
from tests.oracle import rebuild
from tests.scripted_api.server import Kind, Lost, ScriptedApi
from tests.unit.scheduler import rig

CRASHED = 9
ROUNDS = 5

spawner = multiprocessing.get_context("forkserver")
spawner.set_forkserver_preload(["tests.unit.scheduler.rig"])


@types.coroutine
def watched(
    work: Coroutine[Any, Any, Any], left: list[int], barrier: Callable[[], object]
) -> Generator[Any, Any, Any]:
    """Run a coroutine and die at one of its suspensions.

    `barrier` asks the server something: once it has answered often enough, it has worked on what
    was sent before.
    """
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            waited_for = work.throw(error) if error is not None else work.send(value)
        except StopIteration as end:
            return end.value
        left[0] -= 1
        if left[0] <= 0:
            for _ in range(ROUNDS):  # what was sent arrives, and is worked on
                barrier()
            os._exit(CRASHED)
        error = None
        try:
            value = yield waited_for
        except BaseException as raised:  # noqa: BLE001  handed on to the bind
            error = raised


async def as_coroutine(work: Any) -> Any:
    """Make a coroutine of a generator: tasks of Python 3.12 and later take nothing else."""
    return await work


def die_in_bind(url: str, pod: rig.Object, at: int) -> None:
    """Place a pod from a process of its own."""

    async def main() -> None:
        left, asked = [at], f"{url}/api/v1/nodes"

        def factory(
            loop: asyncio.AbstractEventLoop, work: Any, **options: Any
        ) -> asyncio.Task[Any]:
            if getattr(work, "__qualname__", "").startswith(
                ("Binder.", "LostAnswers.", "Replica.bind")
            ):
                die = functools.partial(urllib.request.urlopen, asked)
                work = as_coroutine(watched(work, left, lambda: die().read()))
            return asyncio.Task(work, loop=loop, **options)

        api = ScriptedApi()
        api.url = url
        async with rig.running(api, seen=False) as replica:
            await replica.filter(pod, ["a"])
            asyncio.get_running_loop().set_task_factory(factory)
            await asyncio.create_task(replica.bind(pod, "a"))
            os._exit(0)

    asyncio.run(main())


async def crash_in_bind(api: ScriptedApi, at: int) -> bool:
    """Place pod p and die at the n-th suspension; returns whether the bind got that far."""
    pod = api.put(rig.pod("p", memory=6000))
    process = spawner.Process(target=die_in_bind, args=(api.url, pod, at))
    await asyncio.to_thread(process.start)
    await asyncio.to_thread(process.join)
    assert process.exitcode in (0, CRASHED)
    return process.exitcode == CRASHED


async def check_after_restart(api: ScriptedApi) -> None:
    """Start another process, some time later, where the old one died."""
    later = time.time() + 20
    async with rig.running(api, now=lambda: later) as replica:
        await replica.seen()
        cluster = replica.scheduler.watched.cluster
        assert rebuild.drift(cluster, **_api_state(api)) == []
        pod = api.find("pods", "p")
        assert pod is not None
        bound = pod["spec"].get("nodeName") == "a"
        assert replica.used("a") == [6000 if bound else 0]
        if bound:
            _allocate(api)
        else:
            assert (await replica.filter(pod))["NodeNames"] == ["a"]
            assert await asyncio.wait_for(replica.bind(pod, "a"), rig.PATIENCE_S) == ""
            _allocate(api)
        refused = await replica.filter(api.put(rig.pod("second", memory=6000)))
        assert refused["NodeNames"] is None
        assert (
            await asyncio.wait_for(replica.place(rig.pod("third", memory=1000)), rig.PATIENCE_S)
            == "a"
        )
        await replica.seen()
        assert replica.used("a") == [7000]


def _api_state(api: ScriptedApi) -> dict[str, Any]:
    kinds: dict[str, tuple[str, type[Any]]] = {
        "nodes": ("nodes", objects.Node),
        "pods": ("pods", objects.Pod),
        "quotas": ("resourcequotas", objects.ResourceQuota),
    }
    return {
        key: [codec.decode(codec.encode(o), kind, what=key) for o in api.objects(resource)]
        for key, (resource, kind) in kinds.items()
    }


def _allocate(api: ScriptedApi) -> None:
    """Remove the lock as a plugin would, after it has served the pod."""
    node = api.find("nodes", "a")
    assert node is not None
    node["metadata"]["annotations"].pop("hami.io/mutex.lock", None)
    api.put(node)


@pytest.mark.parametrize("late", [True, False], ids=["late", "lock"])
async def test_a_crash_at_every_await_of_bind_leaves_nothing_behind(late: bool) -> None:
    got_there = True
    at = 0
    while got_there:
        at += 1
        async with ScriptedApi() as api:
            api.put(rig.node("a", late=late))
            got_there = await crash_in_bind(api, at)
            await check_after_restart(api)
    # One request on a late node, two on one with a lock; each suspends at least once.
    assert at > (1 if late else 2)


@pytest.mark.parametrize("lost", [Lost.BEFORE, Lost.AFTER])
@pytest.mark.parametrize("late", [True, False], ids=["late", "lock"])
async def test_a_crash_while_the_result_of_a_binding_is_unknown(lost: Lost, late: bool) -> None:
    in_doubt = 0
    for at in range(2, 10):
        async with ScriptedApi() as api:
            api.put(rig.node("a", late=late))
            fault = api.fault(method="POST", path="/binding", lost=lost)
            # The watch must not answer before the crash.
            api.stream_fault(Kind.DROP, at=1, path="/api/v1/pods", times=None)
            crashed = await crash_in_bind(api, at)
            in_doubt += crashed and fault.hits
            api.faults.clear()
            api.stream_faults.clear()
            await check_after_restart(api)
            if not crashed:
                break
    assert in_doubt, "no crash happened after the answer was lost"
