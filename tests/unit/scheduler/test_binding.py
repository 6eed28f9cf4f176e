"""/filter and /bind: one write per pod, and certainty about it."""

from __future__ import annotations

import asyncio
import json
import pathlib

import pytest

from hami.cluster.pod_info import Hold
from hami.scheduler import assumed_pods
from hami.scheduler.assumed_pods import Stage
from hami.wire import signature
from tests.scripted_api.server import Lost, ScriptedApi
from tests.unit.scheduler import rig


@pytest.fixture
def keys(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "current").write_bytes(b"k" * 32)
    return tmp_path


async def test_a_pod_is_placed_with_one_write_that_carries_the_decision(
    keys: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys, now=lambda: 1_800_000_000.5) as replica:
            assert await replica.place(rig.pod("p", memory=3000)) == "a"
            await replica.seen()
            pod = api.find("pods", "p")
            writes = [r for r in api.requests if r.method != "GET" and "/events" not in r.path]
    assert pod is not None
    assert pod["spec"]["nodeName"] == "a"
    written = pod["metadata"]["annotations"]
    devices = "a-0,NVIDIA,3000,0:;"
    mac = written.pop("hami.io/grant-mac")
    assert written == {
        "hami.io/vgpu-node": "a",
        "hami.io/vgpu-time": "1800000000",
        "hami.io/vgpu-devices-to-allocate": devices,
        "hami.io/vgpu-devices-allocated": devices,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1800000000",
    }
    uid = pod["metadata"]["uid"]
    secret = signature.GrantKeys(b"k" * 32)
    assert signature.verify(secret, mac, uid=uid, node="a", devices=devices)
    assert [r.path for r in writes] == ["/api/v1/namespaces/default/pods/p/binding"]
    sent = json.loads(writes[0].body)["metadata"]
    assert sent["uid"] == uid
    assert "resourceVersion" not in sent


async def test_filter_writes_nothing_and_holds_cards_at_once() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            first = await replica.filter(api.put(rig.pod("p", memory=5000)))
            second = await replica.filter(api.put(rig.pod("q", memory=5000)))
            assert first["NodeNames"] == ["a"]
            assert second["NodeNames"] is None
            assert second["FailedAndUnresolvableNodes"] == {"a": "1/1 CardInsufficientMemory"}
            assert [r for r in api.requests if r.method in ("POST", "PATCH")] == []


async def test_a_pod_filtered_again_has_its_reservation_replaced() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p", memory=5000))
            for _ in range(3):
                assert (await replica.filter(pod))["NodeNames"] == ["a"]
            assert replica.used("a") == [5000]
            assert (await replica.filter(pod, ["unknown"]))["NodeNames"] is None
            assert replica.used("a") == [0]


async def test_a_bind_without_a_reservation_is_fitted_again_on_that_node() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(rig.node("b"))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p"))
            assert await replica.bind(pod, "b") == ""
            big = api.put(rig.pod("big", memory=7500))
            assert "does not fit there now" in await replica.bind(big, "b")
            assert api.find("pods", "big")["spec"].get("nodeName") is None  # type: ignore[index]
            await replica.seen()
            assert replica.used("b") == [1000]


async def test_a_bind_to_another_node_than_reserved_moves_the_reservation() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(rig.node("b"))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p"))
            (chosen,) = (await replica.filter(pod))["NodeNames"]
            other = "b" if chosen == "a" else "a"
            assert await replica.bind(pod, other) == ""
            await replica.seen()
            assert replica.used(chosen) == [0]
            assert replica.used(other) == [1000]


async def test_a_bind_that_is_repeated_succeeds_without_a_second_write() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("p"))
            pod = api.find("pods", "p")
            assert pod is not None
            assert await replica.bind(pod, "a") == ""
            await replica.seen()
            assert await replica.bind(pod, "a") == ""
            assert "is bound to a already" in await replica.bind(pod, "b")
            assert len(api.sent("POST", "/binding")) == 1
            assert "is bound to a already" in (await replica.filter(pod))["Error"]


async def test_a_pod_without_our_resources_is_bound_plainly() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            plain = rig.pod("plain")
            plain["spec"]["containers"] = [{"name": "main"}]
            pod = api.put(plain)
            assert await replica.bind(pod, "a") == ""
            stored = api.find("pods", "plain")
            assert stored is not None
            assert stored["spec"]["nodeName"] == "a"
            assert not stored["metadata"].get("annotations")


async def test_a_namesake_of_a_deleted_pod_is_never_bound_in_its_place() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            old = api.put(rig.pod("p"))
            await replica.filter(old)
            api.remove("pods", "p")
            api.put(rig.pod("p"))
            await replica.seen()
            error = await replica.bind(old, "a")
            assert old["metadata"]["uid"] in error
            assert api.find("pods", "p")["spec"].get("nodeName") is None  # type: ignore[index]
            assert replica.used("a") == [0]
            assert "is deleted or finished" in (await replica.filter(old))["Error"]


async def test_a_binding_that_was_done_but_whose_answer_was_lost_counts() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            api.fault(method="POST", path="/binding", lost=Lost.AFTER)
            assert await replica.place(rig.pod("p", memory=5000)) == "a"
            assert replica.used("a") == [5000]
            assert len(api.sent("POST", "/binding")) == 1


