"""Cards that fit: HAMi's fit vectors with real product names, and its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hami.wire.node_register import RegisteredCard
from hami.wire.shares import Share
from tests.builders import ask, card, cards, cluster, container, granted, node, pod, winner

H200, H20, A100 = "NVIDIA H200", "NVIDIA H20", "NVIDIA A100-SXM4-40GB"


def refusal(
    devices: Sequence[RegisteredCard],
    used: Sequence[tuple[str, int, int]] = (),
    *,
    annotations: dict[str, str] | None = None,
    **amounts: Any,
) -> str:
    """Ask one node; "" is a fit."""
    pods = [granted(f"u{at}", "n", [grant]) for at, grant in enumerate(used)]
    asking = pod("p", container(**{"gpu": 1, **amounts}), annotations=annotations)
    return ask(cluster(node("n", devices), *pods), asking).explanation.failed_nodes().get("n", "")


@pytest.mark.parametrize(
    ("devices", "used", "amounts", "want"),
    [
        pytest.param([card("a")], [], {"memory": 8000}, "", id="exactly what is there"),
        pytest.param(
            [card("a")], [], {"memory": 8001}, "1/1 CardInsufficientMemory", id="one MiB more"
        ),
        pytest.param(
            [card("a")], [("a", 7000, 0)], {"memory": 1001}, "1/1 CardInsufficientMemory", id="used"
        ),
        pytest.param([card("a")], [("a", 1, 70)], {"memory": 1, "cores": 30}, "", id="all cores"),
        pytest.param(
            [card("a")],
            [("a", 1, 71)],
            {"memory": 1, "cores": 30},
            "1/1 CardInsufficientCore",
            id="one percent too much",
        ),
        pytest.param(
            [card("a", count=1)],
            [("a", 1, 1)],
            {"memory": 1},
            "1/1 CardTimeSlicingExhausted",
            id="no share left",
        ),
        pytest.param(
            [card("a")],
            [("a", 1, 0)],
            {"memory": 1, "cores": 100},
            "1/1 ExclusiveDeviceAllocateConflict",
            id="a whole card must be idle",
        ),
        pytest.param(
            [card("a", devcore=200)],
            [("a", 1, 0)],
            {"memory": 1, "cores": 100},
            "",
            id="but not where cores are overcommitted",
        ),
        pytest.param(
            [card("a")], [], {"memory": 1, "cores": 150}, "", id="cores above 100 are 100"
        ),
        pytest.param(
            [card("a")],
            [("a", 1, 100)],
            {"memory": 1, "cores": 0},
            "1/1 CardComputeUnitsExhausted",
            id="no compute left for an unlimited share",
        ),
        pytest.param(
            [card("a")],
            [("a", 1, 100)],
            {"memory": 1, "cores": 1},
            "1/1 CardInsufficientCore",
            id="nor for a limited one",
        ),
        pytest.param([card("a", health=False)], [], {}, "1/1 CardNotHealth", id="unhealthy"),
        pytest.param(
            [card("a", devmem=16000)], [], {"memory": 12000}, "", id="memory overcommitted"
        ),
        pytest.param(
            [card("a", mode="mig")], [], {"memory": 1}, "1/1 CardMigTopologyInfeasible", id="MIG"
        ),
        pytest.param([card("a")], [], {"gpu": 2}, "NodeInsufficientDevice", id="too few cards"),
        pytest.param(
            [card("a"), card("b", health=False), card("c", devmem=5)],
            [],
            {"gpu": 2, "memory": 6},
            "1/3 AllocatedCardsInsufficientRequest, 1/3 CardInsufficientMemory, 1/3 CardNotHealth",
            id="each card has its reason",
        ),
        pytest.param([card("a", devmem=40960)], [("a", 20480, 0)], {"percent": 50}, "", id="50 %"),
        pytest.param(
            [card("a", devmem=8000)],
            [("a", 5361, 0)],
            {"percent": 33},
            "1/1 CardInsufficientMemory",
            id="33 % of 8000 are 2640",
        ),
        pytest.param(
            [card("a", devmem=8000)], [("a", 5360, 0)], {"percent": 33}, "", id="and no more"
        ),
        pytest.param(
            [card("a", devmem=8000)],
            [("a", 1, 0)],
            {"percent": 0},
            "1/1 CardInsufficientMemory",
            id="percentage 0 is a whole card",
        ),
    ],
)
def test_a_card_is_refused_for_the_first_reason_that_applies(
    devices: list[RegisteredCard],
    used: list[tuple[str, int, int]],
    amounts: dict[str, Any],
    want: str,
) -> None:
    assert refusal(devices, used, **amounts) == want


@pytest.mark.parametrize(
    ("memory", "amounts", "want"),
    [
        pytest.param(40960, {"percent": 50}, 20480, id="half"),
        pytest.param(8000, {"percent": 33}, 2640, id="a third"),
        pytest.param(8001, {"percent": 50}, 4000, id="rounded down"),
        pytest.param(8001, {}, 8001, id="a bare card is all of it"),
        pytest.param(8001, {"memory": 7}, 7, id="MiB as they are"),
    ],
)
def test_a_grant_says_what_it_is_of_its_card(
    memory: int, amounts: dict[str, Any], want: int
) -> None:
    kept = cluster(node("n", [card("a", devmem=memory)]))
    found = ask(kept, pod("p", container(gpu=1, cores=30, **amounts))).winner
    assert found is not None
    assert found.shares == {"NVIDIA": ((Share("a", "NVIDIA", want, 30),),)}


def test_a_card_that_is_already_over_its_limits_takes_nothing_more() -> None:
    shrunk = [card("a", devmem=1000, devcore=50)]
    assert refusal(shrunk, [("a", 2000, 0)], memory=1) == "1/1 CardInsufficientMemory"
    assert refusal(shrunk, [("a", 1, 60)], memory=1, cores=0) == "1/1 CardInsufficientCore"


@pytest.mark.parametrize(
    ("key", "value", "fits"),
    [
        pytest.param("use-gputype", "H20", [H20], id="an H200 is not an H20"),
        pytest.param("use-gputype", "h200", [H200], id="case does not matter"),
        pytest.param("use-gputype", "A100,H200", [H200, A100], id="one of several"),
        pytest.param("use-gputype", " ,, A100 ,", [A100], id="blanks do not count"),
        pytest.param("use-gputype", "A10", [], id="an A100 is not an A10"),
        pytest.param("use-gputype", "SXM", [A100], id="a part of the name"),
        pytest.param("use-gputype", "  ", [H200, H20, A100], id="a blank list selects nothing"),
        pytest.param("nouse-gputype", " , ", [H200, H20, A100], id="nor one that excludes nothing"),
        pytest.param("nouse-gputype", "H20", [H200, A100], id="nor is it excluded as one"),
        pytest.param("nouse-gputype", "NVIDIA", [], id="nothing left"),
        pytest.param("use-gpuuuid", "id-H20", ["NVIDIA H20"], id="by id"),
        pytest.param("use-gpuuuid", "id-H", [], id="ids match whole"),
        pytest.param("nouse-gpuuuid", " id-H20 ,x", [H200, A100], id="not by id"),
        pytest.param("vgpu-mode", "mig", [], id="a mode no card has"),
        pytest.param("vgpu-mode", "mig,hami-core", [H200, H20, A100], id="one of two modes"),
    ],
)
def test_selectors_choose_among_real_products(key: str, value: str, fits: list[str]) -> None:
    ids = {H200: "id-H200", H20: "id-H20", A100: "id-A100"}
    for product, name in ids.items():
        text = refusal(
            [card(name, type=product)], annotations={f"nvidia.com/{key}": value}, memory=1
        )
        reasons = {"use-gputype": "CardTypeMismatch", "nouse-gputype": "CardTypeMismatch"}
        reasons |= {"vgpu-mode": "ModeNotFit"}
        want = "" if product in fits else f"1/1 {reasons.get(key, 'CardUuidMismatch')}"
        assert text == want, product


def test_a_card_without_a_mode_takes_every_pod() -> None:
    assert refusal([card("a", mode="")], annotations={"nvidia.com/vgpu-mode": "mps"}) == ""


def test_use_and_nouse_hold_together() -> None:
    annotations = {"nvidia.com/use-gputype": "NVIDIA", "nvidia.com/nouse-gputype": "A100"}
    assert refusal([card("a", type=H200)], annotations=annotations) == ""
    assert refusal([card("a", type=A100)], annotations=annotations) == "1/1 CardTypeMismatch"


def test_the_mutex_policy_takes_idle_cards_only() -> None:
    mutex = {"hami.io/gpu-scheduler-policy": "mutex"}
    used = [("a", 1, 0)]
    assert refusal([card("a"), card("b")], used, annotations=mutex, memory=1) == ""
    text = refusal([card("a"), card("b")], used, annotations=mutex, memory=1, gpu=2)
    assert text == "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict"
    chain = {"hami.io/gpu-scheduler-policy": "numa,mutex"}
    assert refusal([card("a")], used, annotations=chain) == "1/1 ExclusiveDeviceAllocateConflict"


class TestNumaBinding:
    BOUND = {"nvidia.com/numa-bind": "true"}  # noqa: RUF012  a constant of the tests

    def test_all_cards_of_a_container_share_a_numa_node(self) -> None:
        devices = [card(f"g{at}", index=at, numa=at // 2) for at in range(4)]
        asking = pod("p", container(gpu=2, memory=1), annotations=self.BOUND)
        kept = cluster(node("n", devices), granted("u", "n", [("g3", 8000, 0)]))
        assert winner(ask(kept, asking)) == ("n", [["g0", "g1"]])

    def test_enough_cards_on_different_numa_nodes_do_not_fit(self) -> None:
        devices = [card("a", numa=0), card("b", numa=1), card("c", numa=1, health=False)]
        text = refusal(devices, annotations=self.BOUND, gpu=2, memory=1)
        assert text == "1/3 CardNotHealth, 2/3 NumaNotFit"

    def test_too_few_cards_anywhere_are_too_few_and_not_a_matter_of_numa(self) -> None:
        devices = [card("a", numa=0), card("b", numa=1, health=False)]
        text = refusal(devices, annotations=self.BOUND, gpu=2, memory=1)
        assert text == "1/2 AllocatedCardsInsufficientRequest, 1/2 CardNotHealth"

    def test_unusual_numa_numbers_group_like_any_other(self) -> None:
        devices = [card("a", numa=-1), card("b", numa=900), card("c", numa=-1)]
        kept = cluster(node("n", devices))
        asking = pod("p", container(gpu=2, memory=1), annotations=self.BOUND)
        assert winner(ask(kept, asking)) == ("n", [["a", "c"]])


class TestSeveralContainers:
    def test_every_container_has_its_entry_and_those_without_a_card_an_empty_one(self) -> None:
        asking = pod(
            "p",
            container("web"),
            container("train", gpu=1, memory=3000, cores=30),
            init=[container("fetch"), container("check", gpu=1, memory=100)],
        )
        decision = ask(cluster(node("n", [card("a")])), asking)
        assert winner(decision) == ("n", [[], ["a"], [], ["a"]])

    def test_app_containers_share_what_a_card_has(self) -> None:
        both = [container("x", gpu=1, memory=5000), container("y", gpu=1, memory=5000)]
        kept = cluster(node("n", [card("a")]))
        assert ask(kept, pod("p", *both)).explanation.failed_nodes() == {
            "n": "1/1 CardInsufficientMemory"
        }
        kept = cluster(node("n", [card("a"), card("b")]))
        assert winner(ask(kept, pod("p", *both))) is not None

    def test_init_containers_do_not_add_up_but_sidecars_do(self) -> None:
        kept = cluster(node("n", [card("a")]))
        init = [container("i", gpu=1, memory=5000), container("j", gpu=1, memory=5000)]
        app = container("x", gpu=1, memory=5000)
        assert winner(ask(kept, pod("p", app, init=init))) == ("n", [["a"], ["a"], ["a"]])
        stays = {**init[0], "restartPolicy": "Always"}
        assert winner(ask(kept, pod("p", app, init=[stays]))) is None
        assert winner(ask(kept, pod("p", container("x"), init=[stays, init[1]]))) is None

    def test_an_init_container_that_does_not_fit_refuses_the_node(self) -> None:
        init = [container("i", gpu=1, memory=9000)]
        decision = ask(
            cluster(node("n", [card("a")])), pod("p", container("x", gpu=1, memory=1), init=init)
        )
        assert decision.explanation.failed_nodes() == {"n": "1/1 CardInsufficientMemory"}

    def test_containers_are_tried_hardest_first_where_their_own_order_fails(self) -> None:
        """Spread puts the small container on the emptier card, where the large one has to go."""
        devices = [card("a", devmem=10000), card("b", devmem=6000)]
        asking = pod("p", container("s", gpu=1, memory=5000), container("l", gpu=1, memory=10000))
        decision = ask(cluster(node("n", devices)), asking, gpu_policy="spread")
        assert winner(decision) == ("n", [["b"], ["a"]])

    def test_a_pod_that_fits_nowhere_in_any_order_is_refused_with_the_first_reasons(self) -> None:
        devices = [card("a", devmem=10000), card("b", devmem=6000)]
        asking = pod("p", container("s", gpu=1, memory=7000), container("l", gpu=1, memory=10000))
        decision = ask(cluster(node("n", devices)), asking)
        assert decision.explanation.failed_nodes() == {"n": "2/2 CardInsufficientMemory"}


def test_cards_of_a_container_are_listed_as_cuda_numbers_them() -> None:
    kept = cluster(node("n", cards("g", 4)), granted("u", "n", [("g-1", 100, 0)]))
    asking = pod("p", container(gpu=3, memory=10))
    for policy in ("binpack", "spread"):
        found = winner(ask(kept, asking, gpu_policy=policy))
        assert found is not None
        assert found[1] == [sorted(found[1][0])]


class TestHostileSelectors:
    def test_ten_thousand_ids_are_looked_up_not_searched(self) -> None:
        ids = ",".join([*(f"GPU-{at}" for at in range(10_000)), "g-7"])
        kept = cluster(node("n", cards("g", 8)))
        for key, want in (("use-gpuuuid", "g-7"), ("nouse-gpuuuid", "g-6")):
            asking = pod("p", container(gpu=1), annotations={f"nvidia.com/{key}": ids})
            assert winner(ask(kept, asking)) == ("n", [[want]])

    def test_a_megabyte_of_one_type_refuses_that_pod_and_nothing_else(self) -> None:
        kept = cluster(node("n", cards("g", 8)))
        annotations = {"nvidia.com/use-gputype": "H100X," * 170_000}
        decision = ask(kept, pod("p", container(gpu=1), annotations=annotations))
        assert decision.explanation.failed_nodes() == {"n": "8/8 CardTypeMismatch"}
        assert ask(kept, pod("q", container(gpu=1))).winner is not None

    def test_a_request_for_two_billion_cards_is_just_too_large(self) -> None:
        huge = pod("p", *(container(f"c{at}", gpu=2**31 - 1, memory=2**31 - 1) for at in range(5)))
        decision = ask(cluster(node("n", [card("a")])), huge)
        assert decision.explanation.failed_nodes() == {"n": "NodeInsufficientDevice"}
