"""A node is in service only while kubelet can take up pods with cards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pynvml  # type: ignore[import-untyped]
import pytest

from hami.agent import drain, grant_annotations, node_status, reconciler
from hami.agent.advertise import Service
from hami.agent.cards import node_cards
from hami.agent.errors import RefusalError
from hami.agent.kubelet import registration
from hami.agent.main import Agent
from hami.node.nvml import NvmlError
from hami.node.nvml_library import DriverReplacedError
from hami.wire import annotation_keys, node_register
from hami.wire.objects import Pod
from tests.builders import NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent.kubelet_rig import Kubelet, short_folder
from tests.unit.agent.node_cards import cut
from tests.unit.agent.rig import CARD, NODE, WHOLE, Node, uid
from tests.unit.agent.test_kubelet_link import another_process
from tests.unit.kube.following import until

MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
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


def test_a_kubelet_that_comes_and_goes_is_not_reported_each_time() -> None:
    now = 0.0
    service = Service(clock=lambda: now, random=lambda: 1.0)
    returns: list[float] = []
    while now < 600:
        # Away for a moment every two seconds.
        possible = now % 2 >= 0.5
        if service.wait(possible=possible) == 0.0 and (not returns or now - returns[-1] > 2):
            returns.append(now)
        now += 0.25
    assert returns == [0.5, 3.0, 5.5]
    # Calm for a while: it is back, and the next return is at once.
    for _second in range(200):
        now += 1
        last = service.wait(possible=True)
    assert last == 0.0
    assert service.wait(possible=False) is None
    assert service.wait(possible=True) == 0.0


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


async def test_an_agent_ends_without_the_api_server_and_says_so(
    machine: Node,
    kubelet: Kubelet,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(node_status, "_WITHDRAW_S", 0.05)
    async with machine.running(drain_timeout=0.05) as agent:
        await kubelet.plugin()
        await until(lambda: in_service(machine))
        machine.api.fault(status=503, times=None)
        await machine.stop(agent)
    (record,) = [each for each in caplog.records if "in time" in each.getMessage()]
    assert "out of service" in record.getMessage()


async def test_an_agent_waits_for_the_last_container_of_a_pod(
    machine: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.running() as agent:
        _, client = await kubelet.plugin()
        await until(lambda: in_service(machine))
        pod = machine.pod("p", init=[PART], main=[PART])
        await machine.seen(agent)
        looks = counted_looks(agent, monkeypatch)
        ending = asyncio.create_task(machine.stop(agent))
        for number, container in enumerate(("init", "main")):
            seen = len(looks)
            await until(lambda seen=seen: ending.done() or len(looks) > seen + 3)  # type: ignore[misc]
            assert not ending.done()
            (answer,) = await client.allocate([f"id-{number}"])
            machine.checkpoint.add(uid(pod), container, [f"id-{number}"], answer)  # type: ignore[arg-type]
        await ending


async def test_an_agent_waits_for_pods_that_its_watch_does_not_show(
    machine: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.running() as agent:
        _, client = await kubelet.plugin()
        await until(lambda: in_service(machine))
        broken = machine.api.fault(
            path="/pods", when=lambda request: request.watches, hang=True, times=None
        )
        machine.api.close_watches()
        await until(lambda: broken.hits)
        pod = machine.pod("p", main=[PART])
        looks = counted_looks(agent, monkeypatch)
        ending = asyncio.create_task(machine.stop(agent))
        await until(lambda: ending.done() or any(looks))
        assert not ending.done()
        (answer,) = await client.allocate(["id-0"])
        machine.checkpoint.add(uid(pod), "main", ["id-0"], answer)  # type: ignore[arg-type]
        await ending


async def test_an_agent_that_has_just_started_waits_until_it_knows_its_pods(
    machine: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = machine.pod("p", main=[PART])
    gate = asyncio.Event()
    machine.api.fault(path="/pods", gate=gate, times=None)
    async with machine.running(wait=False) as agent:
        _, client = await kubelet.plugin()
        looks = counted_looks(agent, monkeypatch)
        ending = asyncio.create_task(machine.stop(agent))
        await until(lambda: ending.done() or len(looks) > 3)
        assert not ending.done()
        gate.set()
        await until(lambda: any(looks))
        (answer,) = await client.allocate(["id-0"])
        machine.checkpoint.add(uid(pod), "main", ["id-0"], answer)  # type: ignore[arg-type]
        await ending


@pytest.mark.parametrize("how", ["running", "mirror", "without cards"])
async def test_an_agent_does_not_wait_for_pods_that_kubelet_will_not_ask_for(
    machine: Node, kubelet: Kubelet, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine.running(drain_timeout=60.0) as agent:
        await kubelet.plugin()
        pod = machine.pod("p", main=[PART])
        if how == "running":
            machine.change(pod, phase="Running")
        elif how == "mirror":
            machine.change(pod, {"kubernetes.io/config.mirror": "0123"})
        else:
            stored = machine.stored(pod)
            stored["spec"]["containers"][0]["resources"] = {}
            machine.api.put(stored)
        await machine.seen(agent)
        await machine.stop(agent)
    assert not [each for each in caplog.records if "in time" in each.getMessage()]


async def test_an_agent_waits_for_pods_with_mig_devices(
    machine: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.kubelet = False
    machine.driver.listed[1] = cut(1, 1, 2)
    async with machine.running(mig_strategy="mixed") as agent:
        await until(lambda: in_service(machine))
        pod = machine.pod("p", main=[], annotations={annotation_keys.SIGNED_DEVICES: None})
        stored = machine.stored(pod)
        stored["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
        machine.api.put(stored)
        await machine.seen(agent)
        looks = counted_looks(agent, monkeypatch)
        ending = asyncio.create_task(machine.stop(agent))
        await until(lambda: ending.done() or len(looks) > 3)
        assert not ending.done()
        machine.change(pod, phase="Running")
        await ending


def counted_looks(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> list[list[Pod]]:
    """Return a list that gets what the drain waits for, whenever it looks."""
    looks: list[list[Pod]] = []
    missing = agent.drain._missing

    def counted() -> list[Pod]:
        looks.append(missing())
        return looks[-1]

    monkeypatch.setattr(agent.drain, "_missing", counted)
    return looks


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


async def test_an_agent_whose_place_is_taken_while_it_ends_leaves_the_node_to_the_other(
    machine: Node, kubelet: Kubelet
) -> None:
    async with machine.running() as agent:
        await kubelet.plugin()
        await until(lambda: in_service(machine))
        machine.pod("p", main=[PART])
        await machine.seen(agent)
        ending = asyncio.create_task(machine.stop(agent))
        await until(lambda: not in_service(machine))
        async with another_process(machine.layout.device_plugins / "nvidia-gpu.sock"):
            await ending  # the other agent serves kubelet now
            assert MARK in machine.node_says()


async def test_an_agent_whose_successor_died_serves_again(
    machine: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_ENDED_AFTER", 0.0)
    async with machine.running() as agent:
        await kubelet.plugin()
        await until(lambda: in_service(machine))
        async with another_process(machine.layout.device_plugins / "nvidia-gpu.sock"):
            await until(lambda: agent.registration.taken_over)
        await kubelet.plugin()
        await until(lambda: agent.registration.watched)
        await until(lambda: in_service(machine))


async def test_an_agent_whose_successor_died_counts_the_pods_of_the_other(
    machine: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_ENDED_AFTER", 0.0)
    async with machine.running() as agent:
        await kubelet.plugin()
        first = machine.pod("first", main=[(CARD, WHOLE // 2, 50)])
        await machine.run_pod(agent, first, "main", "id-0")
        async with another_process(machine.layout.device_plugins / "nvidia-gpu.sock"):
            await until(lambda: agent.registration.taken_over)
            others = machine.pod("others", main=[(CARD, WHOLE // 2, 50)])
            await machine.seen(agent)
            record = machine.layout.record(uid(first)).read_text()
            machine.layout.record(uid(others)).write_text(
                record.replace(uid(first), uid(others)).replace('"first"', '"others"')
            )
        await kubelet.plugin()
        await until(lambda: not agent.registration.taken_over)
        last = machine.pod("last", main=[(CARD, WHOLE // 2, 50)])
        await machine.seen(agent)
        with pytest.raises(RefusalError, match="only what fits by this node"):
            await machine.run_pod(agent, last, "main", "id-2")


async def test_an_agent_whose_place_was_taken_changes_neither_pods_nor_files(
    machine: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_ENDED_AFTER", 0.0)
    monkeypatch.setattr(reconciler, "_EVERY", 0.01)
    monkeypatch.setattr(grant_annotations, "_EVERY_S", 0.01)
    async with machine.running() as agent:
        await kubelet.plugin()
        ended, running = machine.pod("ended", main=[PART]), machine.pod("running", main=[PART])
        waiting = machine.pod("waiting", main=[PART])
        freed = await machine.run_pod(agent, ended, "main", "id-0")
        kept = await machine.run_pod(agent, running, "main", "id-1")
        await machine.allocate(agent, waiting, "main", "id-2")
        await until(lambda: all(each["told"] for each in machine.ledger().values()))
        async with another_process(machine.layout.device_plugins / "nvidia-gpu.sock"):
            await until(lambda: agent.registration.taken_over)
            machine.remove(ended)
            machine.resize(running, [(CARD, 5000, 30)])
            machine.change(running, {annotation_keys.ASSIGNED_NODE: "elsewhere"})
            await machine.seen(agent)
            sent = len(machine.api.sent("PATCH", "/pods/"))
            with pytest.raises(RefusalError, match="another agent serves this node"):
                await machine.start(agent, "id-2")
            await agent.reconciler.release_deleted_pods()
            await agent.reconciler.recover_and_clean_up()
            await agent.grant_annotations.restore()
            assert set(machine.ledger()) == {uid(ended), uid(running)}
            assert machine.layout.policy(freed).exists()
            assert machine.limits(kept) == [PART]
            assert len(machine.api.sent("PATCH", "/pods/")) == sent
        await until(lambda: set(machine.ledger()) == {uid(running)})
        await until(lambda: machine.limits(kept) == [(CARD, 5000, 30)])
        await until(lambda: machine.says(running)[annotation_keys.ASSIGNED_NODE] == NODE)
        await machine.start(agent, "id-2")


async def test_an_agent_whose_driver_was_replaced_ends_in_order(
    machine: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = breaking_driver(monkeypatch)
    async with machine.running() as agent:
        _, client = await kubelet.plugin()
        await until(lambda: in_service(machine))
        pod = machine.pod("p", main=[PART])
        await machine.seen(agent)
        looks = counted_looks(agent, monkeypatch)
        machine.driver.missing, machine.driver.code = "is of another version", MISMATCH
        broken.set()
        await until(lambda: len(looks) > 3)
        assert not in_service(machine)
        # kubelet can take up what is bound already.
        assert any(device.healthy for device in agent.device_list.devices)
        (answer,) = await client.allocate(["id-0"])
        machine.checkpoint.add(uid(pod), "main", ["id-0"], answer)  # type: ignore[arg-type]
        failure = await machine.failure(agent)
    assert isinstance(failure, ExceptionGroup)
    assert [type(error) for error in failure.exceptions] == [DriverReplacedError]
    assert not in_service(machine)
    assert MARK not in machine.node_says()


async def test_an_agent_without_cards_ends_the_service_that_a_killed_one_left(
    machine: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.running():
        await until(lambda: in_service(machine))
    assert in_service(machine)  # killed
    answer = threading.Event()
    monkeypatch.setattr(machine.driver, "open", lambda *_: answer.wait())
    try:
        async with machine.running(wait=False) as agent:
            await until(lambda: agent.node_status.node() is not None)
            await machine.stop(agent)
    finally:
        answer.set()
    assert not in_service(machine)
    assert CARD in machine.node_says()[REGISTER]
    assert MARK not in machine.node_says()


@pytest.mark.parametrize("call", ["open", "cards", "close"])
async def test_an_agent_ends_while_its_driver_hangs(
    machine: Node, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(node_cards, "_CLOSE_WITHIN", 0.01)
    machine.kubelet = False
    hanging: list[threading.Thread] = []
    answer = threading.Event()

    def hang(*_args: object) -> None:
        hanging.append(threading.current_thread())
        answer.wait()

    monkeypatch.setattr(machine.driver, call, hang)
    try:
        async with machine.running(wait=call == "close") as agent:
            await until(lambda: call == "close" or hanging)
            await machine.stop(agent)
        # Python waits at its end for every other thread.
        assert [each.daemon for each in hanging] == [True]
    finally:
        answer.set()


async def test_a_driver_that_seems_replaced_once_costs_no_card(
    machine: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = breaking_driver(monkeypatch)
    async with machine.running() as agent:
        await kubelet.plugin()
        await until(lambda: in_service(machine))
        await machine.seen(agent)
        before = len(machine.api.sent("PATCH", f"/nodes/{NODE}"))
        opened = machine.driver.opened
        broken.set()
        await until(lambda: machine.driver.opened > opened)
        await until(lambda: not agent.cards.missing)
        assert len(machine.api.sent("PATCH", f"/nodes/{NODE}")) == before
        assert not machine.events("GPUDriverMissing")


def breaking_driver(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return an event that lets the driver say once that it is not the library's."""
    broken = asyncio.Event()

    async def watch(*_args: object) -> None:
        await broken.wait()
        broken.clear()
        raise NvmlError("the driver", "went away", "load it", code=MISMATCH)

    monkeypatch.setattr("hami.agent.cards.health.watch", watch)
    return broken
