"""Orders of starts and recovery after the ledger was lost: no card is given twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hami.agent.errors import RefusalError
from hami.agent.main import Agent
from tests.unit.agent.rig import CARD, Node, Object, uid
from tests.unit.kube.following import until

ALL = (CARD, 30_000, 0)


async def refused_while_the_driver_comes_back(node: Node, device_id: str) -> None:
    """Start a container while the driver is missing; let the driver come back."""
    node.driver.missing = "not loaded"
    async with node.running(wait=False) as agent:
        await until(lambda: agent.pods.synced and agent.cards.asked)
        waiting = note_waits(agent)
        start = asyncio.create_task(node.start(agent, device_id))
        await until(lambda: waiting)
        node.driver.missing = ""
        with pytest.raises(RefusalError, match="do not fit"):
            await start
        await node.start(agent, "id-old")


def note_waits(agent: Agent) -> list[bool]:
    """Return a list that grows whenever a start waits for the driver."""
    waits: list[bool] = []
    wait = agent.allocator.wait_ready

    async def noted() -> None:
        waits.append(True)
        await wait()

    agent.allocator.wait_ready = noted  # type: ignore[method-assign]
    return waits


async def left(node: Node, *, resized: bool = False) -> Object:
    """Leave a pod that runs, one that was only allocated, and no agent."""
    async with node.running() as agent:
        old = node.pod("old", main=[(CARD, 10_000, 0)] if resized else [ALL])
        allocation_id = await node.run_pod(agent, old, "main", "id-old")
        if resized:
            node.resize(old, [ALL])
        await until(lambda: node.limits(allocation_id) == [ALL])
        await node.allocate(agent, node.pod("new", main=[ALL]), "main", "id-new")
    return old


@pytest.mark.parametrize(
    "lose",
    [lambda path: path.unlink(), lambda path: path.write_bytes(b"half")],
    ids=["missing", "damaged"],
)
async def test_a_start_that_waited_for_the_driver_gets_no_card_of_a_pod_that_the_ledger_lost(
    node: Node, lose: Callable[..., object]
) -> None:
    old = await left(node)
    lose(node.layout.record(uid(old)))
    await refused_while_the_driver_comes_back(node, "id-new")


async def test_a_recovered_pod_counts_with_the_resize_that_its_processes_have(node: Node) -> None:
    old = await left(node, resized=True)
    node.layout.record(uid(old)).unlink()
    await refused_while_the_driver_comes_back(node, "id-new")


async def test_a_new_pod_starts_although_the_recovery_fails(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        monkeypatch.setattr(agent.reconciler, "_recovered_once", False)

        async def fails() -> None:
            raise OSError("the disk does not answer")

        monkeypatch.setattr(agent.reconciler, "_recover_pods", fails)
        await node.run_pod(agent, node.pod("new", main=[ALL]), "main", "id-new")


async def test_a_card_that_fails_while_a_start_waits_takes_no_new_pod(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        pod = node.pod("new", main=[ALL])
        await node.allocate(agent, pod, "main", "id-new")
        recover = agent.reconciler._recover_first

        async def then_fails() -> None:
            await recover()
            agent.cards.health.probed(CARD, "it is lost")

        monkeypatch.setattr(agent.reconciler, "_recover_first", then_fails)
        with pytest.raises(RefusalError, match="not healthy"):
            await node.start(agent, "id-new")
        assert node.ledger() == {}
