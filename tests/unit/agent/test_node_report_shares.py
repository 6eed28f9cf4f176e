"""gpumem and gpucores in the node's status: kept while wanted, removed while ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hami.agent import advertise, node_status
from hami.kube.client import Client
from hami.vendors import table
from hami.wire import codec, objects, quantity
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent.reporting import (
    REGISTER,
    SHARES,
    change,
    desired,
    node,
    patches,
    reporting,
    says,
    status_patches,
    stored,
)
from tests.unit.kube.following import until

MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
BOTH = f"{CORES},{MEMORY}"
NVIDIA = table.nvidia(table.built_in())
KEYS = NVIDIA.annotations


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with ScriptedApi() as running:
        running.put(node())
        yield running


@pytest.fixture
async def client(api: ScriptedApi) -> AsyncIterator[Client]:
    async with Client(api.access(), user_agent="hami-tests", timeout=30) as made:
        yield made


def amounts(api: ScriptedApi) -> tuple[dict[str, str], dict[str, str]]:
    status = stored(api)["status"]
    return status["capacity"], status["allocatable"]


def write(api: ScriptedApi, **values: str) -> None:
    """Write amounts into the node's status, as kubelet or another plugin would."""
    found = stored(api)
    for place in ("capacity", "allocatable"):
        found["status"][place] |= values
    api.put(found)


async def test_shares_stand_in_capacity_and_allocatable(api: ScriptedApi, client: Client) -> None:
    async with reporting(client) as report:
        desired(report, "[1]", shares={MEMORY: 40960, CORES: 100})
        await until(lambda: report.fulfilled)
    there = {"cpu": "2", MEMORY: "40960", CORES: "100"}
    assert amounts(api) == (there, there)
    assert len(status_patches(api)) == 1
    assert patches(api) == [{"metadata": {"annotations": {REGISTER: "[1]", SHARES: BOTH}}}]


async def test_shares_come_back_after_kubelet_has_zeroed_them(
    api: ScriptedApi, client: Client
) -> None:
    async with reporting(client) as report:
        desired(report, "[1]", shares={MEMORY: 40960, CORES: 100})
        await until(lambda: report.fulfilled)
        write(api, **{MEMORY: "0", CORES: "0"})
        await until(lambda: amounts(api)[0][MEMORY] == "40960")
        await until(lambda: amounts(api)[1][CORES] == "100")
    assert len(status_patches(api)) == 2
    assert len(patches(api)) == 1


async def test_the_same_amount_in_another_form_does_not_differ(
    api: ScriptedApi, client: Client
) -> None:
    """The API server writes 100000 as 100k."""
    write(api, **{MEMORY: "100k"})
    change(api, **{REGISTER: "[1]", SHARES: MEMORY})
    async with reporting(client) as report:
        desired(report, "[1]", shares={MEMORY: 100_000})
        await until(lambda: report.fulfilled)
    assert api.sent("PATCH") == []


async def test_our_shares_go_when_they_are_not_wanted_any_more(
    api: ScriptedApi, client: Client
) -> None:
    write(api, **{MEMORY: "40960", CORES: "100"})
    change(api, **{SHARES: BOTH})
    async with reporting(client) as report:
        desired(report, "[1]", shares=None)
        await until(lambda: report.fulfilled)
    assert amounts(api) == ({"cpu": "2"}, {"cpu": "2"})
    assert says(api) == {REGISTER: "[1]"}


async def test_shares_under_an_old_name_go(api: ScriptedApi, client: Client) -> None:
    write(api, **{"example.com/mem": "5", CORES: "100"})
    change(api, **{SHARES: f"{CORES},example.com/mem"})
    async with reporting(client) as report:
        desired(report, "[1]", shares={MEMORY: 7, CORES: 100})
        await until(lambda: report.fulfilled)
    there = {"cpu": "2", MEMORY: "7", CORES: "100"}
    assert amounts(api) == (there, there)
    assert says(api)[SHARES] == BOTH


