"""A node that changes between /filter and /bind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hami.scheduler.placer import Placer
from hami.wire import node_marks, node_register
from hami.wire.node_register import RegisteredCard
from tests import builders
from tests.builders import GPU, NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig

ALLOCATED = NVIDIA.annotations.allocated
LOCK = "hami.io/mutex.lock"

Change = Callable[[RegisteredCard], RegisteredCard | None]


def unhealthy(card: RegisteredCard) -> RegisteredCard:
    return msgspec.structs.replace(card, health=False)


def smaller(card: RegisteredCard) -> RegisteredCard:
    return msgspec.structs.replace(card, devmem=500)


def not_shared(card: RegisteredCard) -> RegisteredCard:
    return msgspec.structs.replace(card, count=0)


def without_compute(card: RegisteredCard) -> RegisteredCard:
    return msgspec.structs.replace(card, devcore=10)


def cut_into_instances(card: RegisteredCard) -> RegisteredCard:
    return msgspec.structs.replace(card, mode="mig")


def removed(_: RegisteredCard) -> None:
    return None


CHANGES: dict[str, tuple[Change, str]] = {
    "left the node": (removed, "NodeInsufficientDevice|node unregistered|Device type not found"),
    "is not healthy": (unhealthy, "CardNotHealth"),
    "has less memory": (smaller, "CardInsufficientMemory"),
    "may be shared less": (not_shared, "CardTimeSlicingExhausted"),
    "has less compute": (without_compute, "CardInsufficientCore"),
    "is cut into instances": (cut_into_instances, "CardMigTopologyInfeasible"),
}


def register(api: ScriptedApi, change: Change, *, held: str, cards: int, late: bool) -> None:
    """Write the node's cards again, the held one changed."""
    found = api.find("nodes", "a")
    assert found is not None
    before = builders.cards("a", cards)
    changed = [change(card) if card.id == held else card for card in before]
    value = node_register.encode_json([card for card in changed if card is not None])
    annotations = found["metadata"]["annotations"]
    annotations[NVIDIA.annotations.register] = value
    if late:
        annotations[NVIDIA.annotations.binding] = node_marks.late_binding_mark(value)
    api.put(found)


async def decided(replica: rig.Replica, name: str = "p", **pod: Any) -> dict[str, Any]:
    """Create a pod and have it placed on node a; returns it."""
    made = rig.pod(name, **pod)
    made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] = "30"
    stored = replica.api.put(made)
    assert (await replica.filter(stored, ["a"]))["NodeNames"] == ["a"]
    return stored


def held_card(replica: rig.Replica, pod: dict[str, Any]) -> str:
    info = replica.scheduler.watched.cluster.pods[pod["metadata"]["uid"]]
    ((_, ((share,),)),) = info.shares
    return share.card


def written(api: ScriptedApi, name: str = "p") -> str:
    found = api.find("pods", name)
    assert found is not None
    return str(found["metadata"].get("annotations", {}).get(ALLOCATED, ""))


@pytest.mark.parametrize(("change", "_reason"), CHANGES.values(), ids=CHANGES)
async def test_a_pod_gets_another_card_if_its_own(change: Change, _reason: str) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api) as replica:
            pod = await decided(replica)
            lost = held_card(replica, pod)
            register(api, change, held=lost, cards=2, late=True)
            await replica.seen()
            assert await replica.bind(pod, "a") == ""
            (other,) = {card.id for card in builders.cards("a", 2)} - {lost}
            assert written(api) == f"{other},NVIDIA,1000,30:;"
            await replica.seen()
            assert sum(replica.used("a")) == 1000


@pytest.mark.parametrize(("change", "reason"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("late", [True, False], ids=["late", "lock"])
async def test_a_pod_is_refused_if_its_only_card(change: Change, reason: str, late: bool) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=late))
        async with rig.running(api) as replica:
            pod = await decided(replica)
            register(api, change, held=held_card(replica, pod), cards=1, late=late)
            await replica.seen()
            error = await replica.bind(pod, "a")
            assert any(word in error for word in reason.split("|")), error
            assert "kube-scheduler chooses a node again" in error
            assert written(api) == ""
            assert api.sent("POST", "/binding") == []
            assert len(replica.scheduler.assumed_pods) == 0
            node = api.find("nodes", "a")
            assert node is not None
            assert not node["metadata"]["annotations"].get(LOCK)


async def test_a_pod_is_refused_if_its_node_is_deleted() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(rig.node("b"))
        async with rig.running(api) as replica:
            pod = await decided(replica)
            api.remove("nodes", "a")
            await replica.seen()
            assert "node a" in await replica.bind(pod, "a")
            assert written(api) == ""


