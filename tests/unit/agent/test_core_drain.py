"""A node is in service only while kubelet can take up pods with cards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from hami.agent import drain
from hami.wire import node_register
from hami.wire.objects import Pod
from tests.builders import NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent.kubelet_rig import Kubelet, short_folder
from tests.unit.agent.rig import CARD, NODE, Node, uid
from tests.unit.agent.test_kubelet_link import another_process
from tests.unit.kube.following import until

REGISTER, MARK = NVIDIA.annotations.register, NVIDIA.annotations.binding
PART = (CARD, 4000, 30)


@pytest.fixture
async def machine() -> AsyncIterator[Node]:
    with short_folder() as root:
        async with ScriptedApi() as api:
            node = Node(root, api)
            node.kubelet = True
            yield node


@pytest.fixture
async def kubelet(machine: Node) -> AsyncIterator[Kubelet]:
    found = Kubelet(machine.layout)
    await found.start()
    yield found
    await found.stop()


def in_service(machine: Node) -> bool:
    register = machine.node_says().get(REGISTER, "[]")
    return any(card.health for card in node_register.decode_json(register))


async def test_a_node_is_in_service_once_kubelet_has_its_devices(machine: Node) -> None:
    kubelet = Kubelet(machine.layout)
    async with machine.running():
        await until(lambda: REGISTER in machine.node_says())
        assert not in_service(machine)
        await kubelet.start()
        await until(lambda: in_service(machine))
        await kubelet.stop()
        await until(lambda: not in_service(machine))
        kubelet = Kubelet(machine.layout)
        await kubelet.start()
        await until(lambda: in_service(machine))
    await kubelet.stop()


async def test_an_agent_ends_after_kubelet_has_taken_up_every_bound_pod(
    machine: Node, kubelet: Kubelet
) -> None:
    async with machine.running() as agent:
        _, client = await kubelet.plugin()
        await until(lambda: in_service(machine))
        first = machine.pod("first", main=[PART])
        await machine.seen(agent)
        ending = asyncio.create_task(machine.stop(agent))
        await until(lambda: not in_service(machine))
        # A Binding that was on its way when the node was taken out of service.
        second = machine.pod("second", main=[PART])
        await machine.seen(agent)
        for number, pod in enumerate((first, second)):
            assert not ending.done()
            assert MARK in machine.node_says()
            (answer,) = await client.allocate([f"id-{number}"])
            machine.checkpoint.add(uid(pod), "main", [f"id-{number}"], answer)  # type: ignore[arg-type]
        await ending
    assert MARK not in machine.node_says()
    assert not in_service(machine)


@pytest.mark.parametrize("how", ["deleted", "failed", "prepared"])
async def test_an_agent_waits_for_no_other_pods(machine: Node, kubelet: Kubelet, how: str) -> None:
    async with machine.running() as agent:
        await kubelet.plugin()
        await until(lambda: in_service(machine))
        pod = machine.pod("p", main=[PART])
        if how == "deleted":
            stored = machine.stored(pod)
            stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            machine.api.put(stored)
        elif how == "failed":
            machine.change(pod, phase="Failed")
        else:
            await machine.allocate(agent, pod, "main", "id-0")
            await machine.start(agent, "id-0")
        await machine.seen(agent)
        await machine.stop(agent)


async def test_an_agent_does_not_wait_for_ever(
    machine: Node, kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine.running(drain_timeout=0.05) as agent:
        await kubelet.plugin()
        machine.pod("p", main=[PART])
        await machine.seen(agent)
        await machine.stop(agent)
    (record,) = [each for each in caplog.records if "has not taken up" in each.getMessage()]
    assert record.__dict__["pods"] == ["team/p"]


async def test_nothing_new_comes_for_a_moment_before_an_agent_ends(
    machine: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.running() as agent:
        await kubelet.plugin()
        await until(lambda: in_service(machine))
        monkeypatch.setattr(drain, "_QUIET", 2.0)
        now, checks, missing = 1000.0, 0, agent.drain._missing

        def counted() -> list[Pod]:
            nonlocal checks
            checks += 1
            return missing()

        monkeypatch.setattr(agent.drain, "_clock", lambda: now)
        monkeypatch.setattr(agent.drain, "_missing", counted)
        ending = asyncio.create_task(machine.stop(agent))
        await until(lambda: not in_service(machine))
        await until(lambda: agent.node_status.fulfilled)
        now, seen = now + 1.9, checks
        await until(lambda: checks > seen + 3)
        assert not ending.done()
        now += 2.0
        await ending


async def test_an_agent_whose_place_was_taken_writes_nothing_more(
    machine: Node, kubelet: Kubelet
) -> None:
    async with machine.running() as agent:
        await kubelet.plugin()
        await until(lambda: in_service(machine))
        async with another_process(machine.layout.device_plugins / "nvidia-gpu.sock"):
            await until(lambda: agent.registration.taken_over)
            # As the other agent writes it.
            node = machine.api.find("nodes", NODE)
            assert node is not None
            node["metadata"]["annotations"][REGISTER] = "[]"
            machine.api.put(node)
            await machine.seen(agent)
            before = len(machine.api.sent("PATCH", f"/nodes/{NODE}"))
            agent.cards.health.probed(CARD, "it has left the bus")
            await machine.stop(agent)
            assert len(machine.api.sent("PATCH", f"/nodes/{NODE}")) == before
            assert MARK in machine.node_says()


async def test_an_agent_whose_successor_died_serves_again(machine: Node, kubelet: Kubelet) -> None:
    async with machine.running() as agent:
        await kubelet.plugin()
        await until(lambda: in_service(machine))
        async with another_process(machine.layout.device_plugins / "nvidia-gpu.sock"):
            await until(lambda: agent.registration.taken_over)
        await kubelet.plugin()
        await until(lambda: agent.registration.watched)
        await until(lambda: in_service(machine))
