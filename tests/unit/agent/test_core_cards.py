"""The node's cards: missing driver, lost card, and what kubelet gets of it."""

from __future__ import annotations

import asyncio
import json

import pynvml  # type: ignore[import-untyped]
import pytest

from hami.agent.errors import RefusalError
from hami.node.nvml import GpuProcess, NvmlError
from hami.node.nvml_cards import Problem
from hami.node.nvml_library import DriverReplacedError
from hami.wire import node_register, policy_file
from tests.builders import NVIDIA
from tests.unit.agent.node_cards import card, cut, uuid
from tests.unit.agent.rig import CARD, NODE, OTHER, Node
from tests.unit.kube.following import until

REGISTER = NVIDIA.annotations.register
MARK = NVIDIA.annotations.binding
PART = (CARD, 4000, 30)


def _healthy(node: Node) -> list[bool]:
    register = node.node_says().get(REGISTER, "[]")
    return [device.health for device in node_register.decode_json(register)]


def ids(node_list: object) -> dict[str, bool]:
    return {one.id: one.healthy for one in node_list}  # type: ignore[attr-defined]


async def test_without_a_driver_nothing_is_offered_and_an_event_says_why(node: Node) -> None:
    node.driver.missing = "is not loaded"
    async with node.running(wait=False) as agent:
        await until(lambda: agent.cards.asked and agent.mode.settled)
        assert agent.device_list.devices == ()
        assert "is not loaded" in agent.why_not_ready()
        await until(lambda: node.events("GPUDriverMissing"))
        assert "is not loaded" in node.events("GPUDriverMissing")[0]
        await until(lambda: node.driver.opened > 3)
        assert len(node.events("GPUDriverMissing")) == 1
        assert REGISTER not in node.node_says()
        node.driver.missing = ""
        await until(lambda: MARK in node.node_says())
        assert len(agent.device_list.devices) == 20
        allocation_id = await node.run_pod(agent, node.pod("p", main=[PART]), "main", "id-0")
        assert node.limits(allocation_id) == [PART]


async def test_a_restart_takes_nothing_back_before_the_driver_was_asked(node: Node) -> None:
    async with node.running() as agent:
        await until(lambda: MARK in node.node_says())
        await node.run_pod(agent, node.pod("p", main=[PART]), "main", "id-0")
    before = len(node.api.sent("PATCH", f"/nodes/{NODE}"))
    async with node.running() as agent:
        heard = agent.device_list.watch()
        first = await anext(heard)
        assert sum(one.healthy for one in first) == 20
        await node.start(agent, "id-0")
        await until(lambda: agent.node_status.fulfilled)
    assert len(node.api.sent("PATCH", f"/nodes/{NODE}")) == before


async def test_a_driver_that_goes_away_is_looked_for_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()

    async def watch(*_args: object) -> None:
        await broken.wait()
        raise NvmlError("the driver", "went away", "load it")

    monkeypatch.setattr("hami.agent.cards.health.watch", watch)
    async with node.running() as agent:
        await until(lambda: MARK in node.node_says())
        node.driver.missing = "is not loaded"
        broken.set()
        await until(lambda: REGISTER not in node.node_says())
        await until(lambda: "is not loaded" in agent.why_not_ready())
        broken.clear()
        node.driver.missing = ""
        await until(lambda: MARK in node.node_says())


async def test_a_driver_that_was_replaced_ends_the_agent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()
    mismatch = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH

    async def watch(*_args: object) -> None:
        await broken.wait()
        raise NvmlError("the driver", "went away", "load it", code=mismatch)

    monkeypatch.setattr("hami.agent.cards.health.watch", watch)
    async with node.running() as agent:
        await until(lambda: MARK in node.node_says())
        node.driver.missing, node.driver.code = "is of another version", mismatch
        broken.set()
        failure = await node.failure(agent)
    assert isinstance(failure, ExceptionGroup)
    (error,) = failure.exceptions
    assert isinstance(error, DriverReplacedError)
    assert "is of another version" in str(error)
    assert "kubelet starts it again" in str(error)


