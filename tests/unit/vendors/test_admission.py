"""Admission by vendor: whose pods are ours, what is added, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hami.admission import decide
from hami.admission.mig_offer import MigOffer
from hami.admission.settings import Context, Rules, unlimited
from hami.cluster.quota import Headroom
from hami.vendors import table
from hami.vendors.device_config import NvidiaSettings
from hami.wire import objects
from tests.builders import pod
from tests.unit.vendors.fleets import container

OURS = "hami-scheduler"


def admitted(made: objects.Pod, *, slices: int = 0, headroom: Any = unlimited) -> Any:
    context = Context(
        rules=Rules(vendors=table.built_in()),
        mig_offer=MigOffer("nvidia.com/gpu"),
        headroom=headroom,
        slices=lambda _: slices,
    )
    return decide.decide(made, context)


def resources(made: objects.Pod | None) -> tuple[dict[str, Any], dict[str, Any]]:
    assert made is not None
    ((_, first),) = made.containers()
    assert first.resources is not None
    return {**(first.resources.limits or {})}, {**(first.resources.requests or {})}


def scheduler(made: objects.Pod | None) -> str | None:
    assert made is not None
    assert made.spec is not None
    return made.spec.scheduler_name


@pytest.mark.parametrize(
    "asked",
    [
        {"hygon.com/dcunum": 1, "hygon.com/dcumem": 1024},
        {"cambricon.com/vmlu": 1},
        {"enflame.com/gcu": 1},
        {"birentech.com/gpu": 1},
        {"amd.com/gpu": 1, "amd.com/gpucores": 50},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_pod_with_a_vendors_cards_is_ours_and_its_amounts_stay(asked: dict[str, int]) -> None:
    result = admitted(pod("p", container(**asked)))

    assert result.allowed
    assert scheduler(result.pod) == OURS
    assert resources(result.pod) == (asked, {})


def test_a_limit_of_amd_memory_alone_makes_a_pod_ours_as_in_hami() -> None:
    result = admitted(pod("p", container(**{"amd.com/gpumem": 1000})))
    assert (result.allowed, scheduler(result.pod)) == (True, OURS)


def test_a_request_without_a_limit_is_no_request_for_amd_cards() -> None:
    only = {"name": "main", "resources": {"requests": {"amd.com/gpu": 1}}}
    result = admitted(pod("p", only))
    assert scheduler(result.pod) is None


def test_several_iluvatar_cards_are_whole_and_the_plugin_learns_the_containers_name() -> None:
    result = admitted(pod("p", container("work", **{"iluvatar.ai/MR-V100-vgpu": 2})))

    assert resources(result.pod)[0]["iluvatar.ai/MR-V100.vCore"] == "200"
    ((_, first),) = result.pod.containers()
    assert [(each.name, each.value) for each in first.env] == [("SOL_CONTINER_NAME", "work")]
    one = admitted(pod("p", container(**{"iluvatar.ai/MR-V100-vgpu": 1})))
    assert "iluvatar.ai/MR-V100.vCore" not in resources(one.pod)[0]


def test_a_profiles_request_is_written_into_limits_and_requests() -> None:
    result = admitted(
        pod("p", container(**{"enflame.com/gcu-memory": 8, "enflame.com/gcu-core": 10}))
    )
    both = {"enflame.com/gcu-memory": 8, "enflame.com/gcu-core": 10}
    assert resources(result.pod) == (both, both)
    assert scheduler(result.pod) == OURS


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        ({"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 20}, ("33", "2")),
        ({"enflame.com/vgcu": 1}, ("100", "6")),
        ({"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 0}, ("16", "1")),
    ],
)
def test_percent_of_a_card_are_rounded_up_to_slices(
    asked: dict[str, int], want: tuple[str, str]
) -> None:
    result = admitted(pod("p", container(**asked)), slices=6)

    for amounts in resources(result.pod):
        found = amounts["enflame.com/vgcu-percentage"], amounts["enflame.com/shared-gcu"]
        assert found == want


def test_several_cards_by_percent_are_all_slices_of_each() -> None:
    limits, requests = resources(
        admitted(pod("p", container(**{"enflame.com/vgcu": 2})), slices=6).pod
    )
    assert limits == {
        "enflame.com/vgcu": 2,
        "enflame.com/vgcu-percentage": "100",
        "enflame.com/shared-gcu": "12",
    }
    assert requests == {}


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        ({"enflame.com/drs-gcu": 0}, "enflame.com/drs-gcu"),
        ({"enflame.com/gcu-memory": 0}, "enflame.com/gcu-memory"),
        ({"enflame.com/gcu-core": 101}, "enflame.com/gcu-core"),
        ({"amd.com/gpu": 1, "amd.com/gpucores": 0}, "amd.com/gpucores"),
        ({"amd.com/gpu": 1, "amd.com/gpucores": 101}, "amd.com/gpucores"),
        ({"hygon.com/dcunum": "1.5"}, "hygon.com/dcunum"),
        ({"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vmemory": 2**31}, "vmemory"),
    ],
)
def test_an_amount_that_no_card_can_give_is_refused_by_name(
    asked: dict[str, Any], want: str
) -> None:
    result = admitted(pod("p", container(**asked)))

    assert not result.allowed
    assert "container main" in result.message
    assert want in result.message


@pytest.mark.parametrize(
    "asked",
    [
        {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 20},
        {"enflame.com/vgcu": 3},
        {"enflame.com/gcu-memory": 8},
        {"iluvatar.ai/MR-V100-vgpu": 2},
        {"amd.com/gpu": 1, "hygon.com/dcunum": 1, "nvidia.com/gpu": 1},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_pod_that_was_admitted_is_left_as_it_is(asked: dict[str, int]) -> None:
    first = admitted(pod("p", container(**asked)), slices=6).pod
    assert admitted(first, slices=6).pod == first


def test_quota_holds_at_admission_for_a_vendor_whose_cards_are_chosen_without_it() -> None:
    two_units = Headroom(memory=512)
    asked = {"iluvatar.ai/MR-V100-vgpu": 1, "iluvatar.ai/MR-V100.vMem": 3}
    result = admitted(pod("p", container(**asked)), headroom=lambda *_: two_units)
    assert not result.allowed
    assert "768 MiB (iluvatar.ai/MR-V100.vMem) where 512 MiB are left" in result.message


def test_cards_of_another_vendor_get_nothing_of_nvidias() -> None:
    rules = Rules(
        vendors=table.built_in(),
        nvidia=NvidiaSettings(runtime_class_name="nvidia", gpu_core_policy="force"),
    )
    context = Context(rules=rules, mig_offer=MigOffer("nvidia.com/gpu"), headroom=unlimited)
    result = decide.decide(pod("p", container(**{"hygon.com/dcunum": 1})), context)

    assert result.pod is not None
    assert result.pod.spec is not None
    assert result.pod.spec.runtime_class_name is None
    ((_, first),) = result.pod.containers()
    assert not first.env


@pytest.mark.parametrize(
    "asked",
    [
        {"iluvatar.ai/MR-V100-vgpu": 2, "iluvatar.ai/MR-V100.vCore": 50},
        {"enflame.com/vgcu": 2, "enflame.com/vgcu-percentage": 50},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_requests_that_the_api_server_copied_stay_equal_to_the_limits(
    asked: dict[str, int],
) -> None:
    both = {"name": "main", "resources": {"limits": asked, "requests": asked}}
    limits, requests = resources(admitted(pod("p", both), slices=4).pod)
    assert {name: limits[name] for name in requests} == requests
