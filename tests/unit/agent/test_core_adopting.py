"""Pods that run and are not in the ledger are taken in; what belongs to nobody goes."""

from __future__ import annotations

import pytest

from hami.agent.errors import RefusalError
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami.wire import annotation_keys
from tests.unit.agent.rig import CARD, Node, Object, living, uid
from tests.unit.kube.following import until

ALL = (CARD, 30_000, 0)


async def ran(node: Node) -> tuple[Object, str]:
    """Leave a pod that runs, and no agent."""
    async with node.running() as agent:
        pod = node.pod("old", main=[ALL])
        allocation_id = await node.run_pod(agent, pod, "main", "id-old")
        await until(lambda: node.ledger()[uid(pod)]["told"])
    return pod, allocation_id


@pytest.mark.parametrize("content", [None, b"", b'{"uid": "uid-old", "vers', b"\xff\x00"])
async def test_a_pod_whose_record_is_lost_is_counted_again(
    node: Node, content: bytes | None
) -> None:
    pod, allocation_id = await ran(node)
    record = node.layout.record(uid(pod))
    if content is None:
        record.unlink()
    else:
        record.write_bytes(content)
    async with node.running() as agent:
        await until(lambda: agent.ledger.get(uid(pod)) is not None)
        assert [t["token"] for t in node.ledger()[uid(pod)]["tokens"]] == [allocation_id]
        new = node.pod("new", main=[ALL])
        await node.allocate(agent, new, "main", "id-new")
        with pytest.raises(RefusalError, match="do not fit"):
            await node.start(agent, "id-new")
        await node.start(agent, "id-old")
        aside = list(node.layout.ledger.glob("*.damaged-*"))
        assert [path.read_bytes() for path in aside] == ([content] if content is not None else [])


async def test_nothing_is_removed_while_a_record_cannot_be_read(node: Node) -> None:
    pod, allocation_id = await ran(node)
    record = node.layout.record(uid(pod))
    record.write_bytes(b"half")
    node.remove(pod)
    node.book.drop(uid(pod))
    async with node.running() as agent:
        await agent.reconciler.release_deleted_pods()
        await agent.reconciler.recover_and_clean_up()
        assert node.prepared() == {allocation_id}
        assert record.read_bytes() == b"half"
        await node.run_pod(agent, node.pod("new", main=[ALL]), "main", "id-new")


async def test_a_record_of_containers_that_are_not_is_damaged_and_hurts_nobody(node: Node) -> None:
    pod, _ = await ran(node)
    record = node.layout.record(uid(pod))
    record.write_bytes(record.read_bytes().replace(b'"slot":0', b'"slot":7'))
    async with node.running() as agent:
        await until(lambda: agent.ledger.get(uid(pod)) is not None)
        await node.start(agent, "id-old")


async def test_files_of_nobody_go_unless_a_process_lives(node: Node) -> None:
    pod, allocation_id = await ran(node)
    node.layout.record(uid(pod)).unlink()
    node.remove(pod)
    with living(node.layout.state(allocation_id)):
        async with node.running() as agent:
            await agent.reconciler.recover_and_clean_up()
            assert node.prepared() == {allocation_id}
    async with node.running():
        await until(lambda: node.prepared() == set())
        assert not node.layout.allocation_folder(allocation_id).exists()


async def test_files_that_cannot_be_removed_hold_up_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        for letter in "ab":
            (node.layout.allocations / (letter * 32)).mkdir(parents=True)
        remove = agent.states.remove

        def fails(allocation_id: str) -> None:
            if allocation_id.startswith("a"):
                raise OSError(16, "Device or resource busy")
            remove(allocation_id)

        monkeypatch.setattr(agent.states, "remove", fails)
        await agent.reconciler.recover_and_clean_up()
        assert [path.name[0] for path in node.layout.allocations.iterdir()] == ["a"]


