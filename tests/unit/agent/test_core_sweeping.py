"""Pods that are gone give their cards back: not too early, not too late, and not never."""

from __future__ import annotations

import asyncio

import pytest

from hami.agent.containers.prepare import PrepareError
from hami.agent.errors import RefusalError
from hami.agent.main import Agent
from tests.unit.agent.node_cards import GIB, card
from tests.unit.agent.rig import CARD, Node, living, uid
from tests.unit.kube.following import until

ALL = (CARD, 30_000, 0)


async def full(node: Node, agent: Agent) -> tuple[dict[str, object], str]:
    """Fill a card."""
    pod = node.pod("old", main=[ALL])
    allocation_id = await node.run_pod(agent, pod, "main", "id-old")
    return pod, allocation_id


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", None])
async def test_a_pod_that_ended_makes_room(node: Node, phase: str | None) -> None:
    async with node.running() as agent:
        old, allocation_id = await full(node, agent)
        if phase is None:
            node.remove(old)
        else:
            node.change(old, phase=phase)
        await until(lambda: not node.ledger())
        assert node.prepared() == set()
        assert not node.layout.allocation_folder(allocation_id).exists()
        await node.run_pod(agent, node.pod("new", main=[ALL]), "main", "id-new")


async def test_a_start_that_does_not_fit_yet_looks_who_is_gone(node: Node) -> None:
    async with node.running() as agent:
        old, allocation_id = await full(node, agent)
        new = node.pod("new", main=[ALL])
        await node.allocate(agent, new, "main", "id-new")
        with living(node.layout.state(allocation_id)):
            node.remove(old)
            starting = asyncio.create_task(node.start(agent, "id-new"))
            asked = f"/namespaces/team/pods/{old['metadata']['name']}"  # type: ignore[index]
            await until(lambda: len(node.api.sent("GET", asked)) > 2)
            assert not starting.done()
        await starting
        assert set(node.ledger()) == {uid(new)}


async def test_a_pod_whose_process_lives_keeps_its_share(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami.agent.reconciler._PATIENCE", 0.05)
    async with node.running() as agent:
        old, allocation_id = await full(node, agent)
        new = node.pod("new", main=[ALL])
        await node.allocate(agent, new, "main", "id-new")
        with living(node.layout.state(allocation_id)):
            node.remove(old)
            await node.seen(agent)
            with monkeypatch.context() as patch:
                patch.setattr(agent.reconciler, "_clock", iter(range(0, 10**6, 5)).__next__)
                with pytest.raises(RefusalError, match="do not fit"):
                    await node.start(agent, "id-new")
            await agent.reconciler.recover_and_clean_up()
            assert node.prepared() == {allocation_id}
            assert set(node.ledger()) == {uid(old)}
        await node.start(agent, "id-new")


async def test_the_cache_alone_is_not_believed(node: Node) -> None:
    async with node.running() as agent:
        old, allocation_id = await full(node, agent)
        agent.pods._cache.drop(uid(old))
        await agent.reconciler.release_deleted_pods()
        assert node.prepared() == {allocation_id}
        fault = node.api.fault(path="/pods/old", status=500, times=None)
        await agent.reconciler.release_deleted_pods()
        assert fault.hits
        assert node.prepared() == {allocation_id}


async def test_another_pod_under_the_name_is_another(node: Node) -> None:
    async with node.running() as agent:
        old, _ = await full(node, agent)
        node.remove(old)
        node.pod("old", main=[ALL], uid="uid-younger")
        await until(lambda: not node.ledger())


async def test_nobody_is_forgotten_before_the_pods_are_known(node: Node) -> None:
    async with node.running() as agent:
        old, _ = await full(node, agent)
    node.api.fault(path="/pods", status=500, times=None, when=lambda r: not r.path.endswith("old"))
    node.remove(old)
    async with node.running(wait=False) as agent:
        await agent.reconciler.release_deleted_pods()
        assert set(node.ledger()) == {uid(old)}


async def test_who_cannot_be_forgotten_counts_on_and_holds_up_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        old, allocation_id = await full(node, agent)
        other = node.pod("other", main=[(CARD, 1000, 0)])
        await node.run_pod(agent, other, "main", "id-other")
        forget = agent.preparer.forget

        def fails(asked: str) -> None:
            if asked == allocation_id:
                raise PrepareError("a file", "cannot be removed")
            forget(asked)

        with monkeypatch.context() as patch:
            patch.setattr(agent.preparer, "forget", fails)
            node.remove(old)
            node.remove(other)
            await until(lambda: set(node.ledger()) == {uid(old)})
            new = node.pod("new", main=[ALL])
            await node.allocate(agent, new, "main", "id-new")
            with pytest.raises(RefusalError, match="do not fit"):
                await node.start(agent, "id-new")
        await node.start(agent, "id-new")
        assert set(node.ledger()) == {uid(new)}


async def test_who_cannot_be_looked_at_counts_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        old, allocation_id = await full(node, agent)

        def fails(_allocation_id: str) -> bool:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(agent.states, "busy", fails)
            node.remove(old)
            await node.seen(agent)
            assert not await agent.reconciler.release_deleted_pods()
            assert node.prepared() == {allocation_id}
        await agent.reconciler.release_deleted_pods()
        assert node.prepared() == set()


async def test_what_an_init_container_held_is_free_after_it(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", init=[ALL], main=[(CARD, 1000, 0)])
        await node.run_pod(agent, pod, "init", "id-0")
        new = node.pod("new", main=[ALL])
        await node.allocate(agent, new, "main", "id-new")
        with pytest.raises(RefusalError, match="do not fit"):
            await node.start(agent, "id-new")
        ended = {"name": "init", "state": {"terminated": {"exitCode": 0}}}
        node.change(pod, initContainerStatuses=[ended])
        await node.seen(agent)
        await node.start(agent, "id-new")
        await node.run_pod(agent, pod, "main", "id-1")


async def test_a_grant_on_a_card_that_is_not_ours_is_refused(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[("GPU-of-another-node", 1000, 0)])
        await node.allocate(agent, pod, "main", "id-0")
        with pytest.raises(RefusalError, match="none of this node's"):
            await node.start(agent, "id-0")


async def test_who_is_counted_already_goes_on_although_the_card_offers_less_now(
    node: Node,
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", init=[(CARD, 1000, 0)], main=[(CARD, 2000, 0)])
        await node.run_pod(agent, pod, "init", "id-0")
    node.driver.listed[0] = card(0, memory=GIB)
    async with node.running() as agent:
        await node.run_pod(agent, pod, "main", "id-1")
        await node.allocate(agent, node.pod("new", main=[(CARD, 2000, 0)]), "main", "id-new")
        with pytest.raises(RefusalError, match="do not fit"):
            await node.start(agent, "id-new")
