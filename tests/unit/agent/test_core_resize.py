"""A running share is changed: only by our scheduler, and only as far as it fits."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hami.agent.containers.prepare import PrepareError
from hami.node.ledger_record import LedgerRecord
from hami.wire import annotation_keys, signature
from tests.unit.agent.records import devices
from tests.unit.agent.rig import CARD, KEYS, NODE, OTHER, WHOLE, Node, note_admissions, uid
from tests.unit.kube.following import until

PART = (CARD, 4000, 30)
RESIZED, REFUSED = "GPUShareResized", "GPUResizeRefused"


async def test_a_signed_resize_raises_the_generation_and_is_frozen(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        assert node.policy(allocation_id).generation == 1
        node.resize(pod, [(CARD, 9000, 50)])
        await until(lambda: node.events(RESIZED))
        assert node.limits(allocation_id) == [(CARD, 9000, 50)]
        assert node.policy(allocation_id).generation == 2
    async with node.running() as agent:
        await node.start(agent, "id-0")
        assert node.limits(allocation_id) == [(CARD, 9000, 50)]
        assert node.policy(allocation_id).generation == 2
        node.resize(pod, [(CARD, 2000, 50)])
        await until(lambda: node.limits(allocation_id) == [(CARD, 2000, 50)])
        assert node.policy(allocation_id).generation == 3


@pytest.mark.parametrize(
    ("slot", "signed", "why"),
    [
        ([(CARD, 9000, 0)], False, "not signed"),
        ([(OTHER, 4000, 30)], True, "names other cards"),
        ([PART, (OTHER, 1000, 0)], True, "names other cards"),
        ([(CARD, 10**6, 50)], True, "do not fit"),
        ([(CARD, WHOLE, 100)], True, "between a share and a whole card"),
    ],
)
async def test_a_forbidden_resize_is_refused_and_reported_once(
    node: Node, slot: list[tuple[str, int, int]], *, signed: bool, why: str
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        node.resize(pod, slot, signed=signed)
        await until(lambda: node.events(REFUSED))
        await agent.resizer.apply(uid(pod))
        assert len(node.events(REFUSED)) == 1
        assert why in node.events(REFUSED)[0]
        assert node.limits(allocation_id) == [PART]
        assert node.ledger()[uid(pod)]["resize"] == ""


async def test_a_grant_is_no_resize(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        more = devices([[(CARD, 9000, 0)]])
        replayed = signature.sign(KEYS, uid=uid(pod), node=NODE, devices=more)
        asked = {annotation_keys.RESIZE: more, annotation_keys.RESIZE_MAC: replayed}
        node.change(pod, asked)
        await until(lambda: "was not made" in "".join(node.events(REFUSED)))


async def test_a_code_that_comes_after_the_share_is_looked_at(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        node.resize(pod, [(CARD, 9000, 50)], signed=False)
        await until(lambda: node.events(REFUSED))
        node.resize(pod, [(CARD, 9000, 50)])
        await until(lambda: node.limits(allocation_id) == [(CARD, 9000, 50)])


async def test_what_was_asked_while_no_agent_ran_is_done_when_the_cards_are_known(
    node: Node,
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
    node.resize(pod, [(CARD, 9000, 50)])
    node.driver.missing = "is not loaded"
    async with node.running(wait=False) as agent:
        await until(lambda: agent.pods.synced and agent.cards.asked)
        node.driver.missing = ""
        await until(lambda: node.limits(allocation_id) == [(CARD, 9000, 50)])
        assert not node.events(REFUSED)


@pytest.mark.parametrize("first", ["resize", "start"])
async def test_a_container_that_starts_meanwhile_is_not_lost(
    node: Node, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", init=[PART], main=[PART])
        init = await node.run_pod(agent, pod, "init", "id-0")
        await node.allocate(agent, pod, "main", "id-1")
        entered, go_on = threading.Event(), threading.Event()
        put = agent.ledger.put

        def slow(record: LedgerRecord, *, durable: bool = True) -> None:
            if (record.resize or len(record.allocations) > 1) and not entered.is_set():
                entered.set()
                assert go_on.wait(30)
            put(record, durable=durable)

        monkeypatch.setattr(agent.ledger, "put", slow)
        admitted = note_admissions(agent, monkeypatch)
        if first == "resize":
            node.resize(pod, [(CARD, 5000, 50)], [(CARD, 6000, 60)])
            await until(entered.is_set)
            starting = asyncio.create_task(node.start(agent, "id-1"))
        else:
            starting = asyncio.create_task(node.start(agent, "id-1"))
            await until(entered.is_set)
            node.resize(pod, [(CARD, 5000, 50)], [(CARD, 6000, 60)])
        # Both know what the ledger has before the other's write.
        await until(lambda: len(admitted) == 2)
        go_on.set()
        await starting
        await until(lambda: node.events(RESIZED))
        kept = node.ledger()[uid(pod)]
        assert kept["resize"]
        main = next(t["token"] for t in kept["tokens"] if t["container"] == "main")
        assert node.limits(init) == [(CARD, 5000, 50)]
        assert node.limits(main) == [(CARD, 6000, 60)]


async def test_limits_that_cannot_be_written_leave_the_ledger_as_it_was(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 30_000, 0)])
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        with monkeypatch.context() as patch:
            patch.setattr(agent.preparer, "prepare", _fails)
            node.resize(pod, [(CARD, 1000, 0)])
            await until(lambda: node.events(REFUSED))
        assert node.limits(allocation_id) == [(CARD, 30_000, 0)]
        new = node.pod("new", main=[(CARD, 30_000, 0)])
        await node.allocate(agent, new, "main", "id-1")
        with pytest.raises(Exception, match="do not fit"):
            await node.start(agent, "id-1")


async def test_a_smaller_share_releases_nothing_while_its_processes_may_hold_it(
    node: Node,
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 20_000, 30)])
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        node.resize(pod, [(CARD, 30_000, 30)])
        await until(lambda: node.limits(allocation_id) == [(CARD, 30_000, 30)])
        node.resize(pod, [(CARD, 1000, 30)])
        await until(lambda: node.limits(allocation_id) == [(CARD, 1000, 30)])
    async with node.running() as agent:
        new = node.pod("new", main=[(CARD, 11_000, 0)])
        await node.allocate(agent, new, "main", "id-1")
        with pytest.raises(Exception, match="30000 MiB are taken by other pods"):
            await node.start(agent, "id-1")
        node.resize(pod, [(CARD, 30_000, 30)])  # what it still holds, it can have again
        await until(lambda: node.limits(allocation_id) == [(CARD, 30_000, 30)])
        assert node.ledger()[uid(pod)]["unreleased"] == ""
        node.remove(pod)
        node.remove(new)
        after = node.pod("after", main=[(CARD, 40_000, 0)])
        await node.run_pod(agent, after, "main", "id-2")


def _fails(*_args: object, **_options: object) -> None:
    raise PrepareError("policy", "cannot be written")
