"""Changes of a pod while its bind waits: the bind ends with a reason."""

from __future__ import annotations

import asyncio

from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig

LOCK = "hami.io/mutex.lock"


def unlock(api: ScriptedApi) -> None:
    node = api.find("nodes", "a")
    assert node is not None
    del node["metadata"]["annotations"][LOCK]
    api.put(node)


async def in_line(replica: rig.Replica, name: str) -> tuple[rig.Object, asyncio.Task[str]]:
    """Let a pod's bind wait for the lock of node a."""
    pod = replica.api.put(rig.pod(name))
    assert (await replica.filter(pod, ["a"]))["NodeNames"] == ["a"]
    return pod, asyncio.create_task(replica.bind(pod, "a"))


async def test_a_pod_that_is_deleted_while_its_bind_waits() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("first"))
            _, bind = await in_line(replica, "waiting")
            _, next_bind = await in_line(replica, "next")
            await asyncio.sleep(0)
            api.remove("pods", "waiting")
            await replica.seen()
            unlock(api)
            error = await asyncio.wait_for(bind, rig.PATIENCE_S)
            assert "pod default/waiting was deleted" in error
            assert await asyncio.wait_for(next_bind, rig.PATIENCE_S) == ""
            assert len(api.sent("POST", "/waiting/binding")) == 0
            await replica.seen()
            assert replica.used("a") == [2000]


async def test_a_pod_that_another_scheduler_binds_while_its_bind_waits() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        api.put(rig.node("b"))
        async with rig.running(api) as replica:
            await replica.filter(first := api.put(rig.pod("first")), ["a"])
            assert await replica.bind(first, "a") == ""
            pod, bind = await in_line(replica, "waiting")
            await asyncio.sleep(0)
            pod["spec"]["nodeName"] = "b"
            api.put(pod)
            await replica.seen()
            unlock(api)
            error = await asyncio.wait_for(bind, rig.PATIENCE_S)
            assert "pod default/waiting was bound to b" in error
            assert len(api.sent("POST", "/waiting/binding")) == 0
            node = api.find("nodes", "a")
            assert node is not None
            assert LOCK not in node["metadata"]["annotations"]


async def test_a_pod_that_is_deleted_just_before_its_binding_is_made() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p"))
            await replica.seen()
            await replica.filter(pod)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            # The bind has begun, the task that sends has not.
            while not replica.scheduler.binder._under_way:
                await asyncio.sleep(0)
            replica.scheduler.watched.pods.offer_missing(pod["metadata"]["uid"])
            assert "pod default/p" in await asyncio.wait_for(bind, rig.PATIENCE_S)
            assert api.sent("POST", "/binding") == []
            assert replica.used("a") == [0]
