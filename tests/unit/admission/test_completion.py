"""Requests are completed: number of cards, compute of whole cards, runtime."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.builders import CORES, GPU, MEMORY, NVIDIA
from tests.unit.admission import pods
from tests.unit.admission.pods import Door


@pytest.mark.parametrize(
    ("asked", "exclusive"),
    [
        pytest.param({"gpu": 1}, True, id="a card"),
        pytest.param({"gpu": 4}, True, id="several cards"),
        pytest.param({"gpu": 1, "percent": 100}, True, id="all of its memory"),
        pytest.param({"gpu": 1, "percent": 100, "memory": 10}, True, id="percent over memory"),
        pytest.param({"gpu": 1, "percent": 50}, False, id="half of its memory"),
        pytest.param({"gpu": 1, "percent": 0}, False, id="zero percent named"),
        pytest.param({"gpu": 1, "memory": 1000}, False, id="memory"),
        pytest.param({"gpu": 1, "memory": 0}, False, id="zero memory named"),
        pytest.param({"gpu": 1, "cores": 30}, False, id="compute"),
        pytest.param({"gpu": 1, "cores": 0}, False, id="compute without limit"),
        pytest.param({"gpu": 1, "priority": 1}, True, id="a card with priority"),
    ],
)
def test_who_asks_for_a_whole_card_gets_all_of_its_compute(
    asked: dict[str, Any], exclusive: bool
) -> None:
    given = pods.limits(Door().passes(pods.pod(pods.container(**asked))))
    wanted = pods.amounts(**asked)
    assert given == (wanted | {CORES: "100"} if exclusive else wanted)


@pytest.mark.parametrize("part", ["limits", "requests"])
def test_each_amount_counts_in_limits_and_requests(part: str) -> None:
    document = pods.pod(pods.container(gpu=1))
    document["spec"]["containers"][0]["resources"][part][MEMORY] = "1000"
    assert CORES not in pods.limits(Door().passes(document))


def test_a_card_that_is_only_requested_is_limited_as_well() -> None:
    """Otherwise the API server refuses the pod: such resources need a limit."""
    document = pods.pod(pods.container(gpu=2, parts=["requests"]))
    assert pods.asked(pods.defaulted(Door().passes(document))) == {GPU: "2", CORES: "100"}


def test_without_a_name_for_compute_nothing_is_added() -> None:
    door = Door(vendor=pods.renamed(cores=""))
    assert pods.limits(door.passes(pods.pod(pods.container(gpu=1)))) == {GPU: "1"}


def test_without_a_name_for_memory_every_card_is_a_whole_one() -> None:
    door = Door(vendor=pods.renamed(memory=""))
    document = pods.pod(pods.container(gpu=1, memory=1000))
    assert pods.limits(door.passes(document))[CORES] == "100"


def test_without_a_name_for_percentages_they_do_not_count() -> None:
    door = Door(vendor=pods.renamed(memory_percentage=""))
    document = pods.pod(pods.container(gpu=1, memory=1000, percent=100))
    assert CORES not in pods.limits(door.passes(document))


@pytest.mark.parametrize(
    "asked", [{"memory": 1000}, {"percent": 50}, {"cores": 30}, {"memory": 1000, "cores": 30}]
)
def test_a_share_without_a_number_of_cards_is_of_one_card(asked: dict[str, Any]) -> None:
    through = Door().passes(pods.pod(pods.container(**asked)))
    assert pods.limits(through) == pods.amounts(gpu=1, **asked)
    assert through["spec"]["schedulerName"] == "hami-scheduler"


def test_all_of_the_memory_without_a_number_of_cards_is_a_whole_card() -> None:
    given = pods.limits(Door().passes(pods.pod(pods.container(percent=100))))
    assert given == pods.amounts(gpu=1, percent=100, cores=100)


def test_the_number_of_cards_by_default_is_configuration() -> None:
    three = msgspec.structs.replace(NVIDIA, default_count=3)
    document = pods.pod(pods.container(memory=1000))
    assert pods.limits(Door(vendor=three).passes(document))[GPU] == "3"
    off = msgspec.structs.replace(NVIDIA, default_count=0)
    assert Door(vendor=off).leaves(document)


def test_a_number_that_is_requested_goes_before_the_default() -> None:
    document = pods.pod(pods.container(memory=1000, parts=["limits"]))
    document["spec"]["containers"][0]["resources"]["requests"] = {GPU: "2"}
    assert pods.limits(Door().passes(document)) == {GPU: "2", MEMORY: "1000"}


def test_zero_cards_that_are_requested_stay_zero() -> None:
    document = pods.pod(pods.container(memory=1000, parts=["limits"]))
    document["spec"]["containers"][0]["resources"]["requests"] = {GPU: "0"}
    assert Door().leaves(document)


@pytest.mark.parametrize("asked", [{"priority": 1}, {"gpu": 0, "memory": 1000}])
def test_neither_priority_nor_zero_cards_ask_for_one(asked: dict[str, Any]) -> None:
    assert Door().leaves(pods.pod(pods.container(**asked)))


def test_every_container_is_completed_for_itself() -> None:
    document = pods.pod(
        pods.container("whole", gpu=1),
        pods.container("none"),
        pods.container("share", memory=1000),
        init=[pods.container("init", gpu=1, percent=100), pods.container("no")],
    )
    through = Door().passes(document)
    assert [pods.limits(through, place) for place in range(3)] == [
        pods.amounts(gpu=1, cores=100),
        {},
        pods.amounts(gpu=1, memory=1000),
    ]
    assert [pods.limits(through, place, key="initContainers") for place in range(2)] == [
        pods.amounts(gpu=1, percent=100, cores=100),
        {},
    ]


class TestTheRuntimeClass:
    door = Door(nvidia={"runtime_class_name": "nvidia"})

    def test_is_set_on_pods_with_cards(self) -> None:
        through = self.door.passes(pods.pod(pods.container(gpu=1)))
        assert through["spec"]["runtimeClassName"] == "nvidia"

    def test_of_the_pods_own_choice_stays(self) -> None:
        document = pods.pod(pods.container(gpu=1), runtimeClassName="kata")
        assert self.door.passes(document)["spec"]["runtimeClassName"] == "kata"

    def test_is_not_set_on_other_pods(self) -> None:
        assert self.door.leaves(pods.pod(pods.container()))

    def test_is_not_set_where_none_is_configured(self) -> None:
        through = Door().passes(pods.pod(pods.container(gpu=1)))
        assert "runtimeClassName" not in through["spec"]
