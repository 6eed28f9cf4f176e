"""Many binds at once on an API server that takes its time for each Binding."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.scheduler import binding
from hami.serving import watchdog
from tests import virtual_time
from tests.scripted_api.faults import Lost
from tests.scripted_api.server import Recorded, ScriptedApi
from tests.unit.scheduler import rig

#: `make soak` has 1,000 pods and 100 connections, as in the product.
PODS = int(os.environ.get("HAMI_BURST_PODS", "200"))
CONNECTIONS = PODS // 10
NODES = 25
WALL = 1_800_000_000.0
SIBLING = "sched-1_0a1b2c3d-0000-4000-8000-000000000000"


@pytest.fixture(autouse=True)
def _slow_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watchdog run seldom: each time costs as much real time as virtual time."""
    monkeypatch.setattr(watchdog, "INTERVAL_S", 1.0)


class SlowApi(ScriptedApi):
    """An API server that works on each Binding for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(bookmark_interval=0.5)
        self.seconds = seconds
        self.at_once = self.most_at_once = 0

    async def _handle(self, request: Any) -> Any:
        if not request.path.endswith("/binding"):
            return await super()._handle(request)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
            return await super()._handle(request)
        finally:
            self.at_once -= 1


def wall() -> float:
    return WALL + asyncio.get_running_loop().time()


async def renew(api: ScriptedApi) -> None:
    """Renew the lease as the kube-scheduler beside us does."""
    while True:
        stamp = dt.datetime.fromtimestamp(wall(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": SIBLING, "renewTime": stamp, "leaseDurationSeconds": 15}
        meta = {"name": "kube-scheduler", "namespace": "kube-system"}
        api.put({"kind": "Lease", "metadata": meta, "spec": spec})
        await asyncio.sleep(2)


@contextlib.asynccontextmanager
async def replica(
    api: ScriptedApi, *, own_lease: bool, most: int = CONNECTIONS
) -> AsyncIterator[rig.Replica]:
    loop = asyncio.get_running_loop()
    renewing = None if own_lease else asyncio.create_task(renew(api))
    try:
        async with rig.running(
            api,
            clock=loop.time,
            now=wall,
            most=most,
            leader_elect=True,
            leader_elect_own_lease=own_lease,
            leader_elect_resource_name="kube-scheduler",
            leader_elect_resource_namespace="kube-system",
        ) as running:
            yield running
    finally:
        if renewing is not None:
            renewing.cancel()


async def bind_all(api: ScriptedApi, one: rig.Replica, pods: int = PODS) -> list[str]:
    """Place pods as kube-scheduler does: filters one by one, binds all at once; return errors."""
    names = [node["metadata"]["name"] for node in api.objects("nodes")]
    binds = []
    for number in range(pods):
        pod = api.put(rig.pod(f"p{number}", memory=100))
        answer = await one.filter(pod, names)
        (node,) = answer["NodeNames"]
        binds.append(asyncio.create_task(one.bind(pod, node)))
    return [error for error in await asyncio.gather(*binds) if error]


@pytest.mark.parametrize(
    ("seconds", "own_lease"),
    [(0.0, False), (0.02, False), (0.5, False), (1.0, False), (0.5, True), (1.0, True)],
    ids=["0 s", "20 ms", "0.5 s", "1 s", "0.5 s, own lease", "1 s, own lease"],
)
def test_a_burst_is_bound_at_the_speed_of_the_api_server_and_the_lease_is_kept(
    seconds: float, own_lease: bool
) -> None:
    async def burst() -> None:
        async with SlowApi(seconds) as api:
            for number in range(NODES):
                api.put(rig.node(f"n{number:02}", cards=8))
            async with replica(api, own_lease=own_lease) as one:
                loop = asyncio.get_running_loop()
                term, began = one.scheduler.leadership.term, loop.time()
                errors = await bind_all(api, one)
                took = loop.time() - began
                assert errors == []
                assert all(pod["spec"].get("nodeName") for pod in api.objects("pods"))
                assert one.scheduler.leadership.leading
                assert one.scheduler.leadership.term == term
                assert took <= 1.2 * seconds * PODS / CONNECTIONS
                assert api.most_at_once <= CONNECTIONS
                if seconds:
                    assert api.most_at_once == CONNECTIONS

    virtual_time.run(burst())


def test_time_in_the_queue_counts_against_no_permit() -> None:
    async def burst() -> None:
        async with SlowApi(1.5) as api:
            api.put(rig.node("a", cards=8))
            async with replica(api, own_lease=False, most=2) as one:
                assert await bind_all(api, one, 20) == []
                assert len(api.sent("POST", "/binding")) == 20

    virtual_time.run(burst())


def test_a_binding_that_found_no_connection_is_reported_as_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hami.scheduler.binding.QUEUE_S", 3.0)

    async def burst() -> None:
        async with SlowApi(4.0) as api:
            for number in range(NODES):
                api.put(rig.node(f"n{number:02}", cards=8))
            async with replica(api, own_lease=False) as one:
                pods = [api.put(rig.pod(f"p{n}", memory=100)) for n in range(CONNECTIONS + 1)]
                found = [(await one.filter(pod))["NodeNames"][0] for pod in pods]
                binds = [
                    asyncio.create_task(one.bind(p, n)) for p, n in zip(pods, found, strict=True)
                ]
                *others, last = await asyncio.gather(*binds)
                assert others == [""] * CONNECTIONS
                assert last.startswith("the Binding was not sent: ")
                assert "no connection became free within 3 s" in last
                assert len(api.sent("POST", "/binding")) == CONNECTIONS
                assert sum(sum(one.used(n)) for n in sorted(set(found))) == 100 * CONNECTIONS

    virtual_time.run(burst())


@pytest.mark.parametrize(
    ("cards", "fault", "reported"),
    [
        (True, {"status": 422}, "the API server refused the Binding: 422"),
        (False, {"status": 422}, "the API server refused the Binding: 422"),
        (False, {"lost": Lost.BEFORE}, "it is not known whether the Binding took effect: "),
    ],
    ids=["refused", "refused, without cards", "lost, without cards"],
)
def test_a_binding_that_fails_is_reported_as_what_happened(
    cards: bool, fault: dict[str, Any], reported: str
) -> None:
    async def refused() -> None:
        async with ScriptedApi() as api:
            api.put(rig.node("a"))
            async with replica(api, own_lease=False) as one:
                pod = rig.pod("p")
                if not cards:
                    pod["spec"]["containers"] = [{"name": "main"}]
                pod = api.put(pod)
                await one.filter(pod, ["a"])
                api.fault(method="POST", path="/binding", **fault)
                assert (await one.bind(pod, "a")).startswith(reported)

    virtual_time.run(refused())


def test_events_and_renewals_go_on_while_every_connection_of_requests_is_taken() -> None:
    async def blocked() -> None:
        async with SlowApi(4.0) as api:
            for number in range(NODES):
                api.put(rig.node(f"n{number:02}", cards=8))
            async with replica(api, own_lease=True) as one:
                term = one.scheduler.leadership.term
                binding = asyncio.create_task(bind_all(api, one, 2 * CONNECTIONS))
                while api.at_once < CONNECTIONS:
                    await asyncio.sleep(0.01)
                seen = len(api.requests)
                one.scheduler.recorder.record(
                    namespace="default", name="p", uid="u", reason="Test", message="now"
                )
                await asyncio.sleep(3.5)
                assert api.at_once == CONNECTIONS
                arrived = [request_of(each) for each in api.requests[seen:]]
                assert ("POST", "events") in arrived
                assert ("PUT", "leases") in arrived
                assert await binding == []
                assert one.scheduler.leadership.term == term

    virtual_time.run(blocked())


def request_of(request: Recorded) -> tuple[str, str]:
    known = [part for part in request.path.split("/") if part in {"events", "leases", "pods"}]
    return request.method, known[0] if known else request.path


def test_a_busy_api_server_that_names_an_absurd_time_is_asked_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binding, "BUSY_AT_MOST_S", 0.2)

    async def busy() -> None:
        async with ScriptedApi() as api:
            api.put(rig.node("a"))
            async with replica(api, own_lease=False) as one:
                api.fault(method="POST", path="/binding", status=429, retry_after=86_400)
                pod = api.put(rig.pod("p"))
                await one.filter(pod)
                async with asyncio.timeout(1):
                    assert await one.bind(pod, "a") == ""

    virtual_time.run(busy())


def test_a_caller_that_leaves_before_its_plain_binding_is_sent_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def leave() -> None:
        async with SlowApi(0.5) as api:
            api.put(rig.node("a"))
            async with replica(api, own_lease=False) as one:
                pods = [rig.pod(f"p{number}") for number in range(CONNECTIONS + 1)]
                for pod in pods:
                    pod["spec"]["containers"] = [{"name": "main"}]
                binds = [asyncio.create_task(one.bind(api.put(pod), "a")) for pod in pods]
                await asyncio.sleep(0.3)
                assert api.at_once == CONNECTIONS
                binds[-1].cancel()
                await asyncio.wait(binds)
                await one.scheduler.binder.drain()
                assert len(api.sent("POST", "/binding")) == CONNECTIONS

    virtual_time.run(leave())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