async def test_a_library_of_another_version_at_the_start_is_waited_for_and_starts_go_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits, tried = False, 0

    def opens(_root: str) -> bool:
        nonlocal tried
        tried += 1
        return fits

    monkeypatch.setattr("hami.agent.cards.node_cards.opens_in_new_process", opens)
    monkeypatch.setattr("hami.node.nvml_library.MISMATCH_PATIENCE", 0.0)
    async with node.running() as agent:
        await node.run_pod(agent, node.pod("p", main=[PART]), "main", "id-0")
    node.driver.missing = "is of another version"
    node.driver.code = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    async with node.running(wait=False) as agent:
        await until(lambda: tried > 3)
        assert "is of another version" in agent.why_not_ready()
        await node.start(agent, "id-0")  # a container that kubelet restarts
        fits = True
        failure = await node.failure(agent)
    assert isinstance(failure, ExceptionGroup)
    (error,) = failure.exceptions
    assert isinstance(error, DriverReplacedError)


async def test_a_driver_that_opens_but_lists_nothing_with_the_old_library_ends_the_agent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()
    mismatch = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    error = NvmlError("number of GPUs", "is of another version", "", code=mismatch)

    async def watch(*_args: object) -> None:
        await broken.wait()
        raise error

    def cards() -> None:
        raise error

    monkeypatch.setattr("hami.agent.cards.health.watch", watch)
    async with node.running() as agent:
        await until(lambda: MARK in node.node_says())
        monkeypatch.setattr(node.driver, "cards", cards)
        broken.set()
        failure = await node.failure(agent)
    assert isinstance(failure, ExceptionGroup)
    (found,) = failure.exceptions
    assert isinstance(found, DriverReplacedError)


