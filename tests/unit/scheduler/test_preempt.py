"""/preempt keeps only the nodes on which evictions make room for the pod's cards."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from hami.wire import codec
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times


@contextlib.asynccontextmanager
async def full(*names: str) -> AsyncIterator[rig.Replica]:
    """Run a replica with nodes of one card, half of which each of two pods holds."""
    async with ScriptedApi() as api:
        for name in names:
            api.put(rig.node(name))
        async with rig.running(api) as replica:
            for name in names:
                for number in range(2):
                    pod = api.put(rig.pod(f"{name}-{number}", memory=4000))
                    assert (await replica.filter(pod, [name]))["NodeNames"] == [name]
                    assert await replica.bind(pod, name) == ""
            await replica.seen()
            yield replica


def uid(replica: rig.Replica, name: str) -> str:
    pod = replica.api.find("pods", name)
    assert pod is not None
    found: str = pod["metadata"]["uid"]
    return found


def victims(replica: rig.Replica, *names: str, violations: int = 0) -> rig.Object:
    return {"Pods": [{"UID": uid(replica, n)} for n in names], "NumPDBViolations": violations}


async def preempt(replica: rig.Replica, pod: rig.Object, **args: object) -> rig.Object:
    request = rig.request(codec.encode({"Pod": pod, **args}))
    response = await replica.scheduler.http_api.preempt(request)
    assert isinstance(response.body, bytes)
    answer: rig.Object = json.loads(response.body)
    assert set(answer) == {"NodeNameToMetaVictims"}
    kept: rig.Object = answer["NodeNameToMetaVictims"]
    return kept


async def test_a_node_is_kept_if_the_cards_fit_without_the_victims() -> None:
    async with full("a", "b", "c") as replica:
        pod = replica.api.put(rig.pod("p", memory=8000))
        asked = {
            "a": victims(replica, "a-0"),
            "b": victims(replica, "b-0", "b-1", violations=1),
            "c": victims(replica),
        }
        before = {name: replica.used(name) for name in "abc"}
        kept = await preempt(replica, pod, NodeNameToMetaVictims=asked)
        # The same victims, and no other.
        assert kept == {"b": asked["b"]}
        assert {name: replica.used(name) for name in "abc"} == before


async def test_victims_may_come_as_whole_pods() -> None:
    async with full("a", "b") as replica:
        pod = replica.api.put(rig.pod("p", memory=4000))
        whole = {
            "a": {"Pods": [replica.api.find("pods", "a-0")], "NumPDBViolations": 2},
            "b": {"Pods": [replica.api.find("pods", "a-1")], "NumPDBViolations": 0},
        }
        kept = await preempt(replica, pod, NodeNameToVictims=whole)
        # A pod of another node frees nothing.
        assert kept == {"a": victims(replica, "a-0", violations=2)}


async def test_a_pod_without_cards_is_not_our_concern() -> None:
    async with full("a") as replica:
        pod = rig.pod("p")
        pod["spec"]["containers"] = [{"name": "main"}]
        asked = {"a": victims(replica, "a-0"), "unknown": victims(replica)}
        assert await preempt(replica, pod, NodeNameToMetaVictims=asked) == asked


async def test_a_pod_that_cannot_be_read_evicts_no_pod() -> None:
    async with full("a") as replica:
        pod = rig.pod("p")
        pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "one"
        asked = {"a": victims(replica, "a-0", "a-1")}
        assert await preempt(replica, pod, NodeNameToMetaVictims=asked) == {}


async def test_an_end_that_only_kube_scheduler_has_seen_counts() -> None:
    async with full("a", "b") as replica:
        pod = replica.api.put(rig.pod("p", memory=8000))
        asked = {"a": victims(replica, "a-1"), "b": victims(replica, "b-1")}
        # The watch has not shown it yet when the question comes.
        replica.api.remove("pods", "a-0")
        assert await preempt(replica, pod, NodeNameToMetaVictims=asked) == {"a": asked["a"]}


async def test_a_deleted_pod_evicts_no_pod() -> None:
    async with full("a") as replica:
        pod = replica.api.put(rig.pod("p", memory=8000))
        replica.api.remove("pods", "p")
        asked = {"a": victims(replica, "a-1")}
        assert await preempt(replica, pod, NodeNameToMetaVictims=asked) == {}


async def test_cards_that_are_held_for_another_pod_count() -> None:
    async with full("a") as replica:
        replica.api.remove("pods", "a-0")
        await replica.seen()
        held = replica.api.put(rig.pod("held", memory=4000))
        assert (await replica.filter(held))["NodeNames"] == ["a"]
        pod = replica.api.put(rig.pod("p", memory=8000))
        asked = {"a": victims(replica, "a-1")}
        assert await preempt(replica, pod, NodeNameToMetaVictims=asked) == {}


async def test_a_replica_that_does_not_lead_evicts_no_pod(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        settings: dict[str, Any] = {
            "leader_elect": True,
            "leader_elect_resource_name": "lease",
            "leader_elect_resource_namespace": "kube-system",
        }
        async with rig.running(api, ready=False, clock=times.clock, **settings) as replica:
            pod = api.put(rig.pod("p"))
            asked = {"a": {"Pods": [], "NumPDBViolations": 0}}
            assert await preempt(replica, pod, NodeNameToMetaVictims=asked) == {}


async def test_a_request_that_is_no_json_is_an_error_of_the_caller() -> None:
    async with full("a") as replica:
        response = await replica.scheduler.http_api.preempt(rig.request(b"{"))
        assert response.status == 400
        response = await replica.scheduler.http_api.preempt(rig.request(b""))
        assert response.status == 400
