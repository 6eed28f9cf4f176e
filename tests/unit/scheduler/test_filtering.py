"""/filter: the answers that kube-scheduler and HAMi's users know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami.wire import annotation_keys
from tests.builders import MEMORY
from tests.loop_time import LoopTime
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times


def quota(memory: int) -> rig.Object:
    return {
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"hard": {f"limits.{MEMORY}": str(memory)}},
    }


async def test_a_pod_without_our_resources_gets_all_names_back() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            plain = rig.pod("plain")
            plain["spec"]["containers"] = [{"name": "main"}]
            names = ["z", "unknown", "a"]
            assert await replica.filter(api.put(plain), names) == {
                "Nodes": None,
                "NodeNames": names,
                "FailedNodes": None,
                "FailedAndUnresolvableNodes": None,
                "Error": "",
            }
            assert len(replica.scheduler.assumed_pods) == 0


async def test_a_pod_without_our_resources_needs_no_readiness() -> None:
    async with ScriptedApi() as api:
        api.fault(path="/api/v1/nodes", hang=True, times=None)
        async with rig.running(api, ready=False) as replica:
            plain = rig.pod("plain")
            plain["spec"]["containers"] = [{"name": "main"}]
            answer = await replica.filter(api.put(plain), ["a"])
            assert answer["NodeNames"] == ["a"]


async def test_only_the_winner_is_named() -> None:
    async with ScriptedApi() as api:
        for name in ("a", "b", "c"):
            api.put(rig.node(name))
        async with rig.running(api) as replica:
            answer = await replica.filter(api.put(rig.pod("p")))
            assert answer == {
                "Nodes": None,
                "NodeNames": ["a"],
                "FailedNodes": None,
                "FailedAndUnresolvableNodes": None,
                "Error": "",
            }


async def test_only_nodes_that_kube_scheduler_names_are_taken() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(rig.node("b"))
        async with rig.running(api) as replica:
            answer = await replica.filter(api.put(rig.pod("p")), ["b", "unknown"])
            assert answer["NodeNames"] == ["b"]
            assert answer["FailedNodes"] is None


async def test_a_refusal_names_every_node_with_its_reason() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        api.put(rig.node("b"))
        async with rig.running(api) as replica:
            answer = await replica.filter(api.put(rig.pod("p", memory=9000)), ["a", "b", "c"])
            assert answer == {
                "Nodes": None,
                "NodeNames": None,
                # No eviction that kube-scheduler could plan would free a card.
                "FailedNodes": None,
                "FailedAndUnresolvableNodes": {
                    "a": "2/2 CardInsufficientMemory",
                    "b": "1/1 CardInsufficientMemory",
                    "c": "node unregistered",
                },
                "Error": "",
            }


async def test_a_reservation_counts_at_once_and_expires_when_it_is_not_bound(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(
            api, clock=times.clock, now=times.now, reservation_timeout=900
        ) as replica:
            first = api.put(rig.pod("p", memory=5000))
            assert (await replica.filter(first))["NodeNames"] == ["a"]
            second = api.put(rig.pod("q", memory=5000))
            assert (await replica.filter(second))["NodeNames"] is None
            times.pass_by(29)
            replica.scheduler.maintenance.run_round()
            assert (await replica.filter(second))["NodeNames"] is None
            times.pass_by(1)
            replica.scheduler.maintenance.run_round()
            assert replica.used("a") == [0]
            assert (await replica.filter(second))["NodeNames"] == ["a"]
            # The first one comes late, and gets an error instead of the same cards.
            assert "does not fit there now" in await replica.bind(first, "a")


async def test_asking_again_restarts_the_reservation(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(
            api, clock=times.clock, now=times.now, reservation_timeout=900
        ) as replica:
            pod = api.put(rig.pod("p", memory=5000))
            await replica.filter(pod)
            times.pass_by(20)
            await replica.filter(pod)
            times.pass_by(20)
            replica.scheduler.maintenance.run_round()
            assert replica.used("a") == [5000]


async def test_a_deleted_pod_leaves_no_reservation() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p", memory=5000))
            await replica.filter(pod)
            api.remove("pods", "p")
            await replica.seen()
            assert replica.used("a") == [0]
            assert len(replica.scheduler.assumed_pods) == 0
            assert "is deleted or finished" in (await replica.filter(pod))["Error"]


async def test_a_quota_counts_reservations_and_names_itself() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(quota(1500))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p"))
            assert (await replica.filter(pod))["NodeNames"] == ["a"]
            # Asking again does not count a pod against itself.
            assert (await replica.filter(pod))["NodeNames"] == ["a"]
            refused = await replica.filter(api.put(rig.pod("q")))
            assert refused["NodeNames"] is None
            assert "quota" in refused["FailedAndUnresolvableNodes"]["a"].lower()
            other = rig.pod("elsewhere")
            other["metadata"]["namespace"] = "another"
            assert (await replica.filter(api.put(other)))["NodeNames"] == ["a"]
            api.put(quota(2000))
            await replica.seen()
            assert (await replica.filter(api.put(rig.pod("q"))))["NodeNames"] == ["a"]


@pytest.mark.parametrize(("policy", "second"), [("binpack", "b"), ("spread", "a")])
async def test_the_policy_for_nodes_is_that_of_the_settings(policy: str, second: str) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(rig.node("b"))
        async with rig.running(api, node_scheduler_policy=policy) as replica:
            await replica.filter(api.put(rig.pod("p")), ["b"])
            answer = await replica.filter(api.put(rig.pod("q")))
            assert answer["NodeNames"] == [second]


@pytest.mark.parametrize(("policy", "used"), [("binpack", [2000, 0]), ("spread", [1000, 1000])])
async def test_the_policy_for_cards_is_that_of_the_settings(policy: str, used: list[int]) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api, gpu_scheduler_policy=policy) as replica:
            await replica.filter(api.put(rig.pod("p")))
            await replica.filter(api.put(rig.pod("q")))
            assert sorted(replica.used("a"), reverse=True) == used


async def test_a_pod_that_names_its_policies_is_heard() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        api.put(rig.node("b"))
        async with rig.running(
            api, node_scheduler_policy="spread", gpu_scheduler_policy="spread"
        ) as replica:
            policies = {
                annotation_keys.NODE_POLICY: "binpack",
                annotation_keys.GPU_POLICY: "binpack",
            }
            await replica.filter(api.put(rig.pod("p")), ["a"])
            answer = await replica.filter(api.put(rig.pod("q", annotations=policies)))
            assert answer["NodeNames"] == ["a"]
            assert sorted(replica.used("a")) == [0, 2000]


@pytest.mark.parametrize("kind", ["nodes", "pods", "resourcequotas"])
async def test_without_an_informer_there_is_an_error_within_the_budget(kind: str) -> None:
    time = LoopTime()
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.fault(path=f"/api/v1/{kind}", hang=True, times=None)
        async with rig.running(api, ready=False, filter_budget=20) as replica:
            others = {"nodes", "pods", "quotas"} - {kind.removeprefix("resource")}
            for other in others:
                await replica.scheduler.informers[other].wait_synced()
            asking = asyncio.create_task(replica.filter(api.put(rig.pod("p"))))
            passed = 0
            while not asking.done():  # its budget begins when its request arrives
                await time.forward(1)
                await asyncio.sleep(0.001)
                passed += 1
            assert passed >= 20
            answer = await asking
            assert answer["NodeNames"] is answer["FailedNodes"] is None
            missing = kind.removeprefix("resource")
            assert answer["Error"] == f"the caches of {missing} are not filled yet"
            assert len(replica.scheduler.assumed_pods) == 0


async def test_without_the_lease_there_is_an_error_that_names_its_holder() -> None:
    elect: dict[str, Any] = {
        "leader_elect": True,
        "leader_elect_resource_name": "hami-scheduler",
        "leader_elect_resource_namespace": "kube-system",
        "filter_budget": 0.05,
    }
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, ready=False, **elect) as replica:
            for informer in replica.scheduler.informers.values():
                await informer.wait_synced()
            pod = api.put(rig.pod("p"))
            answer = await replica.filter(pod)
            assert answer["Error"] == "not the leader: the lease has no holder"
            api.put(
                {
                    "kind": "Lease",
                    "metadata": {"name": "hami-scheduler", "namespace": "kube-system"},
                    "spec": {"holderIdentity": "another"},
                }
            )
            await rig.eventually(lambda: replica.scheduler.leadership.holder == "another")
            answer = await replica.filter(pod)
            assert answer["Error"] == "not the leader: another holds the lease"
            assert await replica.bind(pod, "a") == "not the leader: another holds the lease"
            assert api.sent("POST", "/binding") == []


async def test_a_request_that_came_too_early_is_answered_once_the_informers_are_synced() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        gate = asyncio.Event()
        api.fault(path="/api/v1/nodes", gate=gate, times=None)
        async with rig.running(api, ready=False, filter_budget=30) as replica:
            asking = asyncio.create_task(replica.filter(api.put(rig.pod("p"))))
            await replica.scheduler.informers["pods"].wait_synced()
            assert not asking.done()
            gate.set()
            assert (await asyncio.wait_for(asking, rig.PATIENCE_S))["NodeNames"] == ["a"]


async def test_a_request_whose_caller_leaves_while_it_waits_holds_no_cards() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        gate = asyncio.Event()
        api.fault(path="/api/v1/nodes", gate=gate, times=None)
        async with rig.running(api, ready=False, filter_budget=30) as replica:
            asking = asyncio.create_task(replica.filter(api.put(rig.pod("p"))))
            await replica.scheduler.informers["pods"].wait_synced()
            asking.cancel()
            gate.set()
            await replica.scheduler.readiness.require(rig.PATIENCE_S)
            assert len(replica.scheduler.assumed_pods) == 0
            assert asking.cancelled()
