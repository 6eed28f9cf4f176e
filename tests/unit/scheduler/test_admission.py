"""Admission by a whole replica: it places what it admits, and placed pods count."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hami.wire import annotation_keys
from tests import builders, tracers
from tests.builders import CORES, GPU, MEMORY, NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.tracers import Traced
from tests.unit.admission import desk, pods
from tests.unit.admission.desk import review
from tests.unit.admission.pods import MIG
from tests.unit.scheduler import rig
from tests.unit.scheduler.test_metrics import scrape
from tests.unit.serving import servers

traced = tracers.traced


class Asked:
    """A replica behind HTTP, asked by an API server that is neither local nor known."""

    def __init__(self, replica: rig.Replica, port: int) -> None:
        self.replica = replica
        self._port = port

    async def post(self, pod: rig.Object, **request: Any) -> tuple[int, rig.Object]:
        question = review(pod, namespace=pod["metadata"]["namespace"], **request)
        body = json.dumps(question).encode()
        status, _, answer = await servers.ask(self._port, "POST", "/webhook", body=body)
        return status, json.loads(answer)

    async def admit(self, pod: rig.Object) -> rig.Object:
        """Return the pod as it comes through."""
        status, answer = await self.post(pod)
        assert status == 200
        assert answer["response"]["allowed"], answer
        return desk.patched(pod, answer["response"])

    async def refuse(self, pod: rig.Object) -> str:
        """Return why a pod does not come through."""
        _, answer = await self.post(pod)
        assert not answer["response"]["allowed"], answer
        message: str = answer["response"]["status"]["message"]
        return message

    async def ready(self, path: str) -> int:
        return (await servers.ask(self._port, "GET", path))[0]


@asynccontextmanager
async def asked(replica: rig.Replica) -> AsyncIterator[Asked]:
    routes = replica.scheduler.routes()
    async with servers.serving(*routes, is_local=lambda _: False) as server:
        yield Asked(replica, server.port)


def new(name: str, namespace: str = "default", **wanted: Any) -> rig.Object:
    """Make a pod as a user sends it."""
    pod = pods.pod(pods.container(**wanted), namespace=namespace)
    pod["metadata"]["name"] = name
    return pod


def quota(namespace: str, **hard: str) -> rig.Object:
    names = {"memory": f"limits.{MEMORY}", "cores": f"limits.{CORES}"}
    return {
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": namespace},
        "spec": {"hard": {names[key]: value for key, value in hard.items()}},
    }


async def test_an_ordinary_pod_is_admitted_placed_and_granted() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica, asked(replica) as door:
            pod = await door.admit(new("p", memory=1000))
            assert pod["spec"]["schedulerName"] == "hami-scheduler"
            assert await replica.place(pod) == "a"
            await replica.seen()
            assert replica.used("a") == [1000]
            stored = api.find("pods", "p")
            assert stored is not None
            granted = stored["metadata"]["annotations"][NVIDIA.annotations.allocated]
            assert granted.startswith("a-0,NVIDIA,1000,")
            # And a copy of the placed pod does not take the grant along.
            copied = new("q", memory=1000)
            copied["metadata"]["annotations"] = {**stored["metadata"]["annotations"], "own": "1"}
            copied["spec"]["nodeName"] = "a"
            copied = await door.admit(copied)
            assert copied["metadata"]["annotations"] == {"own": "1"}
            assert await replica.place(copied) == "a"
            await replica.seen()
            assert replica.used("a") == [2000]


async def test_quota_counts_what_is_placed() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        api.put(quota("team-a", memory="3000", cores="100"))
        async with rig.running(api) as replica, asked(replica) as door:
            await replica.place(await door.admit(new("first", "team-a", gpu=2, memory=1000)))
            await replica.seen()
            message = await door.refuse(new("second", "team-a", gpu=2, memory=501))
            assert "namespace team-a asks for 1002 MiB" in message
            assert "where 1000 MiB are left" in message
            await door.admit(new("third", "team-b", gpu=2, memory=4000))
            await door.admit(new("fits", "team-a", gpu=2, memory=500, cores=50))
            assert "102 % (nvidia.com/gpucores) where 100 % are left" in await door.refuse(
                new("cores", "team-a", gpu=2, memory=1, cores=51)
            )
            api.remove("pods", "first", "team-a")
            await replica.seen()
            await door.admit(new("second", "team-a", gpu=2, memory=501))
            api.remove("resourcequotas", "gpus", "team-a")
            await replica.seen()
            await door.admit(new("much", "team-a", gpu=2, memory=8000))


async def test_the_door_and_the_scheduler_add_a_pod_up_alike() -> None:
    """The amount that admission lets in is exactly the amount that the scheduler holds."""
    init = [builders.container("init", gpu=1, memory=700), builders.sidecar(gpu=1, memory=300)]
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(quota("default", memory="1500"))
        async with rig.running(api) as replica, asked(replica) as door:
            pod = new("p", gpu=1, memory=1200)
            pod["spec"]["initContainers"] = init
            await replica.place(await door.admit(pod))
            await replica.seen()
            assert replica.used("a") == [1500]
            assert "where 0 MiB are left" in await door.refuse(new("q", gpu=1, memory=1))


async def test_a_follower_answers_too() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(quota("default", memory="1500"))
        async with rig.running(
            api,
            ready=False,
            leader_elect=True,
            leader_elect_resource_name="hami-scheduler",
            leader_elect_resource_namespace="kube-system",
        ) as replica:
            await replica.seen()
            async with asked(replica) as door:
                assert await door.ready("/readyz") == 503
                assert await door.ready("/readyz?webhook") == 200
                await door.admit(new("p", gpu=1, memory=1500))
                placed = rig.pod("other", memory=1000)
                placed["metadata"]["annotations"] = {
                    annotation_keys.ASSIGNED_NODE: "a",
                    NVIDIA.annotations.allocated: "a-0,NVIDIA,1000,0:;",
                }
                placed["spec"]["nodeName"] = "a"
                api.put(placed)
                await replica.seen()
                assert "500 MiB are left" in await door.refuse(new("p", gpu=1, memory=501))


async def test_a_replica_that_has_not_read_the_cluster_is_not_available_and_recovers() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        held = asyncio.Event()
        api.fault(path="/resourcequotas", gate=held, times=None)
        async with (
            rig.running(api, ready=False, filter_budget=0.05) as replica,
            asked(replica) as door,
        ):
            status, answer = await door.post(new("p", memory=1000))
            assert status == 503
            assert answer["error"].startswith("not ready: ")
            assert await door.ready("/readyz?webhook") == 503
            held.set()
            await replica.seen()
            assert (await door.post(new("p", memory=1000)))[0] == 200


async def test_a_missing_profile_becomes_a_share_that_is_placed() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica, asked(replica) as door:
            pod = await door.admit(new("p", mig={"1g.5gb": 1}))
            assert pods.asked(pod) == {GPU: "1", MEMORY: "5017", CORES: "14"}
            assert pod["metadata"]["annotations"][annotation_keys.FALLBACK] == "1g.5gb->gpu"
            assert await replica.place(pod) == "a"
            await replica.seen()
            assert replica.used("a") == [5017]


async def test_in_available_mode_pods_that_hold_instances_count() -> None:
    async with ScriptedApi() as api:
        node = rig.node("a")
        node["status"]["allocatable"] |= {f"{MIG}3g.40gb": "1", f"{MIG}1g.10gb": "7"}
        api.put(node)
        async with rig.running(api, mig_fallback="available") as replica, asked(replica) as door:
            asking = new("p", mig={"3g.40gb": 1})
            assert await door.admit(asking) == asking
            holder = new("holder", mig={"3g.40gb": 1})
            holder["spec"]["nodeName"] = "a"
            api.put(holder)
            await replica.seen()
            assert pods.asked(await door.admit(asking)) == {f"{MIG}1g.10gb": "1"}


async def test_settings_reach_the_door() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with (
            rig.running(
                api,
                scheduler_name="ours",
                hook_path="/opt/hami",
                high_priority_namespaces="team-a, team-b",
                high_priority_classes="urgent",
                mig_fallback="off",
            ) as replica,
            asked(replica) as door,
        ):
            assert (await door.admit(new("p", memory=1)))["spec"]["schedulerName"] == "ours"
            await door.admit(new("p", "team-b", gpu=1, priority=0))
            urgent = new("p", gpu=1, priority=0)
            assert "highest priority" in await door.refuse(urgent)
            urgent["spec"]["priorityClassName"] = "urgent"
            await door.admit(urgent)
            moved = new("p", mig={"1g.5gb": 1})
            assert await door.admit(moved) == moved
            assert "/opt/hami/vgpu" in await door.refuse(
                new("p", memory=1, mounts=["/opt/hami/vgpu"])
            )


async def test_what_is_counted_is_in_the_replicas_metrics() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica, asked(replica) as door:
            await door.admit(new("p", mig={"1g.5gb": 1}))
            await door.post(new("p", mig={"1g.5gb": 1}), dryRun=True)
            scraped = await scrape(replica)
    labels = {"from": "1g.5gb", "to": "gpu"}
    assert scraped.value("gpu_webhook_fallback_total", labels) == 1
    assert scraped.count("gpu_webhook_response_time_seconds", result="changed") == 1


async def test_a_trace_goes_from_admission_to_bind(traced: Traced) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, tracer=traced.tracer) as replica, asked(replica) as door:
            await replica.place(await door.admit(new("p", memory=1000)))
    contexts = {name: span.get_span_context() for name, span in traced.spans().items()}
    assert {"admission", "filter", "bind"} <= set(contexts)
    assert len({context.trace_id for context in contexts.values() if context}) == 1