async def test_files_whose_allocation_id_kubelet_still_knows_stay(node: Node) -> None:
    pod, allocation_id = await ran(node)
    node.layout.record(uid(pod)).unlink()
    node.change(pod, {annotation_keys.GRANT_MAC: "forged"})
    async with node.running() as agent:
        await node.seen(agent)
        await agent.reconciler.recover_and_clean_up()
        assert agent.ledger.get(uid(pod)) is None
        assert node.prepared() == {allocation_id}


async def test_who_could_not_be_taken_in_is_tried_again(node: Node) -> None:
    pod, _ = await ran(node)
    node.layout.record(uid(pod)).unlink()
    mac = node.says(pod)[annotation_keys.GRANT_MAC]
    node.change(pod, {annotation_keys.GRANT_MAC: "forged"})
    async with node.running() as agent:
        await node.seen(agent)
        await agent.reconciler.recover_and_clean_up()
        assert agent.ledger.get(uid(pod)) is None
        node.change(pod, {annotation_keys.GRANT_MAC: mac})
        await node.seen(agent)
        await agent.reconciler.recover_and_clean_up()
        assert agent.ledger.get(uid(pod)) is not None


async def test_a_resize_survives_the_loss_of_the_ledger(node: Node) -> None:
    pod, allocation_id = await ran(node)
    async with node.running():
        node.resize(pod, [(CARD, 9000, 50)])
        await until(lambda: node.limits(allocation_id) == [(CARD, 9000, 50)])
    node.layout.record(uid(pod)).unlink()
    async with node.running():
        await until(lambda: node.ledger().get(uid(pod), {}).get("resize"))
        assert node.limits(allocation_id) == [(CARD, 9000, 50)]


async def test_nobody_is_taken_in_before_the_cards_are_known(node: Node) -> None:
    pod, _ = await ran(node)
    node.layout.record(uid(pod)).unlink()
    node.driver.missing = "is not loaded"
    async with node.running(wait=False) as agent:
        await until(lambda: agent.pods.synced and agent.cards.asked)
        await agent.reconciler.recover_and_clean_up()
        assert node.ledger() == {}
        assert node.layout.allocations.exists()
        node.driver.missing = ""
        await until(agent.cards.known.is_set)
        await agent.reconciler.recover_and_clean_up()
        assert set(node.ledger()) == {uid(pod)}


async def test_what_was_never_started_is_not_taken_in(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[ALL])
        await node.allocate(agent, pod, "main", "id-0")
        await node.seen(agent)
        await agent.reconciler.recover_and_clean_up()
        assert node.ledger() == {}


async def test_what_another_agent_started_counts_and_starts_again_where_that_is_allowed(
    node: Node,
) -> None:
    pod = node.pod("old", main=[ALL], annotations={annotation_keys.GRANT_MAC: None})
    node.book.add(
        uid(pod), "main", ["id-old"], AllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": CARD})
    )
    async with node.running() as agent:
        with pytest.raises(RefusalError, match="not signed"):
            await node.start(agent, "id-old")
        assert node.ledger() == {}
    async with node.running(allow_unsigned_grants=True) as agent:
        await until(lambda: uid(pod) in node.ledger())
        await node.start(agent, "id-old")
        new = node.pod("new", main=[ALL])
        await node.allocate(agent, new, "main", "id-new")
        with pytest.raises(RefusalError, match="do not fit"):
            await node.start(agent, "id-new")
        node.remove(pod)
        await until(lambda: uid(pod) not in node.ledger())
        await node.start(agent, "id-new")


async def test_a_signed_pod_that_another_agent_started_does_not_start_here(node: Node) -> None:
    pod = node.pod("old", main=[ALL])
    node.book.add(uid(pod), "main", ["id-old"], AllocateResponse())
    async with node.running() as agent:
        with pytest.raises(RefusalError, match="another agent than hami's"):
            await node.start(agent, "id-old")