async def test_a_binding_that_was_lost_before_it_was_done_is_given_up_when_that_is_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hami.scheduler.leadership.UNELECTED_WRITE_S", 0.3)
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            api.fault(method="POST", path="/binding", lost=Lost.BEFORE)
            pod = api.put(rig.pod("p", memory=5000))
            await replica.filter(pod)
            error = await replica.bind(pod, "a")
            assert "did not take effect" in error
            assert replica.used("a") == [0]
            await replica.place(rig.pod("q", memory=5000))


async def test_a_binding_that_the_server_carries_out_late_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hami.scheduler.leadership.UNELECTED_WRITE_S", rig.PATIENCE_S)
    monkeypatch.setattr(assumed_pods, "RESULT_PATIENCE_S", rig.PATIENCE_S)
    monkeypatch.setattr(assumed_pods, "ASK_AGAIN_S", 0.02)
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:

            def carry_out_late() -> None:
                if asked.hits == 3:
                    api.store.bind("default", "p", {"target": {"name": "a"}, "metadata": {}})

            api.fault(method="POST", path="/binding", lost=Lost.BEFORE)
            asked = api.fault(method="GET", path="/pods/p", times=3, on_hit=carry_out_late)
            api.fault(path="/api/v1/pods", hang=True, times=None)
            api.close_watches()
            assert await replica.place(rig.pod("p", memory=5000)) == "a"
            assert replica.used("a") == [5000]


async def test_while_the_result_of_a_binding_is_unknown_its_cards_stay_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assumed_pods, "RESULT_PATIENCE_S", 0.1)
    monkeypatch.setattr(assumed_pods, "ASK_AGAIN_S", 0.02)
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, filter_budget=0.1) as replica:
            api.fault(method="POST", path="/binding", lost=Lost.AFTER)
            blind = api.fault(method="GET", path="/pods/p", status=500, times=None)
            deaf = api.fault(path="/api/v1/pods", hang=True, times=None)
            api.close_watches()
            pod = api.put(rig.pod("p", memory=5000))
            await replica.filter(pod)
            assert "not known whether" in await replica.bind(pod, "a")
            assumed = replica.scheduler.assumed_pods.get(pod["metadata"]["uid"])
            assert assumed is not None
            assert assumed.stage is Stage.UNKNOWN
            refused = await replica.filter(api.put(rig.pod("q", memory=5000)))
            assert refused["NodeNames"] is None
            assert "still unknown" in (await replica.filter(pod))["Error"]
            assert "still unknown" in await replica.bind(pod, "a")
            blind.times = 0
            await rig.eventually(lambda: assumed.stage is Stage.OVER)
            row = replica.scheduler.watched.cluster.pods[pod["metadata"]["uid"]]
            assert row.hold is Hold.BOUND
            deaf.times = 0


@pytest.mark.parametrize("status", [400, 403, 422])
async def test_a_refused_binding_frees_its_cards_and_says_why(status: int) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            api.fault(method="POST", path="/binding", status=status, message="no such thing")
            pod = api.put(rig.pod("p", memory=5000))
            await replica.filter(pod)
            assert "no such thing" in await replica.bind(pod, "a")
            assert replica.used("a") == [0]


async def test_a_busy_server_is_asked_again() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            api.fault(method="POST", path="/binding", status=429, retry_after=0, times=2)
            await replica.place(rig.pod("p"))
            assert len(api.sent("POST", "/binding")) == 3


async def test_a_conflict_with_our_own_earlier_binding_is_a_success() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p"))
            await replica.filter(pod)
            deaf = api.fault(path="/api/v1/pods", hang=True, times=None)
            api.close_watches()
            await rig.eventually(lambda: deaf.hits > 0)
            api.store.bind("default", "p", {"target": {"name": "a"}, "metadata": {}})
            assert await replica.bind(pod, "a") == ""


async def test_a_caller_that_leaves_does_not_stop_a_binding_on_its_way() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            gate = asyncio.Event()
            sent = asyncio.Event()
            api.fault(method="POST", path="/binding", gate=gate, on_hit=sent.set)
            pod = api.put(rig.pod("p"))
            await replica.filter(pod)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await sent.wait()
            bind.cancel()
            await asyncio.gather(bind, return_exceptions=True)
            gate.set()
            await replica.scheduler.binder.drain()
            await replica.seen()
            assert replica.used("a") == [1000]
            assert replica.scheduler.assumed_pods.get(pod["metadata"]["uid"]) is None


async def test_an_accepted_binding_that_no_watch_shows_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assumed_pods, "ACCEPTED_FOR_S", 0.0)
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            api.fault(path="/api/v1/pods", hang=True, times=None)
            api.close_watches()
            await replica.place(rig.pod("p"))
            (assumed,) = list(replica.scheduler.assumed_pods)
            assert assumed.stage is Stage.ACCEPTED
            replica.scheduler.maintenance.run_round()
            await rig.eventually(lambda: assumed.stage is Stage.OVER)
            assert replica.scheduler.watched.cluster.pods[assumed.uid].hold is Hold.BOUND
