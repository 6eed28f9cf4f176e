"""Late binding, from kubelet's two questions to what a container finds."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hami.agent.containers.prepare import PrepareError
from hami.agent.errors import RefusalError
from hami.agent.kubelet import kubelet_api
from hami.node.ledger_record import LedgerRecord
from tests.unit.agent.rig import CARD, OTHER, WHOLE, Node, allocation_id_of, note_admissions, uid
from tests.unit.kube.following import until


async def test_allocate_names_no_card_and_prestart_makes_the_name_mean_the_share(
    node: Node,
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 4000, 30)])
        answer = await node.allocate(agent, pod, "main", "id-0")
        allocation_id = allocation_id_of(answer)
        assert answer.cdi_devices == (f"hami.io/vgpu={allocation_id}",)
        assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": "void"}
        assert not answer.mounts
        assert node.prepared() == set()
        await node.start(agent, "id-0")
        assert node.prepared() == {allocation_id}
        assert node.limits(allocation_id) == [(CARD, 4000, 30)]
        env = node.env(allocation_id)
        assert env["NVIDIA_VISIBLE_DEVICES"] == CARD
        assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"


async def test_the_ids_name_of_a_card_says_nothing(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(OTHER, 4000, 0)])
        allocation_id = await node.run_pod(agent, pod, "main", f"{CARD}-3")
        assert node.limits(allocation_id) == [(OTHER, 4000, 0)]


async def test_of_two_pods_that_start_at_once_the_last_share_goes_to_one(node: Node) -> None:
    async with node.running() as agent:
        allocation_ids = {}
        for name in "ab":
            pod = node.pod(name, main=[(CARD, 30_000, 0)])
            allocation_ids[name] = allocation_id_of(
                await node.allocate(agent, pod, "main", f"id-{name}")
            )
        done = await asyncio.gather(
            node.start(agent, "id-a"), node.start(agent, "id-b"), return_exceptions=True
        )
        refused = [one for one in done if one is not None]
        assert len(refused) == 1
        assert isinstance(refused[0], RefusalError)
        assert "MiB of memory" in str(refused[0])
        assert len(node.prepared()) == 1
        assert len(node.ledger()) == 1


async def test_a_write_that_kubelet_does_not_wait_for_counts_before_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        entered, go_on = threading.Event(), threading.Event()
        put = agent.ledger.put

        def slow(record: LedgerRecord, *, durable: bool = True) -> None:
            if record.name == "a" and not entered.is_set():
                entered.set()
                assert go_on.wait(30)
            put(record, durable=durable)

        monkeypatch.setattr(agent.ledger, "put", slow)
        admitted = note_admissions(agent, monkeypatch)
        for name in "ab":
            pod = node.pod(name, main=[(CARD, 30_000, 0)])
            await node.allocate(agent, pod, "main", f"id-{name}")
        first = asyncio.create_task(node.start(agent, "id-a"))
        await until(entered.is_set)
        first.cancel()
        second = asyncio.create_task(node.start(agent, "id-b"))
        # It has asked for its share before the first is written.
        await until(lambda: admitted == ["uid-a", "uid-b"])
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(RefusalError, match="do not fit"):
            await second
        assert set(node.ledger()) == {"uid-a"}


async def test_init_and_main_with_one_id_each_get_their_own(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", init=[(CARD, 1000, 10)], main=[(OTHER, 2000, 20)])
        init = allocation_id_of(await node.allocate(agent, pod, "init", "id-0"))
        main = allocation_id_of(await node.allocate(agent, pod, "main", "id-0"))
        await node.start(agent, "id-0")
        assert node.limits(init) == [(CARD, 1000, 10)]
        assert node.limits(main) == [(OTHER, 2000, 20)]
        await node.start(agent, "id-0")
        assert len(node.ledger()[uid(pod)]["tokens"]) == 2


async def test_containers_of_one_pod_that_start_at_once_are_all_known(node: Node) -> None:
    async with node.running() as agent:
        part = (CARD, 1000, 0)
        pod = node.pod("p", init=[part], side=[part], main=[part])
        for name in ("init", "side", "main"):
            await node.allocate(agent, pod, name, f"id-{name}")
        await asyncio.gather(*(node.start(agent, f"id-{c}") for c in ("init", "side", "main")))
        allocation_ids = node.ledger()[uid(pod)]["tokens"]
        assert sorted(allocation_id["container"] for allocation_id in allocation_ids) == [
            "init",
            "main",
            "side",
        ]
        assert not agent.late_binding._turns


async def test_a_container_starts_again_while_the_api_server_is_down(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 4000, 30)])
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        node.api.fault(times=None, status=503)
        node.api.close_watches()
        await node.start(agent, "id-0")
    # And under the next agent, after a reboot that took everything in memory.
    node.layout.spec(allocation_id).unlink()
    node.layout.state(allocation_id).unlink()
    async with node.running(wait=False) as agent:
        await node.start(agent, "id-0")
        assert node.limits(allocation_id) == [(CARD, 4000, 30)]
        assert node.prepared() == {allocation_id}
        assert node.layout.state(allocation_id).exists()


async def test_what_was_prepared_starts_before_the_driver_answers(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 4000, 30)])
        await node.run_pod(agent, pod, "main", "id-0")
    node.driver.missing = "is not loaded"
    async with node.running(wait=False) as agent:
        await node.start(agent, "id-0")


async def test_what_lost_its_files_waits_for_the_driver(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 4000, 30)])
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
    node.layout.spec(allocation_id).unlink()
    node.driver.missing = "is not loaded"
    monkeypatch.setattr("hami.agent.allocator._DRIVER_WAIT", 0.05)
    async with node.running(wait=False) as agent:
        with pytest.raises(RefusalError, match="cards are not known"):
            await node.start(agent, "id-0")
        node.driver.missing = ""
        await until(agent.cards.known.is_set)
        await node.start(agent, "id-0")
        assert node.prepared() == {allocation_id}


async def test_killed_between_allocate_and_prestart_the_next_agent_serves(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 4000, 30)])
        allocation_id = allocation_id_of(await node.allocate(agent, pod, "main", "id-0"))
    async with node.running() as agent:
        await node.start(agent, "id-0")
        assert node.limits(allocation_id) == [(CARD, 4000, 30)]


async def test_what_is_recorded_and_not_prepared_is_prepared_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 4000, 30)])
        allocation_id = allocation_id_of(await node.allocate(agent, pod, "main", "id-0"))
        with monkeypatch.context() as patch:
            patch.setattr(agent.preparer, "prepare", _fails)
            with pytest.raises(RefusalError, match="no space"):
                await node.start(agent, "id-0")
        assert uid(pod) in node.ledger()
        assert node.prepared() == set()
    async with node.running() as agent:
        await node.start(agent, "id-0")
        assert node.limits(allocation_id) == [(CARD, 4000, 30)]


async def test_nothing_is_prepared_that_is_not_on_disk(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 4000, 30)])
        await node.allocate(agent, pod, "main", "id-0")
        with monkeypatch.context() as patch:
            patch.setattr("hami.node.files.write_atomic", _disk_full)
            with pytest.raises(RefusalError, match="free space"):
                await node.start(agent, "id-0")
        assert not list(node.layout.allocations.glob("*"))
        assert node.ledger() == {}
        await node.start(agent, "id-0")
        assert set(node.ledger()) == {uid(pod)}


async def test_half_a_record_is_none(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 4000, 30)])
        allocation_id = allocation_id_of(await node.allocate(agent, pod, "main", "id-0"))
    draft = node.layout.ledger / ".0123"
    draft.write_bytes(b'{"uid": "uid-p", ')
    async with node.running() as agent:
        assert not draft.exists()
        await node.start(agent, "id-0")
        assert node.limits(allocation_id) == [(CARD, 4000, 30)]


async def test_ids_that_kubelet_gave_to_nobody_start_nothing(node: Node) -> None:
    async with node.running() as agent:
        with pytest.raises(RefusalError, match="to no pod"):
            await node.start(agent, "id-9")


async def test_ids_that_kubelet_gave_to_two_pods_start_nothing(node: Node) -> None:
    async with node.running() as agent:
        for name in "ab":
            pod = node.pod(name, main=[(CARD, 4000, 30)])
            await node.allocate(agent, pod, "main", "id-0")
        with pytest.raises(RefusalError, match="uid-a and uid-b"):
            await node.start(agent, "id-0")


async def test_an_allocation_id_of_another_pod_starts_nothing(node: Node) -> None:
    async with node.running() as agent:
        mine = node.pod("a", main=[(CARD, 4000, 30)])
        (answer,) = await agent.plugin.allocate([("id-a",)])
        node.book.add(uid(mine), "main", ["id-a"], answer)
        await node.start(agent, "id-a")
        other = node.pod("b", main=[(CARD, 8000, 30)])
        node.book.add(uid(other), "main", ["id-b"], answer)
        with pytest.raises(RefusalError, match="cards of pod team/a"):
            await node.start(agent, "id-b")
        assert set(node.ledger()) == {"uid-a"}


async def test_an_allocation_id_of_another_container_starts_nothing(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", init=[(CARD, 1000, 10)], main=[(CARD, 2000, 20)])
        (answer,) = await agent.plugin.allocate([("id-0",)])
        node.book.add(uid(pod), "init", ["id-0"], answer)
        await node.start(agent, "id-0")
        node.book.drop(uid(pod))
        node.book.add(uid(pod), "main", ["id-1"], answer)
        with pytest.raises(RefusalError, match="share of container init"):
            await node.start(agent, "id-1")


async def test_a_container_gets_as_many_cards_as_it_has_ids(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 1000, 10)])
        await node.allocate(agent, pod, "main", "id-0", "id-1")
        with pytest.raises(RefusalError, match="2 devices, its grant has 1"):
            await node.start(agent, "id-0", "id-1")


@pytest.mark.parametrize("answers", [1, 2])
async def test_kubelets_memory_is_asked_again_before_it_is_believed(
    node: Node, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    said = [{"id-0": frozenset({("team", "old", "main")})}] * answers

    async def holders(*_args: object) -> object:
        return said.pop() if said else {"id-0": frozenset({("team", "p", "main")})}

    monkeypatch.setattr(kubelet_api, "holders", holders)
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 1000, 10)])
        await node.allocate(agent, pod, "main", "id-0")
        if answers == 1:
            await node.start(agent, "id-0")
        else:
            with pytest.raises(RefusalError, match="PodResources to team/old"):
                await node.start(agent, "id-0")
            assert node.ledger() == {}


async def test_a_pod_that_comes_after_the_question_is_waited_for(node: Node) -> None:
    async with node.running() as agent:
        (answer,) = await agent.plugin.allocate([("id-0",)])
        node.book.add("uid-p", "main", ["id-0"], answer)
        starting = asyncio.create_task(node.start(agent, "id-0"))
        await until(lambda: agent.late_binding._turns)
        node.pod("p", main=[(CARD, 1000, 10)])
        await starting
        assert set(node.ledger()) == {"uid-p"}


async def test_a_pod_that_the_watch_does_not_bring_is_listed(node: Node) -> None:
    node.api.fault(path="/pods", when=lambda r: r.watches, hang=True, times=None)
    async with node.running(wait=False) as agent:
        await until(lambda: agent.mode.settled)
        pod = node.pod("p", main=[(CARD, 1000, 10)])
        await node.allocate(agent, pod, "main", "id-0")
        await node.start(agent, "id-0")


async def test_a_pod_that_nobody_shows_starts_nothing(node: Node) -> None:
    async with node.running(pod_wait=0.1) as agent:
        (answer,) = await agent.plugin.allocate([("id-0",)])
        node.book.add("uid-p", "main", ["id-0"], answer)
        with pytest.raises(RefusalError, match=r"did not show it .* within 0.1 s"):
            await node.start(agent, "id-0")


async def test_an_ill_card_takes_nobody_new_and_keeps_who_is_there(node: Node) -> None:
    async with node.running() as agent:
        here = node.pod("a", main=[(CARD, 1000, 10)])
        await node.run_pod(agent, here, "main", "id-a")
        agent.cards.health.probed(CARD, "it has left the bus")
        coming = node.pod("b", main=[(CARD, 1000, 10)])
        await node.allocate(agent, coming, "main", "id-b")
        with pytest.raises(RefusalError, match="it has left the bus"):
            await node.start(agent, "id-b")
        await node.start(agent, "id-a")
        other = node.pod("c", main=[(OTHER, 1000, 10)])
        await node.run_pod(agent, other, "main", "id-c")


async def test_a_damaged_checkpoint_stops_nobody_whom_the_ledger_knows(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 1000, 10)])
        await node.run_pod(agent, pod, "main", "id-0")
        await node.allocate(agent, node.pod("q", main=[(CARD, 1000, 10)]), "main", "id-1")
        node.book.write(off=1)
        await node.start(agent, "id-0")
        with pytest.raises(RefusalError, match="checksum"):
            await node.start(agent, "id-1")


async def test_a_whole_card_is_given_without_the_limiter(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, WHOLE, 100)])
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        assert node.env(allocation_id) == {"NVIDIA_VISIBLE_DEVICES": CARD}
        assert not node.layout.policy(allocation_id).exists()


def _fails(*_args: object, **_options: object) -> None:
    raise PrepareError("a file", "no space")


def _disk_full(*_args: object, **_options: object) -> None:
    raise OSError(28, "No space left on device")
