"""Reservations of pods that kube-scheduler gives up, or may still bind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times


@contextlib.asynccontextmanager
async def held(times: Times, **metadata: Any) -> AsyncIterator[rig.Replica]:
    """Run a replica with one card, all of which is held for pod `p`."""
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            pod = rig.pod("p", memory=8000, **metadata.pop("metadata", {}))
            pod["spec"] |= metadata.pop("spec", {})
            pod["status"] |= metadata.pop("status", {})
            pod = api.put(pod)
            await replica.seen()
            assert (await replica.filter(pod))["NodeNames"] == ["a"]
            yield replica


def gives_up(replica: rig.Replica, message: str) -> rig.Object:
    """Let kube-scheduler write why pod `p` is not scheduled."""
    pod = replica.api.find("pods", "p")
    assert pod is not None
    pod["status"]["conditions"] = [condition(message)]
    return replica.api.put(pod)


def condition(message: str) -> rig.Object:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }


def held_after(replica: rig.Replica, times: Times, seconds: float) -> bool:
    """Let time pass; returns whether the cards of `p` are still held."""
    times.pass_by(seconds)
    replica.scheduler.maintenance.run_round()
    return replica.used("a") == [8000]


async def test_a_new_reason_of_kube_scheduler_frees_the_cards_at_once(times: Times) -> None:
    async with held(times) as replica:
        gives_up(replica, "running PreBind plugin: timed out")
        await replica.seen()
        assert replica.used("a") == [0]
        other = replica.api.put(rig.pod("other", memory=8000))
        assert (await replica.filter(other))["NodeNames"] == ["a"]


async def test_a_freed_card_requeues_the_pods_that_wait_for_it(times: Times) -> None:
    async with held(times) as replica:
        waiting = replica.api.put(rig.pod("waiting", memory=8000))
        assert (await replica.filter(waiting))["NodeNames"] is None
        gives_up(replica, "running PreBind plugin: timed out")
        await replica.seen()
        await replica.scheduler.requeue.run_round()
        assert replica.scheduler.requeue.sent == 1


async def test_the_reason_that_the_pod_already_had_says_nothing_for_30_seconds(
    times: Times,
) -> None:
    async with held(
        times, status={"conditions": [condition("0/1 nodes are available")]}
    ) as replica:
        pod = gives_up(replica, "0/1 nodes are available")
        replica.api.put({**pod, "metadata": {**pod["metadata"], "labels": {"touched": "yes"}}})
        await replica.seen()
        assert held_after(replica, times, 29)
        assert not held_after(replica, times, 1)


async def test_what_kube_scheduler_wrote_before_it_asked_says_nothing(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            pod = api.put(rig.pod("p", memory=8000))
            await replica.seen()
            # kube-scheduler's own watch is ahead of ours.
            newest = {**pod["metadata"], "resourceVersion": "1000000"}
            status = {"conditions": [condition("second")]}
            assert await replica.filter({**pod, "metadata": newest, "status": status})
            gives_up(replica, "first")
            await replica.seen()
            assert replica.used("a") == [8000]


async def test_a_pod_that_is_being_deleted_frees_its_cards(times: Times) -> None:
    async with held(times) as replica:
        pod = replica.api.find("pods", "p")
        assert pod is not None
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        pod["metadata"]["finalizers"] = ["example.com/wait"]
        replica.api.put(pod)
        await replica.seen()
        assert replica.used("a") == [0]


VOLUME = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
EPHEMERAL = {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]}
CLAIM = {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}
CONFIG = {"volumes": [{"name": "v", "configMap": {"name": "c"}}, {"name": "e", "emptyDir": {}}]}
GANG = {"labels": {"scheduling.x-k8s.io/pod-group": "gang"}}


@pytest.mark.parametrize(
    ("seconds", "made"),
    [
        pytest.param(30, {}, id="plain"),
        pytest.param(30, {"spec": CONFIG}, id="volumes that need no waiting"),
        pytest.param(900, {"spec": VOLUME}, id="a persistent volume"),
        pytest.param(900, {"spec": EPHEMERAL}, id="an ephemeral volume"),
        pytest.param(900, {"spec": CLAIM}, id="a resource claim"),
        pytest.param(900, {"status": {"nominatedNodeName": "a"}}, id="nominated"),
        pytest.param(360, {"metadata": GANG}, id="a gang"),
    ],
)
async def test_cards_are_held_as_long_as_kube_scheduler_may_wait(
    times: Times, seconds: float, made: dict[str, Any]
) -> None:
    async with held(times, **made) as replica:
        assert held_after(replica, times, seconds - 1)
        assert not held_after(replica, times, 1)


async def test_a_node_that_is_nominated_later_prolongs_the_reservation(times: Times) -> None:
    """From 1.35 on kube-scheduler nominates the node of a pod that it has to wait for."""
    async with held(times) as replica:
        pod = replica.api.find("pods", "p")
        assert pod is not None
        pod["status"]["nominatedNodeName"] = "a"
        replica.api.put(pod)
        await replica.seen()
        assert held_after(replica, times, 899)
        assert not held_after(replica, times, 1)


async def test_a_pod_that_was_given_up_too_early_is_bound_all_the_same(times: Times) -> None:
    async with held(times) as replica:
        pod = gives_up(replica, "the reason of an earlier attempt")
        await replica.seen()
        assert replica.used("a") == [0]
        assert await replica.bind(pod, "a") == ""
        await replica.seen()
        assert replica.used("a") == [8000]


async def test_a_binding_on_its_way_is_not_given_up(times: Times) -> None:
    async with held(times) as replica:
        pod = replica.api.find("pods", "p")
        assert pod is not None
        gate, sent = asyncio.Event(), asyncio.Event()
        replica.api.fault(method="POST", path="/binding", gate=gate, on_hit=sent.set)
        binding = asyncio.create_task(replica.bind(pod, "a"))
        await asyncio.wait_for(sent.wait(), rig.PATIENCE_S)
        gives_up(replica, "something else")
        await replica.seen()
        assert held_after(replica, times, 1000)
        gate.set()
        assert await binding == ""


async def test_the_cards_of_a_gang_that_is_given_up_go_to_the_other(times: Times) -> None:
    """Two gangs of two hold one card each; the one that kube-scheduler gives up lets go."""
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(rig.node("b"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            pods = {}
            for name, gang in (("x-1", "x"), ("y-1", "y"), ("x-2", "x"), ("y-2", "y")):
                labels = {"scheduling.x-k8s.io/pod-group": gang}
                pods[name] = api.put(rig.pod(name, memory=8000, labels=labels))
            await replica.seen()
            for name in ("x-1", "y-1"):
                assert (await replica.filter(pods[name]))["NodeNames"], name
            for name in ("x-2", "y-2"):
                assert (await replica.filter(pods[name]))["NodeNames"] is None, name
            pods["y-1"]["status"]["conditions"] = [condition("pod group y timed out at Permit")]
            api.put(pods["y-1"])
            await replica.seen()
            assert (await replica.filter(pods["x-2"]))["NodeNames"]


async def test_an_old_kube_scheduler_gets_failed_nodes() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, unresolvable_nodes=False) as replica:
            answer = await replica.filter(api.put(rig.pod("p", memory=9000)))
    assert answer["FailedNodes"] == {"a": "1/1 CardInsufficientMemory"}
    assert answer["FailedAndUnresolvableNodes"] is None
