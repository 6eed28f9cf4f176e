"""Allocate of simulated plugins: the pod that is served, and how its start ends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from hami.agent.errors import RefusalError
from hami.kube.client import Client
from hami.simulation import description, endings, main
from hami.simulation.endings import Ending
from hami.vendors import table
from hami.wire import annotation_keys
from tests.scripted_api.server import ScriptedApi
from tests.unit.simulation import rig
from tests.unit.simulation.rig import LOCK, Node

PHASE = annotation_keys.BIND_PHASE
ROWS = {vendor.name: vendor for vendor in rig.VENDORS}
#: A model of each vendor whose plugin follows HAMi's lock.
BY_LOCK = {
    "NVIDIA": "T4",
    "DCU": "Z100",
    "AMD": "MI210",
    "Biren": "BR104",
    "MR-V100": "MR-V100",
    "MR-V50": "MR-V50",
    "BI-V150": "BI-V150",
    "BI-V100": "BI-V100",
}


@contextlib.asynccontextmanager
async def started(*models: str) -> AsyncIterator[tuple[Node, dict[str, Ending]]]:
    async with ScriptedApi() as api, Client(api.access(), user_agent="test") as client:
        node = Node(api)
        yield (
            node,
            {name: endings.of(client, each) for name, each in rig.cards(*models).items()},
        )


def to_allocate(vendor: str) -> str:
    return ROWS[vendor].annotations.to_allocate


def test_each_vendor_that_takes_a_lock_with_a_name_ends_by_it() -> None:
    assert set(BY_LOCK) == {
        vendor.name for vendor in rig.VENDORS if vendor.annotations.lock and vendor.lock_names_pod
    }


@pytest.mark.parametrize("vendor", BY_LOCK)
async def test_the_pod_that_the_lock_names_is_served_to_its_end(vendor: str) -> None:
    async with started(BY_LOCK[vendor]) as (node, plugins):
        node.pod("other", {vendor: [["x"]]})
        node.pod("p", {vendor: [["a", "b"], [], ["c"]]})
        node.lock("p")
        count = ROWS[vendor].resources.count
        assert await plugins[vendor].serve(count, 2) == ("a", "b")
        word = ROWS[vendor].type_word
        assert node.says("p")[to_allocate(vendor)] == f";;c,{word},1000,10:;;"
        assert node.says("p")[PHASE] == "allocating"
        assert node.annotations[LOCK].endswith(",team,p")
        assert await plugins[vendor].serve(count, 1) == ("c",)
        assert set(node.says("p")[to_allocate(vendor)]) == {";"}
        assert node.says("p")[PHASE] == "success"
        assert LOCK not in node.annotations
        assert node.says("p")[ROWS[vendor].annotations.allocated].count(word) == 3
        assert node.says("other")[PHASE] == "allocating"


@pytest.mark.parametrize("order", [("NVIDIA", "DCU"), ("DCU", "NVIDIA")])
async def test_the_second_vendor_of_a_pod_finds_it_without_the_lock(
    order: tuple[str, str],
) -> None:
    async with started("T4", "Z100") as (node, plugins):
        node.pod("p", {"NVIDIA": [["gpu"]], "DCU": [["dcu"]]})
        node.lock("p")
        for vendor in order:
            card = {"NVIDIA": "gpu", "DCU": "dcu"}[vendor]
            assert await plugins[vendor].serve(ROWS[vendor].resources.count, 1) == (card,)
        assert node.says("p")[to_allocate("NVIDIA")] == node.says("p")[to_allocate("DCU")] == ";;"
        assert node.says("p")[PHASE] == "success"
        assert LOCK not in node.annotations


async def test_the_second_vendor_finds_its_pod_while_the_next_one_holds_the_lock() -> None:
    async with started("T4", "Z100") as (node, plugins):
        node.pod("p", {"NVIDIA": [["gpu"]], "DCU": [["dcu"]]})
        node.lock("p")
        await plugins["NVIDIA"].serve("nvidia.com/gpu", 1)
        node.pod("next", {"NVIDIA": [["other"]]})
        node.lock("next")
        assert await plugins["DCU"].serve("hygon.com/dcunum", 1) == ("dcu",)
        assert node.annotations[LOCK].endswith(",team,next")
        assert await plugins["NVIDIA"].serve("nvidia.com/gpu", 1) == ("other",)
        assert LOCK not in node.annotations


async def test_without_a_lock_the_pod_that_was_bound_first_is_served() -> None:
    async with started("T4") as (node, plugins):
        node.pod("running", {"NVIDIA": [["r"]]}, phase="Running")
        node.pod("failed", {"NVIDIA": [["f"]]}, marks={PHASE: "failed"})
        node.pod("elsewhere", {"NVIDIA": [["e"]]}, marks={annotation_keys.ASSIGNED_NODE: "gpu-2"})
        node.pod("first", {"NVIDIA": [["a"]]})
        node.pod("second", {"NVIDIA": [["b"]]})
        assert await plugins["NVIDIA"].serve("nvidia.com/gpu", 1) == ("a",)
        assert await plugins["NVIDIA"].serve("nvidia.com/gpu", 1) == ("b",)
        with pytest.raises(RefusalError, match="no pod that is bound to it waits for 1 of nvidia"):
            await plugins["NVIDIA"].serve("nvidia.com/gpu", 1)


async def test_another_number_of_devices_fails_the_pod_and_releases_its_lock() -> None:
    async with started("T4") as (node, plugins):
        node.pod("p", {"NVIDIA": [["a"]]})
        node.lock("p")
        with pytest.raises(RefusalError, match=r"waits for 2 of nvidia.com/gpu"):
            await plugins["NVIDIA"].serve("nvidia.com/gpu", 2)
        assert node.says("p")[PHASE] == "failed"
        assert LOCK not in node.annotations


async def test_a_list_that_cannot_be_read_refuses_the_call() -> None:
    async with started("T4") as (node, plugins):
        node.pod("p", {}, limits=[{}], marks={to_allocate("NVIDIA"): "a,b:;"})
        node.lock("p")
        with pytest.raises(RefusalError, match="four fields"):
            await plugins["NVIDIA"].serve("nvidia.com/gpu", 1)


async def test_a_lock_is_released_although_other_writers_change_the_node() -> None:
    async with started("T4") as (node, plugins):
        node.pod("p", {"NVIDIA": [["a"]]})
        node.lock("p")
        node.api.fault(method="PATCH", path="/nodes/", status=409, reason="Conflict", times=3)
        await plugins["NVIDIA"].serve("nvidia.com/gpu", 1)
        assert LOCK not in node.annotations


async def test_cambricons_plugin_sets_its_flag_and_removes_its_own_lock() -> None:
    vcore, vmemory = "cambricon.com/mlu.smlu.vcore", "cambricon.com/mlu.smlu.vmemory"
    key = ROWS["MLU"].annotations.lock
    async with started("MLU370-X8") as (node, plugins):
        flags = {"CAMBRICON_DSMLU_ASSIGNED": "false", "CAMBRICON_DSMLU_PROFILE": "0_10_20"}
        node.pod("p", {"MLU": [["m"]]}, limits=[{vcore: "10", vmemory: "20"}], marks=flags)
        node.lock("", key)
        assert await plugins["MLU"].serve(vcore, 10) == ("m",)
        assert node.says("p")["CAMBRICON_DSMLU_ASSIGNED"] == "true"
        assert key not in node.annotations
        # The next pod is bound before kubelet has asked for all that the first one has.
        node.pod("next", {"MLU": [["n"]]}, limits=[{vcore: "10", vmemory: "20"}], marks=flags)
        node.lock("", key)
        assert await plugins["MLU"].serve(vmemory, 20) == ("m",)
        assert node.says("next")["CAMBRICON_DSMLU_ASSIGNED"] == "false"
        assert await plugins["MLU"].serve(vcore, 10) == ("n",)
        assert node.says("next")["CAMBRICON_DSMLU_ASSIGNED"] == "true"
        assert node.says("p")[PHASE] == "allocating"  # Cambricon's plugin does not know it


async def test_enflames_plugin_flags_each_container_and_then_the_pod() -> None:
    slices = "enflame.com/drs-gcu"
    flags = {
        name: {"allocated": False, "request": 1, "profileID": "0", "profileName": "1g.8gb"}
        for name in ("c0", "c1")
    }
    marks = {"enflame.com/gcu-assigned": "false", "assigned-containers": json.dumps(flags)}
    async with started("S60-DRS") as (node, plugins):
        limits = [{slices: "1"}, {slices: "2"}]
        node.pod("p", {"Enflame": [["e"], ["e"]]}, limits=limits, marks=marks)
        await plugins["Enflame"].serve(slices, 1)
        assert node.says("p")["enflame.com/gcu-assigned"] == "false"
        found = json.loads(node.says("p")["assigned-containers"])
        assert found == {"c0": {**flags["c0"], "allocated": True}, "c1": flags["c1"]}
        await plugins["Enflame"].serve(slices, 2)
        assert node.says("p")["enflame.com/gcu-assigned"] == "true"
        with pytest.raises(RefusalError, match=r"waits for 2 of enflame.com/drs-gcu"):
            await plugins["Enflame"].serve(slices, 2)


async def test_a_plugin_that_knows_no_scheduler_writes_nothing() -> None:
    async with started("S60") as (node, plugins):
        node.pod("p", {"GCU": [["g"]]}, limits=[{"enflame.com/gcu": "1"}])
        before = node.says("p")
        assert await plugins["GCU"].serve("enflame.com/gcu", 1) == ()
        assert node.says("p") == before
        assert not node.api.sent("PATCH", "")


async def test_a_vendor_that_is_one_row_has_the_usual_plugin() -> None:
    row = table.parse(
        """
[[vendor]]
name = "Acme"
section = "acme"
[vendor.resources]
count = "acme.com/npu"
[vendor.annotations]
register = "acme.com/register"
handshake = "acme.com/handshake"
lock = "hami.io/mutex.lock"
to_allocate = "acme.com/to-allocate"
allocated = "acme.com/allocated"
""",
        source="test",
    )
    text = "nodes: [{devices: [{vendor: Acme, model: N1, memory: 100}]}]"
    groups = description.parse(text, row, source="test").of_node("n")
    (found,) = main.cards_of("n", groups, row)
    assert list(found.register()) == ["acme.com/register"]
    assert {name: len(devices) for name, devices in found.offered().items()} == {"acme.com/npu": 10}
    assert isinstance(endings.of(None, found), endings.ByLock)  # type: ignore[arg-type]
