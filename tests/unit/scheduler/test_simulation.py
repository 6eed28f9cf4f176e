"""/filter with whole nodes: a simulation holds no cards and sends no event."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.builders import MEMORY, NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig


async def simulate(
    replica: rig.Replica, pod: rig.Object, nodes: Sequence[object]
) -> tuple[list[rig.Object], dict[str, str] | None]:
    """Return the nodes that fit, and why others do not."""
    args = {"Pod": pod, "Nodes": {"items": list(nodes)}, "NodeNames": None}
    answer: dict[str, Any] = await replica._call(replica.scheduler.http_api.filter, args)
    assert answer["Error"] == "", answer
    assert answer["NodeNames"] is None
    return answer["Nodes"]["items"], answer["FailedNodes"]


def quota(memory: int) -> rig.Object:
    return {
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"hard": {f"limits.{MEMORY}": str(memory)}},
    }


async def test_a_template_node_is_empty_and_comes_back_as_it_was_sent() -> None:
    async with ScriptedApi() as api, rig.running(api) as replica:
        template = rig.node("template")
        template["spec"] = {"weird": {"things": [1, 2.5, None]}}
        template["status"]["images"] = [{"names": ["x"], "sizeBytes": 12345678901234567890}]
        fitting, failed = await simulate(replica, rig.pod("p", memory=8000), [template])
        assert fitting == [template]
        assert failed is None
        assert len(replica.scheduler.assumed_pods) == 0
        assert len(replica.scheduler.unschedulable) == 0
        assert dict(replica.scheduler.watched.cluster.pods) == {}
        assert dict(replica.scheduler.watched.cluster.nodes) == {}


async def test_on_a_known_node_what_is_placed_there_counts() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("bound", memory=3000))
            await replica.filter(api.put(rig.pod("held", memory=3000)))
            known = api.find("nodes", "a")
            fits, _ = await simulate(replica, rig.pod("p", memory=2000), [known])
            assert [n["metadata"]["name"] for n in fits] == ["a"]
            fits, failed = await simulate(replica, rig.pod("p", memory=2001), [known])
            assert fits == []
            assert failed == {"a": "1/1 CardInsufficientMemory"}
            assert replica.used("a") == [6000]
            assert len(replica.scheduler.unschedulable) == 0


async def test_the_nodes_sent_are_judged_not_those_known() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            grown = rig.node("a", cards=2)
            fits, _ = await simulate(replica, rig.pod("p", gpu=2), [grown])
            assert len(fits) == 1


async def test_of_several_nodes_the_best_comes_back_alone_with_why_others_do_not_fit() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("full"))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("bound", memory=8000))
            nodes = [rig.node("small", cards=1), rig.node("full"), rig.node("large", cards=4)]
            nodes[0]["metadata"]["annotations"] = {}
            fits, failed = await simulate(replica, rig.pod("p"), nodes)
            assert fits == [nodes[2]]
            assert failed == {"full": "1/1 CardInsufficientMemory", "small": "node unregistered"}


async def test_nodes_that_cannot_be_read_are_named() -> None:
    async with ScriptedApi() as api, rig.running(api) as replica:
        bad = {"metadata": {"name": "bad", "annotations": 7}}
        nodes = [bad, None, rig.node("good"), 42]
        fits, failed = await simulate(replica, rig.pod("p"), nodes)
        assert [n["metadata"]["name"] for n in fits] == ["good"]
        assert failed is not None
        assert set(failed) == {"bad", "nodes[3]"}
        assert all("does not decode" in why for why in failed.values())
        plain = rig.pod("plain")
        plain["spec"]["containers"] = [{"name": "main"}]
        fits, failed = await simulate(replica, plain, nodes)
        assert [n["metadata"]["name"] for n in fits] == ["good"]
        assert failed is not None
        assert set(failed) == {"bad", "nodes[3]"}


async def test_no_node_at_all() -> None:
    async with ScriptedApi() as api, rig.running(api) as replica:
        assert await simulate(replica, rig.pod("p"), []) == ([], {})


async def test_a_quota_is_counted_once_wherever_its_pods_are() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(rig.node("b"))
        api.put(quota(4000))
        async with rig.running(api) as replica:
            for name, node in (("x", "a"), ("y", "b")):
                await replica.filter(api.put(rig.pod(name)), [node])
            for nodes in (["a"], ["a", "b"], ["template"], ["a", "a"]):
                sent = [rig.node(name) for name in nodes]
                fits, _ = await simulate(replica, rig.pod("p", memory=2000), sent)
                assert len(fits) == 1, nodes
                fits, failed = await simulate(replica, rig.pod("p", memory=2001), sent)
                assert fits == [], nodes
                assert failed is not None
                assert all("quota" in why.lower() for why in failed.values())


async def test_what_the_pod_itself_holds_does_not_count_against_it() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(quota(5000))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p", memory=5000))
            await replica.filter(pod)
            for node in (rig.node("a"), rig.node("template")):
                fits, failed = await simulate(replica, pod, [node])
                assert (len(fits), failed) == (1, None)
            assert replica.used("a") == [5000]


async def test_before_the_informers_are_synced_nothing_is_promised() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        bound = rig.pod("bound", annotations={NVIDIA.annotations.allocated: "a-0,NVIDIA,8000,0:;"})
        bound["spec"]["nodeName"] = "a"
        api.put(bound)
        gate = asyncio.Event()
        api.fault(path="/api/v1/pods", gate=gate, times=None)
        async with rig.running(api, ready=False, filter_budget=30) as replica:
            asking = asyncio.create_task(simulate(replica, rig.pod("p"), [rig.node("a")]))
            await replica.scheduler.informers["nodes"].wait_synced()
            gate.set()
            fits, failed = await asyncio.wait_for(asking, rig.PATIENCE_S)
            assert fits == []
            assert failed == {"a": "1/1 CardInsufficientMemory"}
        api.faults.clear()
        api.fault(path="/api/v1/pods", hang=True, times=None)
        async with rig.running(api, ready=False, filter_budget=0.05) as replica:
            await replica.scheduler.informers["nodes"].wait_synced()
            await replica.scheduler.informers["quotas"].wait_synced()
            args = {"Pod": rig.pod("p"), "Nodes": {"items": [rig.node("a")]}}
            answer = await replica._call(replica.scheduler.http_api.filter, args)
            assert answer["Error"] == "the caches of pods are not filled yet"


async def test_a_follower_answers_simulators_too() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(
            api,
            ready=False,
            leader_elect=True,
            leader_elect_resource_name="l",
            leader_elect_resource_namespace="n",
        ) as replica:
            fits, _ = await simulate(replica, rig.pod("p"), [rig.node("a")])
            assert len(fits) == 1
