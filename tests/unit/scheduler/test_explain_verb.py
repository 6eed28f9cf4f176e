"""/explain: where a pod is, or why it is unschedulable at this moment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami.wire import explanation_note
from tests.builders import GPU
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times


async def explain(replica: rig.Replica, **query: str) -> tuple[int, dict[str, Any]]:
    response = await replica.explain(**query)
    assert isinstance(response.body, bytes)
    return response.status, json.loads(response.body)


async def test_an_unschedulable_pod_is_explained_by_its_last_refusal_and_by_now(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            pod = api.put(rig.pod("p", memory=9000))
            for _ in range(3):
                await replica.filter(pod)
            api.put(rig.node("b"))
            await replica.seen()
            by_name = await explain(replica, pod="default/p")
            by_uid = await explain(replica, uid=pod["metadata"]["uid"])
            assert by_name == by_uid
            status, answer = by_name
            assert replica.used("a") == [0]
    assert status == 200
    assert (answer["state"], answer["refusals"]) == ("waiting", 3)
    last = explanation_note.decode(json.dumps(answer["last"]))
    assert last.reasons["CardInsufficientMemory"].nodes == 1
    assert answer["now"]["pod"] == "default/p"
    # kube-scheduler has not offered the new node.
    assert answer["now"]["reasons"]["CardInsufficientMemory"]["names"] == ["a"]
    assert answer["now"]["nearMisses"][0]["memory_short"] == 1000


async def test_an_unschedulable_pod_that_would_fit_now_is_explained_with_the_node(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            blocker = api.put(rig.pod("blocker", memory=8000))
            await replica.filter(blocker)
            await replica.filter(api.put(rig.pod("p")))
            api.remove("pods", "blocker")
            await replica.seen()
            _, answer = await explain(replica, pod="default/p")
            assert answer["state"] == "waiting"
            assert answer["now"]["winner"] == "a"
            assert replica.used("a") == [0]
            assert len(replica.scheduler.assumed_pods) == 0


async def test_a_placed_pod_is_explained_with_its_cards_at_every_stage() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p", memory=3000))
            await replica.filter(pod)
            status, held = await explain(replica, pod="default/p")
            assert status == 200
            assert held == {
                "state": "held",
                "pod": "default/p",
                "uid": pod["metadata"]["uid"],
                "node": "a",
                "devices": {
                    "NVIDIA": [[{"uuid": "a-0", "type": "NVIDIA", "memory": 3000, "cores": 0}]]
                },
            }
            await replica.bind(pod, "a")
            await replica.seen()
            _, bound = await explain(replica, uid=pod["metadata"]["uid"])
            assert bound == held | {"state": "bound"}


async def test_a_pod_is_found_by_name_without_a_look_at_every_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred thousand pods would block the event loop."""

    class Unlooped(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("all pods were looked at")

        items = keys = values = __iter__

    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("bound"))
            await replica.filter(api.put(rig.pod("held")))
            await replica.seen()
            cluster = replica.scheduler.watched.cluster
            monkeypatch.setattr(cluster, "_pods", Unlooped(cluster.pods))
            for name in ("bound", "held"):
                _, answer = await explain(replica, pod=f"default/{name}")
                assert (answer["state"], answer["pod"]) == (name, f"default/{name}")


async def test_a_pod_that_was_not_filtered_yet_is_decided_without_holding_cards() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            api.put(rig.pod("p"))
            status, answer = await explain(replica, pod="default/p")
            assert status == 200
            assert answer["state"] == "not asked about yet"
            assert answer["now"]["winner"] == "a"
            assert replica.used("a") == [0]


async def test_of_a_pod_that_no_filter_has_seen_kube_schedulers_words_come_first() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            pod = rig.pod("p")
            message = "0/1 nodes are available: 1 Insufficient cpu."
            unscheduled = {"type": "PodScheduled", "status": "False", "message": message}
            pod["status"] |= {"conditions": [unscheduled], "nominatedNodeName": "a"}
            pod["spec"]["schedulingGates"] = [{"name": "example.com/gate"}]
            api.put(pod)
            _, answer = await explain(replica, pod="default/p")
    assert list(answer) == ["state", "kubeScheduler", "now"]
    assert answer["kubeScheduler"] == {
        "message": message,
        "gates": ["example.com/gate"],
        "nominatedNodeName": "a",
    }


async def test_a_pod_without_our_resources_is_not_ours() -> None:
    async with ScriptedApi() as api, rig.running(api) as replica:
        plain = rig.pod("plain")
        plain["spec"]["containers"] = [{"name": "main"}]
        pod = api.put(plain)
        assert await explain(replica, pod="default/plain") == (
            200,
            {"state": "not ours", "pod": "default/plain", "uid": pod["metadata"]["uid"]},
        )


async def test_a_namesake_of_the_pod_asked_for_is_not_explained() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            api.put(rig.pod("p"))
            status, answer = await explain(replica, pod="default/p", uid="another")
            assert status == 404
            assert answer["error"] == "there is no pod default/p with UID another"


@pytest.mark.parametrize("key", ["", "p", "/p", "default/", "/"])
async def test_a_pod_must_be_named_with_its_namespace(key: str) -> None:
    async with ScriptedApi() as api, rig.running(api) as replica:
        status, answer = await explain(replica, pod=key)
        assert status == 400
        assert answer["error"].startswith(f"pod {key!r} is not <namespace>/<name>; write ?pod=")


async def test_pods_that_are_not_there() -> None:
    async with ScriptedApi() as api, rig.running(api) as replica:
        assert await explain(replica, pod="default/p") == (
            404,
            {"error": "there is no pod default/p"},
        )
        status, answer = await explain(replica, uid="u")
        assert status == 404
        assert answer["error"].startswith("no pod with UID u is unschedulable here or has cards")
        assert "?pod=<namespace>/<name>" in answer["error"]


async def test_a_pod_that_cannot_be_read_or_understood() -> None:
    async with ScriptedApi() as api, rig.running(api) as replica:
        wrong = rig.pod("p")
        wrong["spec"]["containers"][0]["resources"]["limits"][GPU] = "one"
        api.put(wrong)
        status, answer = await explain(replica, pod="default/p")
        assert status == 422
        assert answer["error"].startswith(f"container main, {GPU}: 'one' is not a quantity")
        api.fault(path="/pods/p", status=500)
        status, answer = await explain(replica, pod="default/p")
        assert status == 502
        assert answer["error"].startswith("pod default/p cannot be read: 500")


async def test_before_the_informers_are_synced_nothing_is_explained() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(rig.pod("p"))
        api.fault(path="/api/v1/nodes", hang=True, times=None)
        async with rig.running(api, ready=False, filter_budget=0.05) as replica:
            await replica.scheduler.informers["pods"].wait_synced()
            await replica.scheduler.informers["quotas"].wait_synced()
            status, answer = await explain(replica, pod="default/p")
            assert status == 503
            assert answer["error"] == "the caches of nodes are not filled yet"
