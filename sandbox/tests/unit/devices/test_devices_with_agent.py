"""The agent itself, binding late, on the stand-in's sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hami_sandbox.kubelet.devices.manager import DeviceManager
from hami_sandbox.kubelet.devices.pods import StartError
from sandbox.tests.unit.devices.desk import Desk, Object
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent import rig
from tests.unit.agent.kubelet_rig import short_folder
from tests.unit.agent.rig import CARD, GPU, OTHER, WHOLE, Node, uid
from tests.unit.kube.following import until


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Node]:
    async with ScriptedApi() as api:
        node = rig.Node(folder, api)
        node.layout.checkpoint.unlink()  # the rig's own kubelet is not wanted
        yield node


@pytest.fixture
def desk(node: Node) -> Desk:
    return Desk(node.layout.kubelet_dir)


@contextlib.asynccontextmanager
async def kubelet(desk: Desk) -> AsyncIterator[DeviceManager]:
    """Run a manager, and wait until the agent has registered with it."""
    async with desk.manager() as manager:
        await until(lambda: manager.allocatable().get(GPU))
        yield manager


def token(manager: DeviceManager, pod: Object, container: str) -> str:
    (name,) = manager.run_options(uid(pod), container).cdi_devices
    return name.removeprefix("hami.io/vgpu=")


async def test_a_pod_gets_its_share_by_what_the_checkpoint_says(node: Node, desk: Desk) -> None:
    async with node.running() as agent, kubelet(desk) as manager:
        assert manager.allocatable()[GPU] == len(agent.device_list.devices)
        pod = node.pod("p", main=[(CARD, 4000, 30), (OTHER, 2000, 0)])
        await node.seen(agent)
        await desk.admit(manager, pod)
        assert node.prepared() == set()
        await manager.pre_start(uid(pod), "main")
        name = token(manager, pod, "main")
        assert node.limits(name) == [(CARD, 4000, 30), (OTHER, 2000, 0)]
        assert manager.run_options(uid(pod), "main").envs == {"NVIDIA_VISIBLE_DEVICES": "void"}
        # The ids are named after the granted cards: it was asked which it prefers.
        held = desk.entries()[uid(pod), "main"].device_ids
        assert {one.rpartition("-")[0] for one in held} == {CARD, OTHER}


async def test_init_container_and_sidecar_are_told_apart(node: Node, desk: Desk) -> None:
    async with node.running(), kubelet(desk) as manager:
        pod = node.pod("p", init=[(CARD, 1000, 0)], side=[(OTHER, 2000, 0)], main=[(CARD, 3000, 0)])
        await desk.admit(manager, pod)
        limits = {}
        for container in ("init", "side", "main"):
            await manager.pre_start(uid(pod), container)
            limits[container] = node.limits(token(manager, pod, container))
        assert limits == {
            "init": [(CARD, 1000, 0)],
            "side": [(OTHER, 2000, 0)],
            "main": [(CARD, 3000, 0)],
        }


async def test_a_burst_of_pods_gets_each_its_own_share(node: Node, desk: Desk) -> None:
    async with node.running(), kubelet(desk) as manager:
        pods = [node.pod(f"p{at}", main=[(CARD, 1000 + at, 0)]) for at in range(8)]
        for pod in reversed(pods):
            await desk.admit(manager, pod)
        for pod in pods:
            await manager.pre_start(uid(pod), "main")
        for at, pod in enumerate(pods):
            assert node.limits(token(manager, pod, "main")) == [(CARD, 1000 + at, 0)]


async def test_what_the_agent_refuses_is_told(node: Node, desk: Desk) -> None:
    async with node.running(), kubelet(desk) as manager:
        first, second = (node.pod(name, main=[(CARD, WHOLE, 0)]) for name in "pq")
        for pod in (first, second):
            await desk.admit(manager, pod)
        await manager.pre_start(uid(first), "main")
        with pytest.raises(
            StartError, match=r"desc = hami: grant of pod team/q: card .* do not fit"
        ):
            await manager.pre_start(uid(second), "main")


async def test_a_new_kubelet_between_allocate_and_start_changes_nothing(
    node: Node, desk: Desk
) -> None:
    pod = node.pod("p", main=[(CARD, 4000, 30)])
    async with node.running():
        async with kubelet(desk) as manager:
            await desk.admit(manager, pod)
            promised = token(manager, pod, "main")
        async with kubelet(desk) as manager:
            await manager.admit(pod)
            assert token(manager, pod, "main") == promised
            await manager.pre_start(uid(pod), "main")
            assert node.limits(promised) == [(CARD, 4000, 30)]


async def test_a_new_agent_registers_again_and_serves_what_the_old_one_promised(
    node: Node, desk: Desk
) -> None:
    started, waiting = (node.pod(name, main=[(CARD, 4000, 0)]) for name in "pq")
    async with desk.manager() as manager:
        async with node.running():
            await until(lambda: manager.allocatable().get(GPU))
            for pod in (started, waiting):
                await desk.admit(manager, pod)
            await manager.pre_start(uid(started), "main")
        await until(lambda: manager.allocatable() == {GPU: 0})
        assert manager.capacity()[GPU] > 0
        with pytest.raises(StartError, match="has been stopped"):
            await manager.pre_start(uid(waiting), "main")
        async with node.running():
            await until(lambda: manager.allocatable()[GPU])
            for pod in (started, waiting):
                await manager.pre_start(uid(pod), "main")
                assert node.limits(token(manager, pod, "main")) == [(CARD, 4000, 0)]
