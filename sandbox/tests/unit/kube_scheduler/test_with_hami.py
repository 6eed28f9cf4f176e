"""The stand-in with the real extender: one API server, HTTP between them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from hami.scheduler import kube_scheduler
from hami_sandbox.kube_scheduler import configuration
from hami_sandbox.kube_scheduler.main import Scheduler
from sandbox.tests.unit.kube_scheduler import rig
from tests.builders import NVIDIA, VENDORS
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import until
from tests.unit.scheduler import rig as hami
from tests.unit.serving import servers

Object = hami.Object


def node(name: str, *, cards: int = 1) -> Object:
    made = hami.node(name, cards=cards)
    made["status"]["allocatable"] |= {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return made


@contextlib.asynccontextmanager
async def both(api: ScriptedApi) -> AsyncIterator[tuple[Scheduler, hami.Replica]]:
    """Run hami, which follows the stand-in's lease, and the stand-in as hami configures it."""
    election = rig.election()
    async with (
        hami.running(
            api,
            ready=False,
            hostname="here",
            leader_elect=True,
            leader_elect_resource_name=election.name,
            leader_elect_resource_namespace=election.namespace,
        ) as replica,
        servers.serving(*replica.scheduler.routes()) as server,
    ):
        text = kube_scheduler.render(
            "1.36",
            kube_scheduler.Options(
                managed_resources=kube_scheduler.managed_resources(VENDORS),
                url=f"http://{servers.LOCAL}:{server.port}",
            ),
        )
        written = configuration.parse(text, source="hami scheduler config")
        async with rig.running(api, *written.extenders, election=election) as scheduler:
            yield scheduler, replica


async def test_pods_are_placed_by_hami_and_wait_for_cards() -> None:
    async with ScriptedApi() as api:
        api.put(node("a", cards=2))
        async with both(api) as (scheduler, replica):
            for name in ("p", "q", "r"):
                api.put(hami.pod(name, memory=8000))
            await until(lambda: sum(bool(rig.node_of(api, n)) for n in "pqr") == 2)
            assert scheduler.leading
            assert replica.scheduler.leadership.leading
            (left,) = [n for n in "pqr" if not rig.node_of(api, n)]
            placed = [n for n in "pqr" if n != left]
            for name in placed:
                pod = api.find("pods", name) or {}
                assert pod["metadata"]["annotations"][NVIDIA.annotations.allocated]
            await until(lambda: rig.condition(api, left))
            condition = rig.condition(api, left)
            assert condition["reason"] == "Unschedulable"
            assert condition["message"].startswith("0/1 nodes are available: 1 ")
            assert "does not preempt" not in condition["message"]
            # A card is freed; who tells the stand-in first does not matter.
            api.remove("pods", placed[0])
            await until(lambda: rig.node_of(api, left) == "a")


async def test_room_that_only_hami_sees_wakes_the_pod() -> None:
    """No pod ends and no resource grows: a card is registered, and hami touches the node."""
    async with ScriptedApi() as api:
        api.put(node("a"))
        async with both(api):
            api.put(hami.pod("p", memory=8000, gpu=2))
            await until(lambda: rig.condition(api, "p"))
            grown = node("a", cards=2)
            found = api.find("nodes", "a") or {}
            found["metadata"]["annotations"] |= grown["metadata"]["annotations"]
            api.put(found)
            await until(lambda: rig.node_of(api, "p") == "a")


async def test_a_burst_gets_a_card_each() -> None:
    nodes, pods = 200, 60
    async with ScriptedApi() as api:
        for number in range(nodes):
            api.put(node(f"node-{number:04}"))
        async with both(api) as (scheduler, _):
            for number in range(pods):
                api.put(hami.pod(f"p{number}", memory=8000))
            known = scheduler.cluster.pods
            await until(lambda: sum(bool(pod.node_name) for pod in known) == pods)
        # Each needs a whole card, and every node has one.
        assert len({pod["spec"]["nodeName"] for pod in api.objects("pods")}) == pods