async def test_a_pod_is_refused_if_kubelet_offers_no_device_ids_any_more() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            pod = await decided(replica)
            node = api.find("nodes", "a")
            assert node is not None
            node["status"]["allocatable"][GPU] = "0"
            api.put(node)
            await replica.seen()
            assert "node unregistered" in await replica.bind(pod, "a")
            assert written(api) == ""


def foreign(name: str, card: str, memory: int) -> dict[str, Any]:
    """Make a pod that HAMi's scheduler has put on a card."""
    pod = rig.pod(name, memory=memory)
    pod["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "a",
        ALLOCATED: f"{card},NVIDIA,{memory},0:;",
    }
    pod["spec"]["nodeName"] = "a"
    return pod


@pytest.mark.parametrize("cards", [1, 2])
async def test_a_pod_whose_room_another_scheduler_gave_away_moves_or_is_refused(
    cards: int,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=cards))
        async with rig.running(api) as replica:
            pod = await decided(replica)
            lost = held_card(replica, pod)
            api.put(foreign("other", lost, 7500))
            await replica.seen()
            error = await replica.bind(pod, "a")
            if cards == 1:
                assert "CardInsufficientMemory" in error
                assert written(api) == ""
            else:
                assert error == ""
                assert lost not in written(api)


async def test_a_pod_is_refused_if_its_namespace_may_not_have_as_much_any_more() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            pod = await decided(replica)
            api.put(
                {
                    "kind": "ResourceQuota",
                    "metadata": {"name": "q", "namespace": "default"},
                    "spec": {"hard": {"limits.nvidia.com/gpumem": "999"}},
                }
            )
            await replica.seen()
            assert "ResourceQuotaNotFit" in await replica.bind(pod, "a")
            assert written(api) == ""


@pytest.mark.parametrize("cards", [1, 2])
async def test_a_bind_looks_again_after_it_has_waited_for_the_lock(cards: int) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=cards, late=False))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("first", memory=100))
            pod = await decided(replica)
            lost = held_card(replica, pod)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await rig.eventually(lambda: len(replica.scheduler.binder._queue) == 1)
            register(api, removed, held=lost, cards=cards, late=False)
            await replica.seen()
            node = api.find("nodes", "a")
            assert node is not None
            del node["metadata"]["annotations"][LOCK]
            api.put(node)
            error = await asyncio.wait_for(bind, rig.PATIENCE_S)
            assert bool(error) is (cards == 1), error
            assert lost not in written(api)
            assert bool(written(api)) is (cards == 2)


@pytest.mark.parametrize("cards", [1, 2])
async def test_a_bind_checks_its_cards_again_after_it_has_waited_for_a_connection(
    cards: int,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=cards))
        async with rig.running(api) as replica:
            gate, sent = asyncio.Event(), asyncio.Event()
            api.fault(method="POST", path="/binding", gate=gate, on_hit=sent.set)
            free = replica.scheduler.client._connections._free = asyncio.Semaphore(1)
            first = api.put(rig.pod("first", memory=100))
            assert (await replica.filter(first))["NodeNames"] == ["a"]
            blocking = asyncio.create_task(replica.bind(first, "a"))
            await asyncio.wait_for(sent.wait(), rig.PATIENCE_S)
            pod = await decided(replica)
            lost = held_card(replica, pod)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await rig.eventually(lambda: bool(free._waiters))
            register(api, removed, held=lost, cards=cards, late=True)
            await replica.seen()
            gate.set()
            await asyncio.wait_for(blocking, rig.PATIENCE_S)
            error = await asyncio.wait_for(bind, rig.PATIENCE_S)
            assert bool(error) is (cards == 1), error
            assert lost not in written(api)


async def test_nothing_is_decided_again_while_the_node_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api) as replica:
            pods = [await decided(replica, f"p{number}") for number in range(4)]
            node = api.find("nodes", "a")
            assert node is not None
            node["metadata"]["labels"] = {"changed": "yes"}
            api.put(node)
            await replica.seen()

            def refuse(*_: object) -> None:
                raise AssertionError

            monkeypatch.setattr(Placer, "decide", refuse)
            for pod in pods:
                assert await replica.bind(pod, "a") == ""
            await replica.seen()
            assert sum(replica.used("a")) == 4000


async def test_a_later_pod_that_shares_the_card_by_the_rules_does_not_displace_an_earlier() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            alone = await decided(
                replica, "alone", annotations={"hami.io/gpu-scheduler-policy": "mutex"}
            )
            beside = await decided(replica, "beside")
            assert await replica.bind(alone, "a") == ""
            assert await replica.bind(beside, "a") == ""
