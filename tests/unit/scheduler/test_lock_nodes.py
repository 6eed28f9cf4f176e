"""Nodes that need HAMi's lock: binds queue, and go on when the lock is released."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
import time

import pytest

from hami.scheduler import node_lock
from tests.loop_time import LoopTime
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig

LOCK = "hami.io/mutex.lock"
OWNER = "hami.io/lock-owner"
#: When the scripted API server says that every object was created.
BORN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()


def lock_of(api: ScriptedApi, node: str = "a") -> str:
    found = api.find("nodes", node)
    assert found is not None
    return str(found["metadata"]["annotations"].get(LOCK) or "")


def set_lock(api: ScriptedApi, value: str | None, node: str = "a") -> None:
    found = api.find("nodes", node)
    assert found is not None
    found["metadata"]["annotations"].pop(LOCK, None)
    if value is not None:
        found["metadata"]["annotations"][LOCK] = value
    api.put(found)


def allocate(api: ScriptedApi) -> str:
    """Do what a device plugin does: serve the pod that the lock names, and remove the lock."""
    _, namespace, name = lock_of(api).split(",")
    pod = api.find("pods", name, namespace)
    assert pod is not None
    assert pod["spec"]["nodeName"] == "a"
    pod["metadata"]["annotations"]["hami.io/bind-phase"] = "success"
    api.put(pod)
    set_lock(api, None)
    return name


async def test_a_bind_takes_the_lock_before_the_binding_and_leaves_it_to_the_plugin() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("p"))
            assert lock_of(api).endswith(",default,p")
            writes = [
                r
                for r in api.requests
                if r.method in ("POST", "PATCH") and not r.path.endswith("/events")
            ]
            assert [r.path.rsplit("/", 1)[1] for r in writes] == ["a", "binding"]
            assert b'"resourceVersion"' in writes[0].body


async def test_binds_to_one_node_wait_in_line_and_all_succeed_in_order() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=4, late=False))
        async with rig.running(api) as replica:
            pods = [api.put(rig.pod(f"p{number}")) for number in range(8)]
            binds = []
            for pod in pods:
                assert (await replica.filter(pod))["NodeNames"] == ["a"]
                binds.append(asyncio.create_task(replica.bind(pod, "a")))
                await asyncio.sleep(0)
            served = []
            for _ in pods:
                await rig.eventually(lambda: bool(lock_of(api)) and _bound(api, lock_of(api)))
                served.append(allocate(api))
            assert await asyncio.gather(*binds) == [""] * 8
            assert served == [f"p{number}" for number in range(8)]


def _bound(api: ScriptedApi, lock: str) -> bool:
    pod = api.find("pods", lock.split(",")[2])
    return pod is not None and bool(pod["spec"].get("nodeName"))


async def test_a_caller_that_leaves_the_line_is_never_bound() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("first"))
            waiting = api.put(rig.pod("waiting"))
            await replica.filter(waiting)
            bind = asyncio.create_task(replica.bind(waiting, "a"))
            last = api.put(rig.pod("last"))
            await replica.filter(last)
            bind_last = asyncio.create_task(replica.bind(last, "a"))
            await rig.eventually(lambda: in_line(replica) == 2)
            bind.cancel()
            await asyncio.gather(bind, return_exceptions=True)
            await rig.eventually(lambda: in_line(replica) == 1)
            allocate(api)
            assert await asyncio.wait_for(bind_last, rig.PATIENCE_S) == ""
            stored = api.find("pods", "waiting")
            assert stored is not None
            assert stored["spec"].get("nodeName") is None
            assert lock_of(api).endswith(",default,last")


def in_line(replica: rig.Replica) -> int:
    """Return how many binds are in the queues of all nodes."""
    return len(replica.scheduler.binder._queue)


async def test_a_refused_binding_gives_the_lock_back() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        async with rig.running(api) as replica:
            api.fault(method="POST", path="/binding", status=403)
            pod = api.put(rig.pod("p"))
            await replica.filter(pod)
            assert await replica.bind(pod, "a")
            assert lock_of(api) == ""


@pytest.mark.parametrize(
    "value", ["2020-01-01T00:00:00Z,default,gone", "2020-01-01T00:00:00Z,default,elsewhere"]
)
async def test_a_lock_without_a_living_owner_is_removed(value: str) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=1, late=False, **{LOCK: value}))
        elsewhere = rig.pod("elsewhere", creationTimestamp="2019-12-31T00:00:00Z")
        elsewhere["spec"]["nodeName"] = "b"
        api.put(elsewhere)
        async with rig.running(api) as replica:
            await replica.place(rig.pod("p"))
            assert lock_of(api).endswith(",default,p")


@pytest.mark.parametrize(
    ("value", "held_for", "over"),
    [
        ("2020-01-01T00:00:00Z", 290, 11),
        ("2020-01-01T00:00:00Z,default,unbound", 10, 6),
    ],
)
async def test_a_lock_that_proves_nothing_ends_after_a_time_that_we_have_seen_it(
    value: str, held_for: float, over: float
) -> None:
    time = LoopTime()
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=1, late=False, **{LOCK: value}))
        api.put(rig.pod("unbound", creationTimestamp="2019-12-31T00:00:00Z"))
        async with rig.running(api, clock=time) as replica:
            pod = api.put(rig.pod("p"))
            await replica.filter(pod)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await rig.eventually(lambda: in_line(replica) == 1)
            await time.forward(held_for)
            assert lock_of(api) == value
            await time.forward(over)
            assert await asyncio.wait_for(bind, rig.PATIENCE_S) == ""
            assert lock_of(api).endswith(",default,p")


async def test_a_clock_that_is_behind_takes_no_lock_from_a_living_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_lock, "READ_OWNER_S", 0.02)
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        async with rig.running(api, now=lambda: BORN - 5) as replica:
            await replica.place(rig.pod("first"))
            value = lock_of(api)
            pod = api.put(rig.pod("p"))
            await replica.filter(pod)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await looked_at(api, "first", 3)
            assert lock_of(api) == value
            assert not bind.done()
            assert allocate(api) == "first"
            assert await asyncio.wait_for(bind, rig.PATIENCE_S) == ""


async def test_the_owners_uid_comes_and_goes_with_the_lock_in_one_patch() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        async with rig.running(api) as replica:
            api.fault(method="POST", path="/binding", status=403)
            pod = api.put(rig.pod("p"))
            await replica.filter(pod)
            assert await replica.bind(pod, "a")
            taken, given_back = (
                json.loads(sent.body)["metadata"]["annotations"]
                for sent in api.sent("PATCH", "/nodes/a")
            )
            time, namespace, name = taken[LOCK].split(",")
            assert (namespace, name) == ("default", "p")
            assert re.fullmatch(r"[0-9-]{10}T[0-9:]{8}Z", time)
            assert taken[OWNER] == f"{pod['metadata']['uid']},{taken[LOCK]}"
            assert given_back == {LOCK: None, OWNER: None}


async def test_a_lock_of_a_deleted_pod_is_removed_although_another_has_its_name_at_once() -> None:
    async with ScriptedApi() as api:
        value = time.strftime("%Y-%m-%dT%H:%M:%SZ,default,x", time.gmtime())
        api.put(
            rig.node("a", cards=1, late=False, **{LOCK: value, OWNER: f"uid-of-the-first,{value}"})
        )
        second = api.put(rig.pod("x"))
        async with rig.running(api) as replica:
            await replica.filter(second)
            assert await replica.bind(second, "a") == ""
            assert uid_of_owner(api) == second["metadata"]["uid"]


async def test_a_lock_of_another_scheduler_is_not_judged_by_an_owner_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_lock, "READ_OWNER_S", 0.02)
    async with ScriptedApi() as api:
        value = "2020-01-01T00:00:00Z,default,owner"
        left = "2019-01-01T00:00:00Z,default,owner"
        api.put(
            rig.node("a", cards=1, late=False, **{LOCK: value, OWNER: f"uid-of-the-first,{left}"})
        )
        owner = rig.pod("owner", annotations={"hami.io/bind-phase": "allocating"})
        owner["spec"]["nodeName"] = "a"
        api.put(owner)
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p"))
            await replica.filter(pod)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await looked_at(api, "owner", 3)
            assert lock_of(api) == value
            assert not bind.done()
            allocate(api)
            assert await asyncio.wait_for(bind, rig.PATIENCE_S) == ""


def uid_of_owner(api: ScriptedApi) -> str:
    found = api.find("nodes", "a")
    assert found is not None
    uid, _, lock = str(found["metadata"]["annotations"][OWNER]).partition(",")
    assert lock == lock_of(api)
    return uid


async def test_an_old_lock_whose_owner_still_waits_is_not_stolen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_lock, "READ_OWNER_S", 0.02)
    async with ScriptedApi() as api:
        value = time.strftime("%Y-%m-%dT%H:%M:%SZ,default,owner", time.gmtime())
        api.put(rig.node("a", cards=1, late=False, **{LOCK: value}))
        owner = rig.pod("owner", annotations={"hami.io/bind-phase": "allocating"})
        owner["spec"]["nodeName"] = "a"
        api.put(owner)
        async with rig.running(api, now=lambda: time.time() + 1000) as replica:
            pod = api.put(rig.pod("p"))
            await replica.filter(pod)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await looked_at(api, "owner", 5)
            assert lock_of(api) == value
            assert not bind.done()
            api.remove("pods", "owner")
            assert await asyncio.wait_for(bind, rig.PATIENCE_S) == ""


async def looked_at(api: ScriptedApi, owner: str, times: int) -> None:
    """Wait until a bind has asked so often for the lock's owner: each time it found it held."""
    await rig.eventually(lambda: len(api.sent("GET", f"/pods/{owner}")) >= times)


