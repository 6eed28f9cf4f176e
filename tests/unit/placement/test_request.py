"""Requests of pods: HAMi's vectors, and clear refusals where HAMi is silent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami.placement import request
from hami.placement.request import Defaults
from hami.vendors.family import CardRequest
from hami.vendors.table import Vendor
from hami.wire.errors import WireError
from tests.builders import CORES, GPU, MEMORY, NVIDIA, PERCENT, VENDORS, container, pod, sidecar


def parse_one(amounts: dict[str, Any], vendor: Vendor = NVIDIA) -> CardRequest | None:
    found = request.parse(pod("p", container("main", **amounts)), (vendor,), Defaults())
    return found.containers[0].cards[0] if found else None


@pytest.mark.parametrize(
    ("amounts", "count", "memory", "percentage", "cores"),
    [
        pytest.param({"gpu": 1}, 1, 0, 100, 0, id="a bare card is the whole card"),
        pytest.param({"gpu": 2, "memory": 4096}, 2, 4096, 0, 0, id="memory"),
        pytest.param({"gpu": 1, "memory": "4k"}, 1, 4000, 0, 0, id="memory with a suffix"),
        pytest.param({"gpu": "1", "percent": 50}, 1, 0, 50, 0, id="percentage"),
        pytest.param({"gpu": 1, "percent": 100}, 1, 0, 100, 0, id="all of it"),
        pytest.param({"gpu": 1, "percent": 0}, 1, 0, 100, 0, id="percentage 0 is none"),
        pytest.param({"gpu": 1, "percent": 0, "memory": 2000}, 1, 2000, 0, 0, id="memory wins"),
        pytest.param(
            {"gpu": 1, "percent": 50, "memory": 2000}, 1, 2000, 0, 0, id="over percentage"
        ),
        pytest.param({"gpu": 1, "memory": 0}, 1, 0, 100, 0, id="memory 0 is none"),
        pytest.param({"gpu": 1, "cores": 50}, 1, 0, 100, 50, id="cores"),
        pytest.param({"gpu": 1, "cores": 101}, 1, 0, 100, 100, id="cores above 100 are 100"),
        pytest.param(
            {"gpu": 1, "memory": "16.0"}, 1, 16, 0, 0, id="a whole number in decimal form"
        ),
        pytest.param({"gpu": "2e0"}, 2, 0, 100, 0, id="a whole number with an exponent"),
    ],
)
def test_a_container_asks_for_cards(
    amounts: dict[str, Any], count: int, memory: int, percentage: int, cores: int
) -> None:
    assert parse_one(amounts) == CardRequest("NVIDIA", count, memory, percentage, cores)


def test_requests_count_where_there_are_no_limits_and_limits_come_first() -> None:
    asking = pod(
        "p", {"name": "c", "resources": {"requests": {GPU: 2, MEMORY: 7}, "limits": {MEMORY: 5}}}
    )
    found = request.parse(asking, VENDORS, Defaults())
    assert found is not None
    assert found.containers[0].cards == (CardRequest("NVIDIA", 2, 5, 0, 0),)


@pytest.mark.parametrize("amounts", [{}, {"gpu": 0}, {"memory": 4096}, {"memory": "junk"}])
def test_a_pod_without_a_count_asks_for_no_card(amounts: dict[str, Any]) -> None:
    assert request.parse(pod("p", container("c", **amounts)), VENDORS, Defaults()) is None


def test_defaults_of_the_vendor_fill_what_is_not_given() -> None:
    vendor = msgspec.structs.replace(NVIDIA, default_memory=5000, default_cores=30)
    assert parse_one({"gpu": 1}, vendor) == CardRequest("NVIDIA", 1, 5000, 0, 30)
    assert parse_one({"gpu": 1, "percent": 10}, vendor) == CardRequest("NVIDIA", 1, 0, 10, 30)
    assert parse_one({"gpu": 1, "cores": 0}, vendor) == CardRequest("NVIDIA", 1, 5000, 0, 0)


def test_memory_is_counted_in_units_of_the_memory_factor() -> None:
    vendor = msgspec.structs.replace(NVIDIA, memory_factor=1024)
    assert parse_one({"gpu": 1, "memory": 16}, vendor) == CardRequest("NVIDIA", 1, 16384, 0, 0)
    with pytest.raises(WireError, match=r"units of 1024 MiB, for example 16 for 16 GiB"):
        parse_one({"gpu": 1, "memory": 2**21}, vendor)


@pytest.mark.parametrize(
    ("amounts", "resource", "parts"),
    [
        pytest.param({"gpu": "1.5"}, GPU, ["'1.5'", "whole number"], id="count 1.5"),
        pytest.param({"gpu": 1.5}, GPU, ["1.5", "whole number"], id="count 1.5 as a number"),
        pytest.param({"gpu": "500m"}, GPU, ["'500m'", "whole number"], id="count 500m"),
        pytest.param({"gpu": "-1"}, GPU, ["'-1'", "0"], id="count -1"),
        pytest.param({"gpu": "1" + "0" * 30}, GPU, ["2147483647"], id="count 10^30"),
        pytest.param({"gpu": 10**30}, GPU, ["2147483647"], id="count 10^30 as a number"),
        pytest.param({"gpu": "junk"}, GPU, ["'junk'"], id="count junk"),
        pytest.param(
            {"gpu": 1, "memory": "16Gi"}, MEMORY, ["'16Gi'", "16384 for 16 GiB"], id="16Gi"
        ),
        pytest.param({"gpu": 1, "memory": "16.0Gi"}, MEMORY, ["'16.0Gi'", "MiB"], id="16.0Gi"),
        pytest.param({"gpu": 1, "memory": "-5"}, MEMORY, ["'-5'"], id="negative memory"),
        pytest.param(
            {"gpu": 1, "memory": 2**31}, MEMORY, ["2147483648"], id="memory beyond 32 bits"
        ),
        pytest.param({"gpu": 1, "percent": 101}, PERCENT, ["101", "1 to 100"], id="percentage 101"),
        pytest.param({"gpu": 1, "percent": -1}, PERCENT, ["-1", "1 to 100"], id="percentage -1"),
        pytest.param({"gpu": 1, "cores": "0.5"}, CORES, ["'0.5'", "1 to 100"], id="half a percent"),
        pytest.param({"gpu": 1, "cores": -1}, CORES, ["-1"], id="negative cores"),
    ],
)
def test_a_bad_amount_is_refused_by_container_resource_value_rule_and_remedy(
    amounts: dict[str, Any], resource: str, parts: list[str]
) -> None:
    with pytest.raises(WireError) as refusal:
        parse_one(amounts)
    text = str(refusal.value)
    assert text.startswith(f"container main, {resource}: ")
    for part in parts:
        assert part in text
    assert refusal.value.remedy
    assert len(text) < 300


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        pytest.param(
            "node-scheduler-policy", "binpak", "binpack, spread", id="unknown node policy"
        ),
        pytest.param(
            "node-scheduler-policy", "mutex", "binpack, spread", id="a card policy for nodes"
        ),
        pytest.param("gpu-scheduler-policy", "best", "binpack, spread, mutex", id="unknown policy"),
        pytest.param("gpu-scheduler-policy", "numa,best", "'best'", id="in a chain"),
        pytest.param("gpu-scheduler-policy", "numa best", "'numa best'", id="no comma"),
        pytest.param("device-scoring-weights", "", "slot=1,core=1,memory=2", id="blank weights"),
        pytest.param("device-scoring-weights", "slot=1,core=1", "once each", id="one missing"),
        pytest.param("device-scoring-weights", "slot=1,slot=1,core=1", "once each", id="one twice"),
        pytest.param("device-scoring-weights", "slot=1,core=1,mem=1", "once each", id="unknown"),
        pytest.param("device-scoring-weights", "slot=0,core=0,memory=0", "all 0", id="all zero"),
        pytest.param(
            "device-scoring-weights", "slot=-1,core=0,memory=1", "negative", id="negative"
        ),
        pytest.param("device-scoring-weights", "slot=1.5,core=0,memory=1", "'1.5'", id="fraction"),
        pytest.param(
            "device-scoring-weights", "slot=9999999999,core=0,memory=1", "32 bits", id="huge"
        ),
        pytest.param("device-scoring-weights", "x" * 10**6, "1000000 characters", id="a megabyte"),
    ],
)
def test_a_bad_policy_or_weight_is_refused_by_its_name(key: str, value: str, parts: str) -> None:
    asking = pod("p", container(gpu=1), annotations={f"hami.io/{key}": value})
    with pytest.raises(WireError) as refusal:
        request.parse(asking, VENDORS, Defaults())
    assert f"hami.io/{key}" in str(refusal.value)
    assert parts in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("key", ["nvidia.com/use-gputype", "nvidia.com/use-gpuuuid"])
def test_a_list_of_wanted_cards_that_names_none_is_refused(key: str) -> None:
    asking = pod("p", container(gpu=1), annotations={key: " , "})
    with pytest.raises(WireError, match=rf"{key}: ' , ' names nothing.*name at least one"):
        request.parse(asking, VENDORS, Defaults())


def test_a_hundred_containers_with_cards_are_a_pod_and_one_more_is_refused() -> None:
    for number in (100, 101):
        asking = pod("p", *(container(f"c{at}", gpu=1) for at in range(number)), container("web"))
        if number == 100:
            assert request.parse(asking, VENDORS, Defaults()) is not None
        else:
            with pytest.raises(WireError, match=r"pod default/p: '101 containers with cards' is"):
                request.parse(asking, VENDORS, Defaults())


@pytest.mark.parametrize("bad", [{"gpu_policy": " "}, {"gpu_policy": "x"}, {"node_policy": "numa"}])
def test_configured_policies_are_checked_when_they_are_set(bad: dict[str, str]) -> None:
    with pytest.raises(WireError, match=r"-scheduler-policy"):
        Defaults(**bad)


def test_a_word_of_a_chain_may_be_written_a_thousand_times() -> None:
    annotations = {"hami.io/gpu-scheduler-policy": "binpack," * 50_000}
    found = request.parse(pod("p", container(gpu=1), annotations=annotations), VENDORS, Defaults())
    assert found is not None
    assert found.gpu_policy.words == ("binpack",)
    assert found.gpu_policy.chain


def test_a_thousand_types_are_taken_and_one_more_is_refused() -> None:
    for number in (1000, 1001):
        annotations = {"nvidia.com/nouse-gputype": ",".join(f"T{at}" for at in range(number))}
        asking = pod("p", container(gpu=1), annotations=annotations)
        if number == 1000:
            assert request.parse(asking, VENDORS, Defaults()) is not None
        else:
            with pytest.raises(WireError, match=r"nouse-gputype: '1001 types' is more than"):
                request.parse(asking, VENDORS, Defaults())


def test_weights_may_come_in_any_order_and_with_spaces() -> None:
    annotations = {"hami.io/device-scoring-weights": " memory = 3 ,slot=1, core=0 "}
    found = request.parse(pod("p", container(gpu=1), annotations=annotations), VENDORS, Defaults())
    assert found is not None
    assert (found.weights.slot, found.weights.core, found.weights.memory) == (1, 0, 3)


def test_selectors_are_lists_of_trimmed_names_and_blank_is_none() -> None:
    annotations = {
        "nvidia.com/use-gputype": " H200 , ,A100,",
        "nvidia.com/nouse-gputype": " , ",
        "nvidia.com/use-gpuuuid": "GPU-1, GPU-2",
        "nvidia.com/vgpu-mode": "  ",
        "nvidia.com/numa-bind": "T",
    }
    found = request.parse(pod("p", container(gpu=1), annotations=annotations), VENDORS, Defaults())
    assert found is not None
    selector = found.selectors["NVIDIA"]
    assert selector.use_types == ("H200", "A100")
    assert selector.nouse_types == ()
    assert selector.use_uuids == {"GPU-1", "GPU-2"}
    assert selector.mode == ""
    assert selector.numa_bind


@pytest.mark.parametrize(
    ("value", "bound"),
    [("1", True), ("true", True), ("TRUE", True), ("0", False), ("yes", False), ("", False)],
)
def test_numa_bind_is_a_go_boolean(value: str, *, bound: bool) -> None:
    annotations = {"nvidia.com/numa-bind": value}
    found = request.parse(pod("p", container(gpu=1), annotations=annotations), VENDORS, Defaults())
    assert found is not None
    assert found.selectors["NVIDIA"].numa_bind is bound


def test_every_container_has_its_place_init_first_and_totals_are_peaks() -> None:
    asking = pod(
        "p",
        container("app1", gpu=1, memory=100, cores=10),
        container("web"),
        container("app2", gpu=2, memory=50, cores=5),
        init=[
            container("prepare", gpu=4, memory=60, cores=1),
            sidecar("log", gpu=1, memory=10, cores=1),
        ],
    )
    found = request.parse(asking, VENDORS, Defaults())
    assert found is not None
    assert [c.name for c in found.containers] == ["prepare", "log", "app1", "web", "app2"]
    assert [len(c.cards) for c in found.containers] == [1, 1, 1, 0, 1]
    total = found.totals()["NVIDIA"]
    assert (total.count, total.memory, total.cores) == (4, 240, 21)