async def test_a_card_that_is_lost_and_comes_back_keeps_its_ids(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", f"{OTHER}-9")
        before = ids(agent.device_list.devices)
        assert sum(before.values()) == 20
        agent.cards.health.probed(CARD, "it has left the bus")
        lost = ids(agent.device_list.devices)
        assert list(lost) == list(before)
        # The one that is held has its share of the lost card; ten places are left, on the other.
        assert not lost[f"{OTHER}-9"]
        assert sum(lost.values()) == 10
        await until(lambda: _healthy(node) == [False, True])
        # The driver does not list it any more: it stays, unhealthy.
        node.driver.listed.pop(0)
        await agent.cards._list(node.driver)  # type: ignore[arg-type]
        assert ids(agent.device_list.devices) == lost
        node.driver.listed.insert(0, card(0))
        agent.cards.health._quarantine = 0
        agent.cards.health._states[CARD].until = 0
        agent.cards.health.probed(CARD, "")
        assert ids(agent.device_list.devices) == before


async def test_held_ids_stay_listed_when_their_card_is_removed(node: Node) -> None:
    async with node.running() as agent:
        await node.run_pod(agent, node.pod("p", main=[PART]), "main", f"{CARD}-3")
        await node.run_pod(agent, node.pod("q", main=[(OTHER, 1000, 0)]), "main", f"{CARD}-4")
    node.driver.listed.pop(0)
    async with node.running() as agent:
        listed = ids(agent.device_list.devices)
        assert listed[f"{CARD}-3"] is False
        assert listed[f"{CARD}-4"] is True
        assert sum(listed.values()) == 10
        assert len(listed) == 12
        await node.start(agent, f"{CARD}-4")


LOST = Problem(
    subject="GPU 0", rule="NVML reports 'GPU is lost' (15)", remedy="it has left the PCIe bus"
)


async def test_a_card_off_the_bus_is_refused_and_its_pods_are_named(node: Node) -> None:
    async with node.running() as agent:
        await node.run_pod(agent, node.pod("a", main=[PART]), "main", "id-0")
        await node.run_pod(agent, node.pod("b", main=[(OTHER, 1000, 0)]), "main", "id-1")
        late = node.pod("late", main=[PART])
        await node.allocate(agent, late, "main", "id-2")
        agent.cards.health.probed(CARD, "NVML reports 'GPU is lost'")
        # The others are in service, and take pods.
        await until(lambda: _healthy(node) == [False, True])
        await node.run_pod(agent, node.pod("c", main=[(OTHER, 1000, 0)]), "main", "id-3")
        with pytest.raises(RefusalError, match=f"{CARD}: is not healthy: .*GPU is lost"):
            await node.start(agent, "id-2")
        await until(lambda: node.events_of("a"))
        (reported,) = node.events_of("a")
        assert CARD in reported
        assert "GPU is lost" in reported
        assert "delete the pod to reschedule it" in reported
        assert not node.events_of("b")
        assert not node.events_of("c")


async def test_a_card_that_is_off_the_bus_at_the_start_leaves_the_others(node: Node) -> None:
    async with node.running() as agent:
        await node.run_pod(agent, node.pod("a", main=[PART]), "main", "id-0")
        await node.run_pod(agent, node.pod("b", main=[(OTHER, 1000, 0)]), "main", "id-1")
    node.driver.listed.pop(0)
    node.driver.problems = (LOST,)
    async with node.running() as agent:
        await until(lambda: _healthy(node) == [True])
        await node.start(agent, "id-1")
        with pytest.raises(RefusalError, match=r"cards any more: .*GPU is lost"):
            await node.start(agent, "id-0")
        await until(lambda: node.events_of("a"))
        assert "GPU is lost" in node.events_of("a")[0]
        assert not node.events_of("b")


async def test_a_replaced_cards_uuid_is_withdrawn_and_its_pods_are_named(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async with node.running() as agent:
        await node.run_pod(agent, node.pod("a", main=[PART]), "main", "id-0")
        await node.run_pod(agent, node.pod("b", main=[(OTHER, 1000, 0)]), "main", "id-1")
    new = card(0, uuid=uuid(7))
    node.driver.listed[0] = new
    async with node.running() as agent:
        await until(lambda: new.uuid in node.node_says()[REGISTER])
        assert CARD not in node.node_says()[REGISTER]
        await until(lambda: node.events_of("a") and node.events("GPUMissing"))
        assert any(
            f"card {CARD}" in each and "team/a" in each for each in node.events("GPUMissing")
        )
        assert "replaced" in node.events_of("a")[0]
        assert not node.events_of("b")
        await node.run_pod(agent, node.pod("c", main=[(new.uuid, 1000, 0)]), "main", "id-2")
        # It is reported once, whatever else changes.
        agent.cards.health.probed(OTHER, "x")
        await until(lambda: node.events_of("b"))
        assert len(node.events_of("a")) == 1
    (logged,) = [each for each in caplog.records if "is missing" in each.message]
    assert (logged.card, logged.pods) == (CARD, ["team/a"])  # type: ignore[attr-defined]


async def test_a_card_that_is_replaced_in_its_slot_while_the_agent_runs_is_withdrawn(
    node: Node,
) -> None:
    async with node.running() as agent:
        await node.run_pod(agent, node.pod("a", main=[PART]), "main", "id-0")
        agent.cards.health.probed(CARD, "it has left the bus")
        await until(lambda: _healthy(node) == [False, True])
        node.driver.listed[0] = new = card(0, uuid=uuid(7))
        await agent.cards._list(node.driver)  # type: ignore[arg-type]
        await until(lambda: _healthy(node) == [True, True])
        assert new.uuid in node.node_says()[REGISTER]
        assert CARD not in node.node_says()[REGISTER]
        await until(lambda: any("replaced" in each for each in node.events_of("a")))


async def test_a_card_with_unified_memory_is_shared_by_the_declared_amount(node: Node) -> None:
    node.driver.listed[:] = [card(0, name="NVIDIA GB10", memory=0)]
    file = node.root / "config.json"
    entry = {"name": NODE, "preconfigureddevicememory": 120_000}
    file.write_text(json.dumps({"nodeconfig": [entry]}))
    async with node.running(node_config_file=str(file)) as agent:
        await until(lambda: _healthy(node) == [True])
        (registered,) = node_register.decode_json(node.node_says()[REGISTER])
        assert (registered.devmem, registered.type) == (120_000, "NVIDIA GB10")
        allocation_id = await node.run_pod(agent, node.pod("p", main=[PART]), "main", "id-0")
        assert node.limits(allocation_id) == [PART]
        too_much = node.pod("q", main=[(CARD, 120_000 - PART[1] + 1, 0)])
        await node.allocate(agent, too_much, "main", "id-1")
        with pytest.raises(RefusalError, match="has 120000 MiB of memory"):
            await node.start(agent, "id-1")


async def test_a_mistake_in_the_nodes_configuration_offers_nothing_and_stops_no_pod(
    node: Node,
) -> None:
    async with node.running() as agent:
        await node.run_pod(agent, node.pod("p", main=[PART]), "main", "id-0")
    file = node.root / "config.json"
    entry = {"name": NODE, "devicesplitcuont": 3}
    file.write_text(json.dumps({"nodeconfig": [entry]}))
    async with node.running(wait=False, node_config_file=str(file)) as agent:
        await until(lambda: agent.mode.settled and agent.cards.asked)
        assert agent.device_list.devices == ()
        assert "devicesplitcuont" in agent.why_not_ready()
        await until(lambda: "devicesplitcuont" in "".join(node.events("NodeConfigWrong")))
        await until(lambda: REGISTER not in node.node_says())
        await node.start(agent, "id-0")


async def test_a_changed_configuration_ends_the_process_in_order(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("hami.agent.cards.node_config._READ_EVERY", 0.01)
    file = node.root / "config.json"
    file.write_text(json.dumps({"nodeconfig": [{"name": NODE, "devicesplitcount": 3}]}))
    async with node.running(node_config_file=str(file)) as agent:
        await until(lambda: MARK in node.node_says())
        assert len(agent.device_list.devices) == 6
        stop, task = node._stops[id(agent)]
        # An entry of another node ends no process here.
        ours, other = {"name": NODE, "devicesplitcount": 3}, {"name": "gpu-2", "wrong": 1}
        file.write_text(json.dumps({"nodeconfig": [ours, other]}))
        await until(lambda: "not for this node" in caplog.text)
        assert not stop.is_set()
        file.write_text(json.dumps({"nodeconfig": [{"name": NODE, "devicesplitcount": 4}]}))
        await until(task.done)
        assert stop.is_set()
        task.result()
    assert MARK not in node.node_says()


async def test_mig_devices_are_resources_of_their_own(node: Node) -> None:
    node.driver.listed[1] = cut(1, 1, 2)
    async with node.running(mig_strategy="mixed") as agent:
        (plugin,) = agent.mig_plugins._plugins.values()
        assert plugin.resource == "nvidia.com/mig-1g.5gb"
        (first, second) = (one.id for one in plugin.list.devices)
        (answer,) = await plugin.allocate([(first,)])
        assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": first}
        (listed,) = answer.mounts
        assert listed.host_path == "/dev/null"
        assert listed.container_path == f"/var/run/nvidia-container-devices/{first}"
        with pytest.raises(RefusalError, match="no MIG device of this node any more"):
            await plugin.allocate([("MIG-gone",)])
        agent.cards.health.probed(OTHER, "it has left the bus")
        assert [one.healthy for one in plugin.list.devices] == [False, False]
        # A removed profile is offered as nothing.
        node.driver.listed[1] = cut(1, 1, profile="2g.10gb")
        await agent.cards._list(node.driver)  # type: ignore[arg-type]
        assert plugin.list.devices == ()
        assert len(agent.mig_plugins._plugins) == 2
        assert second.startswith("MIG-")


async def test_a_mig_device_of_an_unhealthy_card_takes_no_pod(node: Node) -> None:
    node.driver.listed[:] = [cut(0, 1)]
    async with node.running(mig_strategy="single") as agent:
        (part,) = agent.cards.inventory.devices
        pod = node.pod("p", main=[(part.id, 1000, 0)])
        await node.allocate(agent, pod, "main", "id-0")
        agent.cards.health.probed(CARD, "it has left the bus")
        with pytest.raises(RefusalError, match="is not healthy"):
            await node.start(agent, "id-0")


async def test_shares_are_in_the_nodes_status_where_configured(node: Node) -> None:
    async with node.running(advertise_shares=True):
        await until(lambda: "capacity" in (node.api.find("nodes", NODE) or {})["status"])
        status = (node.api.find("nodes", NODE) or {})["status"]
        assert status["capacity"]["nvidia.com/gpumem"] == str(2 * 40 * 1024)


async def test_what_is_not_offered_is_reported_once_and_affects_no_other_card(node: Node) -> None:
    node.driver.listed[1] = cut(1, 1)
    node.driver.problems = (Problem(subject="GPU 2", rule="does not answer", remedy="reset it"),)
    async with node.running() as agent:
        await until(lambda: len(node.events("GPUNotOffered")) == 2)
        await agent.cards._list(node.driver)  # type: ignore[arg-type]
        notes = node.events("GPUNotOffered")
        assert any("does not answer" in one for one in notes)
        assert any("MIG is on" in one for one in notes)
        await until(lambda: _healthy(node) == [True])
        assert len(agent.events._series) == 2


async def test_what_a_context_costs_is_written_into_policies(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami.agent.cards.node_cards._LIST_EVERY", 0.01)  # it needs two lists
    cost = 518 << 20
    node.driver.on_cards = (GpuProcess(pid=7, memory=cost),)
    async with node.running() as agent:
        await until(node.layout.context_costs.exists)
        allocation_id = await node.run_pod(agent, node.pod("p", main=[PART]), "main", "id-0")
    known = policy_file.decode(node.layout.policy(allocation_id).read_bytes())
    assert known.context_bytes == {CARD: cost}
