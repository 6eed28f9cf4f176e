"""The agent between a kubelet and a runtime that speak to it over their real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.builders import NVIDIA
from tests.e2e.kubelet_api import pod_resources
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent import test_runtime_status
from tests.unit.agent.kubelet_rig import Kubelet, served, short_folder
from tests.unit.agent.rig import CARD, GPU, Node, allocation_id_of, uid
from tests.unit.kube.following import until

MARK = NVIDIA.annotations.binding
PART = (CARD, 4000, 30)


@pytest.fixture
async def machine() -> AsyncIterator[Node]:
    """Give a node with a container runtime."""
    with short_folder() as root:
        async with ScriptedApi() as api:
            node = Node(root, api)
            folders = {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi", str(node.layout.cdi_dir)]}
            handler = test_runtime_status.runtime(
                "containerd", "2.1.4", {"config": json.dumps(folders)}
            )
            async with served(root / "cri.sock", handler):
                yield node


async def test_kubelet_registers_lists_allocates_and_starts(machine: Node) -> None:
    kubelet = Kubelet(machine.layout)
    await kubelet.start()
    try:
        async with machine.running(binding="auto") as agent:
            registration, client = await kubelet.plugin()
            assert registration.resource == GPU
            assert registration.endpoint == "nvidia-gpu.sock"
            assert registration.pre_start_required
            assert registration.preferred_allocation
            assert len(await kubelet.listed()) == 20
            await until(lambda: MARK in machine.node_says())
            await until(lambda: not agent.why_not_ready() and not agent.why_not_synced())

            pod = machine.pod("p", main=[PART])
            (answer,) = await client.allocate([f"{CARD}-0"])
            machine.book.add(uid(pod), "main", [f"{CARD}-0"], answer)  # type: ignore[arg-type]
            await client.pre_start([f"{CARD}-0"])
            assert machine.limits(allocation_id_of(answer)) == [PART]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.pre_start([f"{CARD}-1"])
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "to no pod" in str(refused.value.details())

            socket = machine.layout.device_plugins / "nvidia-gpu.sock"
            assert socket.exists()
            await machine.stop(agent)
            assert not socket.exists()
            assert MARK not in machine.node_says()
    finally:
        await kubelet.stop()


@pytest.mark.parametrize("owner", ["p", "another"])
async def test_kubelets_memory_has_a_say(machine: Node, owner: str) -> None:
    async def tell(_request: Any, _context: Any) -> Any:
        held = {"resource_name": GPU, "device_ids": ["id-0"]}
        container = {"name": "main", "devices": [held]}
        pods = [{"namespace": "team", "name": owner, "containers": [container]}]
        return pod_resources.MESSAGES["ListPodResourcesResponse"](pod_resources=pods)

    socket = machine.layout.pod_resources_socket
    socket.parent.mkdir(parents=True)
    async with (
        served(socket, pod_resources.LISTER.handler({"List": tell})),
        machine.running(binding="auto") as agent,
    ):
        pod = machine.pod("p", main=[PART])
        await machine.allocate(agent, pod, "main", "id-0")
        if owner == "p":
            await machine.start(agent, "id-0")
        else:
            with pytest.raises(Exception, match="PodResources to team/another"):
                await machine.start(agent, "id-0")


async def test_metrics_tell_what_is_so(machine: Node) -> None:
    kubelet = Kubelet(machine.layout)
    await kubelet.start()
    try:
        async with machine.running(binding="auto") as agent:
            await kubelet.plugin()
            await machine.run_pod(agent, machine.pod("p", main=[PART]), "main", "id-0")
            agent.cards.health.probed(CARD, "it has left the bus")
            await until(lambda: not agent.why_not_ready())

            def shown(name: str, **labels: str) -> float | None:
                registry = agent.metrics.registry._registry
                return registry.get_sample_value(f"hami_agent_{name}", labels)

            assert shown("registered", resource=GPU) == 1
            assert shown("late_binding") == 1
            assert shown("cards", health="healthy") == 1
            assert shown("cards", health="unhealthy") == 1
            assert shown("pods") == 1
            assert shown("damaged_records") == 0
            assert shown("prestart_duration_seconds_count", result="ok") == 1
            assert shown("allocate_duration_seconds_count", mode="late", result="ok") == 1
    finally:
        await kubelet.stop()