async def test_shares_of_others_stay(api: ScriptedApi, client: Client) -> None:
    """HAMi's mock device plugin offers the same names."""
    write(api, **{MEMORY: "40960"})
    async with reporting(client) as report:
        desired(report, "[1]", shares=None)
        await until(lambda: report.fulfilled)
    assert amounts(api)[0][MEMORY] == "40960"
    assert status_patches(api) == []


@pytest.mark.parametrize("name", ["cpu", "kubernetes.io/batteries", "no name", "/"])
async def test_nothing_but_an_extended_resource_is_ever_removed(
    api: ScriptedApi, client: Client, name: str
) -> None:
    write(api, **{name: "2"})
    change(api, **{SHARES: name})
    async with reporting(client) as report:
        desired(report, "[1]")
        await until(lambda: report.fulfilled)
    assert amounts(api)[0][name] == "2"
    assert status_patches(api) == []


async def test_a_status_that_may_not_be_written_keeps_no_annotation_back(
    api: ScriptedApi, client: Client
) -> None:
    fault = api.fault(method="PATCH", path="/status", status=403, reason="Forbidden", times=None)
    async with reporting(client) as report:
        desired(report, "[1]", shares={MEMORY: 1})
        await until(lambda: fault.hits > 1)
        desired(report, "[2]", shares={MEMORY: 1})
        await until(lambda: says(api)[REGISTER] == "[2]")
        assert not report.fulfilled
        api.faults.remove(fault)
        await until(lambda: report.fulfilled)


# Pure.

NAMES = st.sampled_from([MEMORY, CORES, "example.com/mem", "cpu", "odd"])
AMOUNTS = st.sampled_from(["0", "5", "1k", "odd", 7, None])
STATUS = st.none() | st.dictionaries(NAMES, AMOUNTS)
TEXTS = st.sampled_from(["", "[1]", "[2]", BOTH, "cpu,odd", None])


def read(document: dict[str, Any]) -> objects.Node:
    return codec.decode(codec.encode(document), objects.Node, what="node")


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, once more."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged(target.get(key), value)
    return target


@hypothesis.given(
    st.none() | st.dictionaries(st.sampled_from([REGISTER, KEYS.binding, SHARES, "its"]), TEXTS),
    STATUS,
    STATUS,
    st.builds(
        advertise.advertisement,
        st.just(KEYS),
        register=st.none() | st.sampled_from(["[1]", "[2]"]),
        scores=st.none() | st.just("[]"),
        late=st.booleans(),
        lock_reason=st.sampled_from(["", "why"]),
        shares=st.none() | st.dictionaries(st.sampled_from([MEMORY, CORES]), st.integers(0, 2**40)),
    ),
)
def test_whatever_a_node_says_two_rounds_of_patches_put_it_right(
    there: dict[str, str | None] | None,
    capacity: dict[str, Any] | None,
    allocatable: dict[str, Any] | None,
    wanted: node_status.Advertisement,
) -> None:
    document: dict[str, Any] = {
        "metadata": {"name": "n", "annotations": there},
        "status": {"capacity": capacity, "allocatable": allocatable},
    }
    for _ in range(2):
        changes = node_status.annotation_changes(read(document), wanted, KEYS)
        document = merged(document, {"metadata": {"annotations": changes}})
        shares = node_status.share_changes(read(document), wanted, KEYS)
        document = merged(document, {"status": shares})
    found = read(document)
    assert node_status.annotation_changes(found, wanted, KEYS) == {}
    assert node_status.share_changes(found, wanted, KEYS) == {}
    for key, value in wanted.annotations.items():
        assert found.annotations.get(key) == value
    for name, amount in wanted.shares.items():
        for place in (found.capacity, found.allocatable):
            assert quantity.exact_integer(place[name] or "", what=name, high=2**40) == amount
    kept = {name for name in (capacity or {}) if name in {"cpu", "odd"}}
    assert kept <= found.capacity.keys()
    assert found.annotations.get("its") == (there or {}).get("its")