async def test_two_writers_never_both_have_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_lock, "READ_OWNER_S", 0.02)
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p"))
            other = api.put(rig.pod("other"))
            await replica.filter(pod)
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

            def another_writer_is_faster() -> None:
                set_lock(api, f"{now},default,{other['metadata']['name']}")

            api.fault(method="PATCH", path="/nodes/a", on_hit=another_writer_is_faster)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await looked_at(api, "other", 3)
            assert lock_of(api).endswith(",default,other")
            assert not bind.done()
            api.remove("pods", "other")
            assert await asyncio.wait_for(bind, rig.PATIENCE_S) == ""
            assert lock_of(api).endswith(",default,p")


@pytest.mark.parametrize("patience", [0.0, 20.0])
async def test_a_member_of_a_pod_group_waits_only_as_long_as_configured(patience: float) -> None:
    time = LoopTime()
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        async with rig.running(api, clock=time, node_lock_retry_timeout=patience) as replica:
            if patience:
                await replica.place(rig.pod("first"))
            member = rig.pod("member", labels={"scheduling.x-k8s.io/pod-group": "gang"})
            pod = api.put(member)
            await replica.filter(pod)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            if patience:
                await looked_at(api, "first", 1)
                await time.forward(patience - 10)
                await looked_at(api, "first", 2)
                assert not bind.done()
                await time.forward(10)
            error = await asyncio.wait_for(bind, rig.PATIENCE_S)
            assert "node lock contention" in error
            assert "--node-lock-retry-timeout" in error


async def test_no_lock_is_taken_on_a_node_that_binds_late() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=True))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("p"))
            assert lock_of(api) == ""
            assert api.sent("PATCH", "/nodes") == []
