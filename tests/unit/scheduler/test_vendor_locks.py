"""Locks of several vendors: whose they are, and pods that several plugins serve."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig

SHARED = "hami.io/mutex.lock"
DSMLU = "cambricon.com/dsmlu.lock"
PHASE = "hami.io/bind-phase"
LISTS = {
    "hygon.com/dcunum": "hami.io/dcu-devices-to-allocate",
    "birentech.com/gpu": "hami.io/Biren-devices-to-allocate",
}
HYGON, BIREN, MLU, GCU = (
    "hygon.com/dcunum",
    "birentech.com/gpu",
    "cambricon.com/vmlu",
    "enflame.com/gcu",
)


def node(name: str = "a") -> rig.Object:
    """Make a node of five vendors."""
    made = rig.node(name, late=False)
    made["metadata"]["annotations"] |= {
        "hami.io/node-dcu-register": f"{name}-d,9,32768,100,DCU-Z100,0,true:",
        "hami.io/node-biren-register": f'[{{"id":"{name}-b","count":9,"devmem":1,"health":true}}]',
    }
    amounts = {
        HYGON: "9",
        BIREN: "9",
        GCU: "4",
        "cambricon.com/mlu.smlu.vcore": "100",
        "cambricon.com/mlu.smlu.vmemory": "100",
    }
    made["status"]["allocatable"] |= amounts
    made["status"]["capacity"] = amounts
    return made


def pod(name: str, *resources: str, **limits: int) -> rig.Object:
    made = rig.pod(name)
    asked: dict[str, Any] = dict.fromkeys(resources, 1) | limits
    if HYGON in asked:
        asked |= {"hygon.com/dcumem": 1, "hygon.com/dcucores": 1}
    if MLU in asked:
        asked |= {"cambricon.com/mlu.smlu.vmemory": 1, "cambricon.com/mlu.smlu.vcore": 1}
    made["spec"]["containers"] = [{"name": "main", "resources": {"limits": asked}}]
    return made


def on_node(api: ScriptedApi, key: str) -> str:
    found = api.find("nodes", "a")
    assert found is not None
    return str(found["metadata"]["annotations"].get(key) or "")


def serve(api: ScriptedApi, resource: str) -> str:
    """Do what a plugin does: find the pod by the lock, empty its list, mark it, unlock."""
    _, namespace, name = on_node(api, SHARED).split(",")
    found = api.find("pods", name, namespace)
    assert found is not None
    annotations = found["metadata"]["annotations"]
    assert "," in annotations[LISTS[resource]], "the lock names a pod without cards of this vendor"
    annotations[LISTS[resource]] = ";;"
    annotations[PHASE] = "success"
    api.put(found)
    unlock(api, SHARED)
    return name


def unlock(api: ScriptedApi, key: str) -> None:
    found = api.find("nodes", "a")
    assert found is not None
    del found["metadata"]["annotations"][key]
    api.put(found)


async def locked(api: ScriptedApi, key: str, by: str) -> None:
    """Wait until a pod has the lock; no other may have it before."""
    async with asyncio.timeout(rig.PATIENCE_S):
        while not (held := on_node(api, key)):
            await asyncio.sleep(0)
    assert held.endswith(by)


@pytest.mark.parametrize(
    "order", [(HYGON, BIREN), (BIREN, HYGON)], ids=["DCU first", "Biren first"]
)
async def test_after_the_first_plugin_unlocks_the_second_finds_the_same_pod(
    order: tuple[str, str],
) -> None:
    first, second = order
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            await replica.place(pod("mixed", HYGON, BIREN))
            other = api.put(pod("other", HYGON))
            assert (await replica.filter(other))["NodeNames"] == ["a"]
            waiting = asyncio.create_task(replica.bind(other, "a"))

            assert serve(api, first) == "mixed"
            await locked(api, SHARED, ",default,mixed")
            found = api.find("pods", "mixed", "default")
            assert found is not None
            assert not waiting.done()
            assert serve(api, second) == "mixed"

            assert await asyncio.wait_for(waiting, rig.PATIENCE_S) == ""
            assert on_node(api, SHARED).endswith(",default,other")


async def test_a_half_served_pod_is_marked_as_waiting_again() -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            await replica.place(pod("mixed", HYGON, BIREN))
            serve(api, HYGON)
            async with asyncio.timeout(rig.PATIENCE_S):
                while True:
                    found = api.find("pods", "mixed", "default")
                    assert found is not None
                    if found["metadata"]["annotations"][PHASE] == "allocating":
                        break
                    await asyncio.sleep(0)


async def test_a_half_served_pod_that_ends_lets_the_next_one_in() -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            await replica.place(pod("mixed", HYGON, BIREN))
            other = api.put(pod("other", HYGON))
            assert (await replica.filter(other))["NodeNames"] == ["a"]
            waiting = asyncio.create_task(replica.bind(other, "a"))
            serve(api, HYGON)
            await locked(api, SHARED, ",default,mixed")
            found = api.find("pods", "mixed", "default")
            assert found is not None
            found["status"]["phase"] = "Failed"
            api.put(found)

            assert await asyncio.wait_for(waiting, rig.PATIENCE_S) == ""
            assert on_node(api, SHARED).endswith(",default,other")


async def test_a_vendor_with_a_lock_of_its_own_takes_only_that_one() -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            await replica.place(pod("m", MLU))
            assert on_node(api, SHARED) == ""
            assert on_node(api, DSMLU).count(",") == 0
            assert on_node(api, DSMLU).endswith("Z")

            await replica.place(pod("d", HYGON))
            assert on_node(api, SHARED).endswith(",default,d")

            again = api.put(pod("m2", MLU))
            assert (await replica.filter(again))["NodeNames"] == ["a"]
            waiting = asyncio.create_task(replica.bind(again, "a"))
            await replica.seen()
            assert not waiting.done()
            unlock(api, DSMLU)
            assert await asyncio.wait_for(waiting, rig.PATIENCE_S) == ""
            assert on_node(api, "hami.io/dsmlu-lock-owner").startswith(again["metadata"]["uid"])


async def test_a_lock_without_a_pods_name_is_stale_once_its_pod_is_deleted() -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            await replica.place(pod("m", MLU))
            api.remove("pods", "m")
            await replica.seen()

            await replica.place(pod("m2", MLU))
            assert on_node(api, DSMLU)


async def test_a_pod_with_both_locks_gives_both_back_if_its_binding_is_refused() -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            made = api.put(pod("both", MLU, HYGON))
            assert (await replica.filter(made))["NodeNames"] == ["a"]
            api.fault(method="POST", path="/binding", status=403)
            assert await replica.bind(made, "a")
            assert (on_node(api, SHARED), on_node(api, DSMLU)) == ("", "")


async def test_a_vendor_without_a_lock_takes_none() -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            await replica.place(pod("g", GCU))
            assert (on_node(api, SHARED), on_node(api, DSMLU)) == ("", "")
