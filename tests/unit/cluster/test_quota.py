"""Quota: what a namespace may have of card memory and compute."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami.cluster.quota import Headroom, Quotas, read_quota
from tests.builders import NVIDIA, VENDORS, ask, card, cluster, container, granted, node, pod, quota


@pytest.mark.parametrize(
    ("limit", "used", "asked", "fits"),
    [
        pytest.param(2048, 0, 100, True, id="well below"),
        pytest.param(2048, 0, 2048, True, id="exactly the limit"),
        pytest.param(2048, 0, 2049, False, id="one more"),
        pytest.param(2048, 0, 3000, False, id="far above"),
        pytest.param(2048, 1024, 100, True, id="with use, below"),
        pytest.param(2048, 1024, 2000, False, id="with use, above"),
        pytest.param(2048, 2048, 100, False, id="nothing left"),
        pytest.param(0, 0, 1, False, id="an explicit zero blocks"),
        pytest.param(0, 0, 0, True, id="what adds nothing is not held up"),
        pytest.param(None, 10**9, 10**9, True, id="no quota, no limit"),
    ],
)
def test_a_request_fits_when_use_and_request_do_not_pass_the_limit(
    limit: int | None, used: int, asked: int, *, fits: bool
) -> None:
    quotas = Quotas()
    if limit is not None:
        quotas.put(read_quota(quota("q", memory=limit), VENDORS))
    quotas.add_use("default", "NVIDIA", memory=used, cores=0)
    assert quotas.headroom("default", NVIDIA).allows(memory=asked, cores=0) is fits


def test_cores_are_limited_like_memory() -> None:
    room = Headroom(cores=50)
    assert room.allows(memory=10**9, cores=50)
    assert not room.allows(memory=0, cores=51)


def test_of_several_quotas_on_one_key_the_tightest_holds_whatever_their_order() -> None:
    for first, second in ((1000, 3000), (3000, 1000)):
        quotas = Quotas()
        quotas.put(read_quota(quota("one", memory=first), VENDORS))
        quotas.put(read_quota(quota("two", memory=second), VENDORS))
        assert quotas.limit("default", NVIDIA.resources.memory) == 1000


def test_dropping_one_of_two_quotas_leaves_the_other_in_force() -> None:
    kept = cluster(quota("tight", memory=1000), quota("wide", memory=3000))
    kept.forget_quota("default", "tight")
    assert kept.quotas.limit("default", NVIDIA.resources.memory) == 3000
    kept.forget_quota("default", "wide")
    assert kept.quotas.limit("default", NVIDIA.resources.memory) is None
    assert kept.forget_quota("default", "wide") is None


def test_a_changed_quota_holds_at_once() -> None:
    kept = cluster(node("n", [card("a")]), quota("q", memory=1000))
    asking = pod("p", container(gpu=1, memory=2000))
    assert ask(kept, asking).winner is None
    kept.observe_quota(quota("q", memory=2000))
    assert ask(kept, asking).winner is not None


def test_only_limits_of_managed_resources_are_kept() -> None:
    others: dict[str, Any] = {"requests.nvidia.com/gpumem": 6, "limits.cpu": 7, "pods": 8}
    read = read_quota(quota("q", memory=5, **others), VENDORS)
    assert read.limits == {"nvidia.com/gpumem": 5}


def test_limits_are_quantities() -> None:
    read = read_quota(quota("q", memory="16Ki", cores="1.5k"), VENDORS)
    assert read.limits == {"nvidia.com/gpumem": 16384, "nvidia.com/gpucores": 1500}
    assert read_quota(quota("q", memory="1.5"), VENDORS).limits == {"nvidia.com/gpumem": 1}


def test_an_unreadable_limit_is_named_and_the_other_keys_hold() -> None:
    read = read_quota(quota("q", memory="much", cores=50), VENDORS)
    assert read.limits == {"nvidia.com/gpucores": 50}
    (problem,) = read.problems
    assert "default/q" in problem
    assert "'much'" in problem


def test_the_memory_factor_applies_to_limits() -> None:
    vendor = msgspec.structs.replace(NVIDIA, memory_factor=256)
    quotas = Quotas()
    quotas.put(read_quota(quota("q", memory=60), (vendor,)))
    room = quotas.headroom("default", vendor)
    assert room.allows(memory=15360, cores=0)
    assert not room.allows(memory=2 * 40 * 256, cores=0)


@pytest.mark.parametrize(
    ("memory", "placed"),
    [
        pytest.param(1024, True, id="two cards of 1024 fit 2048"),
        pytest.param(1025, False, id="each card counts"),
    ],
)
def test_a_request_counts_once_for_every_card(memory: int, *, placed: bool) -> None:
    kept = cluster(node("n", [card("a"), card("b")]), quota("q", memory=2048))
    decision = ask(kept, pod("p", container(gpu=2, memory=memory)))
    assert (decision.winner is not None) is placed
    if not placed:
        assert decision.explanation.failed_nodes() == {"n": "2/2 ResourceQuotaNotFit"}


def test_a_percentage_and_a_bare_card_count_as_the_memory_of_the_card() -> None:
    kept = cluster(node("n", [card("a", devmem=8000)]), quota("q", memory=3999))
    assert ask(kept, pod("p", container(gpu=1, percent=50))).winner is None
    assert ask(kept, pod("p", container(gpu=1, percent=49))).winner is not None
    assert ask(kept, pod("p", container(gpu=1))).winner is None


def test_init_containers_count_by_their_peak_and_app_containers_by_their_sum() -> None:
    kept = cluster(node("n", [card("a")]), quota("q", memory=2000))
    peaks = [container("one", gpu=1, memory=2000), container("two", gpu=1, memory=1500)]
    fits = pod(
        "p", container("x", gpu=1, memory=1000), container("y", gpu=1, memory=1000), init=peaks
    )
    assert ask(kept, fits).winner is not None
    over = pod(
        "p", container("x", gpu=1, memory=1000), container("y", gpu=1, memory=1001), init=peaks
    )
    assert ask(kept, over).winner is None
    late = pod("p", container("x", gpu=1, memory=10), init=[container("one", gpu=1, memory=2100)])
    assert ask(kept, late).winner is None


def test_use_of_other_namespaces_does_not_count() -> None:
    kept = cluster(
        node("n", [card("a")]),
        quota("q", memory=2000),
        granted("p", "n", [("a", 1500, 0)], namespace="elsewhere"),
    )
    assert ask(kept, pod("q", container(gpu=1, memory=2000))).winner is not None
    kept.observe_pod(granted("r", "n", [("a", 1500, 0)]))
    assert ask(kept, pod("q", container(gpu=1, memory=2000))).winner is None
