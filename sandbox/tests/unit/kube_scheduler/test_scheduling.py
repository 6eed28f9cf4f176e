"""Pods are placed, or told why not; the whole scheduler on a scripted API server."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from sandbox.tests.unit.kube_scheduler import rig
from sandbox.tests.unit.kube_scheduler.makers import GPU, node_object, pod_object
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import until


async def test_a_pod_without_extenders_is_bound_by_a_binding() -> None:
    async with ScriptedApi() as api, rig.running(api):
        api.put(node_object("a"))
        uid = api.put(pod_object("p", requests={"cpu": "1"}))["metadata"]["uid"]
        await until(lambda: rig.node_of(api, "p") == "a")
        (sent,) = api.sent("POST", "/binding")
        assert b'"kind":"Node","name":"a"' in sent.body
        assert uid.encode() in sent.body
        await until(lambda: rig.events(api, "p", "Scheduled"))
        (event,) = rig.events(api, "p", "Scheduled")
        assert event["message"] == "Successfully assigned default/p to a"
        assert event["source"]["component"] == "hami-scheduler"
        assert event["type"] == "Normal"


async def test_pods_of_default_scheduler_are_ours_and_those_of_others_are_not() -> None:
    async with ScriptedApi() as api, rig.running(api) as scheduler:
        api.put(node_object("a"))
        api.put(pod_object("other", schedulerName="volcano"))
        default = pod_object("default")
        del default["spec"]["schedulerName"]
        api.put(default)
        await until(lambda: rig.node_of(api, "default") == "a")
        await rig.seen(api, scheduler)
        assert len(scheduler.queue) == 0
        assert rig.node_of(api, "other") == ""
        await until(lambda: rig.events(api, "default", "Scheduled"))
        (event,) = rig.events(api, "default", "Scheduled")
        assert event["source"]["component"] == "default-scheduler"


async def test_an_extender_is_asked_as_kube_scheduler_asks_it() -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        for name in ("a", "b", "full"):
            api.put(node_object(name, cpu="0" if name == "full" else "8"))
        extender.takes = lambda name: name == "b"
        async with rig.running(api, extender.settings()):
            pod = api.put(pod_object("p", requests={GPU: "1", "cpu": "1"}))
            await until(lambda: rig.node_of(api, "p") == "b")
            (asked,) = extender.filters
            # Only the nodes that have passed; nobody advertises the cards, and nobody minds.
            assert sorted(asked["NodeNames"]) == ["a", "b"]
            assert asked["Nodes"] is None
            sent = asked["Pod"]
            assert sent["metadata"] == pod["metadata"]
            assert sent["spec"] == pod["spec"]
            assert sent["status"] == pod["status"]
            assert extender.binds == [
                {
                    "PodName": "p",
                    "PodNamespace": "default",
                    "PodUID": pod["metadata"]["uid"],
                    "Node": "b",
                }
            ]
            assert not api.sent("POST", "/binding")
            await until(lambda: rig.events(api, "p", "Scheduled"))


async def test_an_extender_is_not_asked_about_pods_without_its_resources() -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        api.put(node_object("a"))
        async with rig.running(api, extender.settings()):
            api.put(pod_object("p", requests={"cpu": "1"}))
            await until(lambda: rig.node_of(api, "p") == "a")
            assert not extender.filters
            assert not extender.binds
            assert api.sent("POST", "/binding")


async def test_a_resource_in_limits_or_of_an_init_container_is_enough_to_be_asked() -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        api.put(node_object("a"))
        async with rig.running(api, extender.settings()):
            init = {"name": "i", "resources": {"limits": {GPU: "1"}}}
            api.put(pod_object("p", initContainers=[init]))
            await until(lambda: extender.binds)


async def test_an_extender_that_wants_whole_nodes_gets_them() -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        api.put(node_object("a"))
        node = api.put(node_object("b"))
        extender.takes = lambda name: name == "b"
        async with rig.running(api, extender.settings(node_cache_capable=False)):
            api.put(pod_object("p", requests={GPU: "1"}))
            await until(lambda: rig.node_of(api, "p") == "b")
            (asked,) = extender.filters
            assert asked["NodeNames"] is None
            for key in ("kind", "apiVersion"):
                del node[key]
            assert node in asked["Nodes"]["items"]


async def test_points_of_an_extender_decide() -> None:
    async with ScriptedApi() as api, rig.extender() as extender:
        for name in ("a", "b", "c"):
            api.put(node_object(name))
        extender.points = {"b": 10}
        settings = extender.settings(prioritize_verb="prioritize", bind_verb="", weight=2)
        async with rig.running(api, settings):
            for number in range(3):
                api.put(pod_object(f"p{number}", requests={GPU: "1", "cpu": "2"}))
            await until(lambda: all(rig.node_of(api, f"p{n}") for n in range(3)))
            assert {rig.node_of(api, f"p{n}") for n in range(3)} == {"b"}
            assert len(api.sent("POST", "/binding")) == 3
            assert sorted(extender.priorities[0]["NodeNames"]) == ["a", "b", "c"]


async def test_why_no_node_will_do() -> None:
    async with ScriptedApi() as api, rig.extender() as extender:
        api.put(node_object("a", cpu="1"))
        api.put(node_object("b", cpu="1"))
        api.put(node_object("c"))
        api.put(node_object("d", unschedulable=True))
        extender.takes = lambda _: False
        async with rig.running(api, extender.settings()):
            api.put(pod_object("p", requests={GPU: "1", "cpu": "2"}))
            told = (
                "0/4 nodes are available: 1 no cards, 1 node(s) were unschedulable, "
                "2 Insufficient cpu."
            )
            await until(lambda: rig.condition(api, "p"))
            condition = rig.condition(api, "p")
            assert condition["status"] == "False"
            assert condition["reason"] == "Unschedulable"
            assert condition["message"] == told
            assert condition["lastTransitionTime"]
            await until(lambda: rig.events(api, "p", "FailedScheduling"))
            (event,) = rig.events(api, "p", "FailedScheduling")
            assert event["message"] == told
            assert event["type"] == "Warning"


async def test_a_cluster_without_nodes() -> None:
    async with ScriptedApi() as api, rig.running(api):
        api.put(pod_object("p"))
        await until(lambda: rig.condition(api, "p"))
        assert rig.condition(api, "p")["message"] == "no nodes available to schedule pods"
        api.put(node_object("a"))
        await until(lambda: rig.node_of(api, "p") == "a")


async def test_a_condition_that_is_there_is_not_written_again() -> None:
    async with ScriptedApi() as api, rig.running(api) as scheduler:
        api.put(node_object("a", cpu="1"))
        pod = api.put(pod_object("p", requests={"cpu": "2"}))
        await until(lambda: rig.condition(api, "p"))
        await rig.seen(api, scheduler)
        entry = scheduler.queue.get(pod["metadata"]["uid"])
        assert entry is not None
        pod = api.find("pods", "p") or {}
        pod["metadata"]["labels"] = {"changed": "1"}
        api.put(pod)
        await until(lambda: entry.attempts == 2)
        await until(lambda: entry.place.name == "WAITING")
        assert len(api.sent("PATCH", "/pods/p/status")) == 1


async def test_who_is_more_important_is_placed_first() -> None:
    async with ScriptedApi() as api:
        api.put(node_object("a", cpu="1"))
        for name, priority in (("low", 1), ("high", 9), ("middle", 5)):
            api.put(pod_object(name, requests={"cpu": "1"}, priority=priority))
        async with rig.running(api):
            await until(lambda: rig.node_of(api, "high") == "a")
            await until(lambda: rig.condition(api, "middle"))
            assert "does not preempt" in rig.condition(api, "middle")["message"]
            api.remove("pods", "high")
            await until(lambda: rig.node_of(api, "middle") == "a")
            assert rig.node_of(api, "low") == ""


async def test_a_gated_pod_waits_for_its_gates_to_go() -> None:
    async with ScriptedApi() as api, rig.running(api) as scheduler:
        api.put(node_object("a"))
        pod = api.put(pod_object("p", schedulingGates=[{"name": "quota"}]))
        await rig.seen(api, scheduler)
        assert len(scheduler.queue) == 0
        del pod["spec"]["schedulingGates"]
        api.put(pod)
        await until(lambda: rig.node_of(api, "p") == "a")


async def test_decisions_count_before_they_are_seen() -> None:
    """While a binding is on its way its pod holds its place: no two pods on one cpu."""
    async with ScriptedApi() as api:
        api.put(node_object("a", cpu="1"))
        held = asyncio.Event()
        api.fault(method="POST", path="/binding", gate=held)
        async with rig.running(api):
            for name in ("p", "q"):
                api.put(pod_object(name, requests={"cpu": "1"}))
            await until(lambda: rig.condition(api, "q") or rig.condition(api, "p"))
            assert len(api.sent("POST", "/binding")) == 1
            held.set()
            await until(lambda: rig.node_of(api, "p") or rig.node_of(api, "q"))
            assert len(api.sent("POST", "/binding")) == 1


async def test_pods_that_keep_apart_are_spread() -> None:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    apart: Any = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
    }
    async with ScriptedApi() as api, rig.running(api):
        for name in ("a", "b"):
            api.put(node_object(name))
        for name in ("p", "q", "r"):
            api.put(pod_object(name, labels={"app": "x"}, affinity=apart))
        await until(lambda: sum(bool(rig.node_of(api, n)) for n in "pqr") == 2)
        placed = Counter(rig.node_of(api, n) for n in "pqr")
        assert placed == {"a": 1, "b": 1, "": 1}
        (left,) = [n for n in "pqr" if not rig.node_of(api, n)]
        await until(lambda: rig.condition(api, left))
        gone = next(n for n in "pqr" if rig.node_of(api, n) == "a")
        api.remove("pods", gone)
        await until(lambda: rig.node_of(api, left) == "a")
