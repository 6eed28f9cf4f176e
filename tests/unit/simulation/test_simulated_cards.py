"""Simulated cards: what the scheduler reads of them, and what kubelet gets."""

from __future__ import annotations

import asyncio
import datetime as dt
import json

import pytest

from hami.kube.client import Client
from hami.simulation import description, main
from hami.simulation.cards import VendorCards
from hami.simulation.node_annotations import AFTER_ERROR_S, EVERY_S, NodeAnnotations
from hami.simulation.settings import Settings
from hami.vendors import families
from hami.wire import codec, objects
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent.kubelet_rig import Kubelet, short_folder
from tests.unit.kube.following import until
from tests.unit.simulation import rig
from tests.unit.simulation.rig import NODE, Node

NOON = dt.datetime(2026, 1, 1, 12)  # noqa: DTZ001 - a handshake has no zone
MODELS = {
    "T4": (15360, 100, 10),
    "MLU370-X8": (49152, 100, 100),
    "Z100": (32768, 100, 4),
    "S60": (100, 100, 1),
    "S60-shared": (100, 100, 100),
    "MI300X": (196592, 304, 10),
    "BR104": (32768, 100, 1),
    "MR-V100": (32768, 100, 10),
}


def node_of(found: VendorCards) -> objects.Node:
    """Make the Node that a kubelet and the plugin would make."""
    amounts = {name: str(len(devices)) for name, devices in found.offered().items()}
    body = {
        "metadata": {"name": NODE, "annotations": found.register()},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    return codec.decode(json.dumps(body).encode(), objects.Node, what="node")


@pytest.mark.parametrize("model", MODELS)
def test_the_scheduler_reads_the_cards_as_they_were_described(model: str) -> None:
    (found,) = rig.cards(model).values()
    memory, cores, shares = MODELS[model]
    read = families.of(found.vendor).read_cards(node_of(found))
    assert [card.index for card in read] == [0, 1]
    for card in read:
        assert (card.devmem, card.devcore, card.count, card.health) == (memory, cores, shares, True)


def test_ids_stay_the_same_and_differ_between_nodes() -> None:
    first, again = rig.cards("T4")["NVIDIA"], rig.cards("T4")["NVIDIA"]
    other = rig.cards("T4", node="gpu-2")["NVIDIA"]
    assert first == again
    ids = {card.id for each in (first, other) for card in each.cards}
    assert len(ids) == 4
    assert all(card.startswith("GPU-") for card in ids)
    (devices,) = first.offered().values()
    assert [device.id for device in devices][:2] == [f"{first.cards[0].id}-{n}" for n in (0, 1)]


def test_broken_cards_and_numa_nodes_are_as_described() -> None:
    text = "nodes: [{devices: [{model: T4, cards: 4, shares: 2, unhealthy: [1], numaNodes: 2}]}]"
    groups = description.parse(text, rig.VENDORS, source="test").of_node(NODE)
    (found,) = main.cards_of(NODE, groups, rig.VENDORS)
    read = families.of(found.vendor).read_cards(node_of(found))
    assert [card.health for card in read] == [True, False, True, True]
    assert [card.numa for card in read] == [0, 0, 1, 1]
    (devices,) = found.offered().values()
    assert [device.healthy for device in devices] == [True] * 2 + [False] * 2 + [True] * 4


def test_enflames_cards_are_cut_by_profiles_that_divide_them() -> None:
    (value,) = rig.cards("S60-DRS")["Enflame"].register().values()
    assert json.loads(value) == {
        "devices": [
            {"index": "0", "minor": "0", "capacity": 6},
            {"index": "1", "minor": "1", "capacity": 6},
        ],
        "profiles": {"1g.8gb": "0", "2g.16gb": "1", "3g.24gb": "2", "6g.48gb": "3"},
    }


async def test_the_node_shows_registers_and_answered_handshakes() -> None:
    async with ScriptedApi() as api, Client(api.access(), user_agent="test") as client:
        node = Node(api)
        nvidia, dcu = rig.cards("T4", "Z100").values()
        node.annotate({"hami.io/node-handshake": "Requesting_2026-01-01 11:59:59", "mine": "x"})
        waits: list[float] = []
        go = asyncio.Event()

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            await go.wait()
            go.clear()

        keeper = NodeAnnotations(client, NODE, [nvidia, dcu], sleep=sleep, now=lambda: NOON)
        assert keeper.problem
        api.fault(method="GET", path="/nodes/", status=403, reason="Forbidden", times=1)
        running = asyncio.create_task(keeper.run())
        await until(lambda: waits == [AFTER_ERROR_S])
        assert "Forbidden" in keeper.problem or "403" in keeper.problem
        go.set()
        await until(lambda: waits == [AFTER_ERROR_S, EVERY_S])
        assert keeper.problem == ""
        wanted = {
            **nvidia.register(),
            **dcu.register(),
            # NVIDIA's plugin does not answer.
            "hami.io/node-handshake": "Requesting_2026-01-01 11:59:59",
            "hami.io/node-handshake-dcu": "Reported_2026-01-01 12:00:00",
            "hami.io/simulated-devices": "hami.io/node-dcu-register,hami.io/node-handshake-dcu,"
            "hami.io/node-nvidia-register",
            "mine": "x",
        }
        assert node.annotations == wanted
        patches = len(api.sent("PATCH", "/nodes/"))
        go.set()
        await until(lambda: len(waits) == 3)
        assert len(api.sent("PATCH", "/nodes/")) == patches  # nothing differs
        node.annotate({"hami.io/node-handshake-dcu": "Requesting_2026-01-01 12:00:10"})
        go.set()
        await until(lambda: len(waits) == 4)
        assert node.annotations == wanted
        running.cancel()
        later = NodeAnnotations(client, NODE, [dcu], now=lambda: NOON)
        await later.write()  # of another description
        assert not set(nvidia.register()) & set(node.annotations)
        assert set(dcu.register()) < set(node.annotations)
        node.annotate({"hami.io/simulated-devices": "hami.io/node-dcu-register,mine"})
        await later.withdraw()
        assert "mine" in node.annotations
        assert not set(dcu.register()) & set(node.annotations)
        assert "hami.io/simulated-devices" not in node.annotations


async def test_a_whole_process_serves_kubelet_and_leaves_no_card_behind() -> None:
    async with ScriptedApi() as api, Client(api.access(), user_agent="test") as client:
        with short_folder() as folder:
            node = Node(api)
            (found,) = rig.cards("Z100").values()
            settings = Settings(
                node_name=NODE, kubelet_dir=str(folder), metrics_bind_address="127.0.0.1:0"
            )
            simulation = main.Simulation(settings, client, [found])
            kubelet = Kubelet(simulation.layout)
            await kubelet.start()
            stop = asyncio.Event()
            serving = asyncio.create_task(main.serve(simulation, stop))
            registered, plugin = await kubelet.plugin()
            assert registered.resource == "hygon.com/dcunum"
            assert not registered.pre_start_required
            assert len(await kubelet.listed()) == 8
            card = found.cards[0].id
            node.pod("p", {"DCU": [[card]]})
            node.lock("p")
            (answer,) = await plugin.allocate([f"{card}-0"])
            assert dict(answer.envs) == {"HAMI_SIMULATED_DCU": card}
            assert rig.LOCK not in node.annotations
            await until(lambda: simulation.why_not_ready() == "")
            stop.set()
            await serving
            await kubelet.stop()
            assert not list(folder.rglob("simulated-*"))
            assert not set(found.register()) & set(node.annotations)
