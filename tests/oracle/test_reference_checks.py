"""The reference's checks of nodes, cards and quotas, on cases computed by hand.

Sections 3, 4 and 6 of docs/placement.md.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hami.wire import node_register, objects, shares
from tests.oracle.hand_made_cases import (
    APP,
    INIT,
    SIDECAR,
    Amounts,
    Asked,
    ask,
    card,
    gpu,
    node,
    placed,
    pod,
    quota,
    uuids,
)
from tests.oracle.sample_vendors import ACME, NVIDIA

# Section 3.


@pytest.mark.parametrize(
    ("nodes", "limits", "want"),
    {
        "unknown": ([], gpu(), "node unregistered"),
        "no cards": ([node("n")], gpu(), "node unregistered"),
        "no ids": ([node("n", card("a"), ids={})], gpu(), "node unregistered"),
        "zero ids": (
            [node("n", card("a"), ids={NVIDIA.count: "0"})],
            gpu(),
            "node unregistered",
        ),
        "other vendor": ([node("n", acme=[card("x")])], gpu(), "Device type not found"),
        "too many cards": ([node("n", card("a"))], gpu(2), "NodeInsufficientDevice"),
        "too few ids": (
            [node("n", card("a"), card("b", 1), ids={NVIDIA.count: 1})],
            gpu(2),
            "NodeInsufficientDevice",
        ),
    }.values(),
)
def test_node_checks(nodes: list[objects.Node], limits: dict[str, Any], want: str) -> None:
    answer = ask(pod(limits), *nodes, names=["n"], vendors=(NVIDIA, ACME))
    assert answer.failed == {"n": want}


def test_checks_go_over_all_vendors_before_the_next_check() -> None:
    incoming = pod(gpu(5) | {ACME.count: 1})
    ids: Amounts = {NVIDIA.count: "9", ACME.count: "0"}
    answer = ask(incoming, node("n", card("a"), acme=[card("x")], ids=ids), vendors=(NVIDIA, ACME))
    assert answer.failed == {"n": "node unregistered"}
    answer = ask(incoming, node("n", card("a")), vendors=(NVIDIA, ACME))
    assert answer.failed == {"n": "Device type not found"}


# Section 4.


@pytest.mark.parametrize(
    ("total", "percentage", "want"),
    [(40960, 50, 20480), (8000, 33, 2640), (7, 50, 3), (99, 100, 99)],
)
def test_percentages_are_rounded_down(total: int, percentage: int, want: int) -> None:
    answer = ask(pod(gpu(percentage=percentage)), node("n", card("a", devmem=total)))
    assert answer.shares["NVIDIA"][0][0].memory_mib == want


def test_reasons_are_counted_and_sorted_as_text() -> None:
    cards = [card(f"g{index}", index, health=index != 3) for index in range(8)]
    answer = ask(pod(gpu(1, 8001)), node("n", *cards))
    assert answer.failed == {"n": "1/8 CardNotHealth, 7/8 CardInsufficientMemory"}
    cards = [card(f"g{index:x}", index, health=index > 9) for index in range(12)]
    answer = ask(pod(gpu(1, 8001)), node("n", *cards))
    assert answer.failed == {"n": "10/12 CardNotHealth, 2/12 CardInsufficientMemory"}


@pytest.mark.parametrize(
    ("device", "used", "incoming", "want"),
    {
        "health": (card("a", health=False), "", pod(gpu()), "CardNotHealth"),
        "cordon": (card("cordoned"), "", pod(gpu()), "CardCordoned"),
        "mode": (card("a", mode="mps"), "", pod(gpu(), mode="hami-core"), "ModeNotFit"),
        "mode within": (card("a"), "", pod(gpu(), mode="mps,hami-core"), None),
        "no mode": (card("a", mode=""), "", pod(gpu(), mode="mig"), None),
        "use uuid": (card("a"), "", pod(gpu(), use_uuid="A, aa"), "CardUuidMismatch"),
        "nouse uuid": (card("a"), "", pod(gpu(), nouse_uuid="b, a"), "CardUuidMismatch"),
        "shares": (card("a", count=1), "1,0", pod(gpu(1, 1)), "CardTimeSlicingExhausted"),
        "mutex": (
            card("a"),
            "1,0",
            pod(gpu(1, 1), gpu_policy="numa, mutex"),
            "ExclusiveDeviceAllocateConflict",
        ),
        "memory": (card("a"), "4000,0", pod(gpu(1, 4001)), "CardInsufficientMemory"),
        "memory left": (card("a"), "4000,0", pod(gpu(1, 4000)), None),
        "over-used": (card("a"), "9000,0", pod(gpu(1, 1)), "CardInsufficientMemory"),
        "cores": (card("a"), "1,50", pod(gpu(1, 1, 51)), "CardInsufficientCore"),
        "cores left": (card("a"), "1,50", pod(gpu(1, 1, 50)), None),
        "whole card": (
            card("a"),
            "1,0",
            pod(gpu(1, 1, 100)),
            "ExclusiveDeviceAllocateConflict",
        ),
        "whole of a scaled card": (card("a", devcore=200), "1,0", pod(gpu(1, 1, 100)), None),
        "no cores left": (card("a"), "1,100", pod(gpu(1, 1)), "CardComputeUnitsExhausted"),
        "no cores ever": (card("a", devcore=0), "1,0", pod(gpu(1, 1)), None),
        "mig": (card("a", mode="mig"), "", pod(gpu()), "CardMigTopologyInfeasible"),
    }.values(),
)
def test_card_checks(
    device: node_register.RegisteredCard, used: str, incoming: objects.Pod, want: str | None
) -> None:
    pods = [placed("p", "n", f"{device.id},NVIDIA,{used}:;")] if used else []
    answer = ask(incoming, node("n", device, cordon=" cordoned,,"), pods=pods)
    assert answer.failed == ({"n": f"1/1 {want}"} if want else {})


def test_eligible_cards_that_are_too_few() -> None:
    cards = [card("a"), card("b", 1, health=False), card("c", 2)]
    answer = ask(pod(gpu(3)), node("n", *cards))
    assert answer.failed == {"n": "1/3 CardNotHealth, 2/3 AllocatedCardsInsufficientRequest"}


def test_numa_groups_that_are_too_small() -> None:
    cards = [card("a"), card("b", 1, numa=1), card("c", 2, numa=2)]
    bound = pod(gpu(2), numa_bind="true")
    assert ask(bound, node("n", *cards)).failed == {"n": "3/3 NumaNotFit"}
    assert ask(pod(gpu(2), numa_bind="yes"), node("n", *cards)).winner == "n"
    cards.append(card("d", 3, numa=1))
    assert uuids(ask(bound, node("n", *cards))) == [["b", "d"]]


def test_a_vendor_rule_sees_columns_and_the_type_of_grants_is_the_word() -> None:
    acme = [card("x", 3), card("y", 1), card("z", 2)]
    limits: Amounts = {ACME.count: 2, ACME.memory: 4}
    answer = ask(pod(limits), node("n", acme=acme), vendors=(NVIDIA, ACME))
    grants = [shares.Share(name, "ACME", 1024, 0) for name in "yx"]
    assert answer.shares == {"ACME": (tuple(grants),)}
    limits[ACME.count] = 3
    answer = ask(pod(limits), node("n", acme=acme), vendors=(NVIDIA, ACME))
    assert answer.failed == {
        "n": "1/3 CardNotFoundCustomFilterRule, 2/3 AllocatedCardsInsufficientRequest"
    }


# Section 6.


@pytest.mark.parametrize(
    ("limit", "used", "containers", "fits"),
    {
        "two cards, exactly": (2048, 0, [(APP, gpu(2, 1024))], True),
        "two cards, one too much": (2047, 0, [(APP, gpu(2, 1024))], False),
        "used counts": (2048, 1024, [(APP, gpu(1, 1024))], True),
        "used counts too much": (2048, 1025, [(APP, gpu(1, 1024))], False),
        "apps add up": (2048, 0, [(APP, gpu(1, 1025)), (APP, gpu(1, 1024))], False),
        "inits do not add up": (2048, 0, [(INIT, gpu(1, 2048)), (APP, gpu(1, 2048))], True),
        "sidecars add up": (2048, 0, [(SIDECAR, gpu(1, 1)), (APP, gpu(1, 2048))], False),
        "inits after sidecars": (2048, 0, [(SIDECAR, gpu(1, 1)), (INIT, gpu(1, 2048))], False),
        "limit 0 blocks": (0, 0, [(APP, gpu(1, 1))], False),
        "whole cards": (7999, 0, [(APP, gpu(1))], False),
    }.values(),
)
def test_memory_quota(limit: int, used: int, containers: list[Asked], fits: bool) -> None:
    other = [placed("p", "elsewhere", f"far,NVIDIA,{used},0:;")] if used else []
    there = node("n", card("a"), card("b", 1))
    quotas = [quota(memory=10**6), quota(memory=limit, cores=0)]
    answer = ask(pod(*containers), there, pods=other, quotas=quotas)
    assert (answer.winner == "n") is fits
    assert answer.failed == ({} if fits else {"n": "2/2 ResourceQuotaNotFit"})


@pytest.mark.parametrize(
    ("limit", "fits"),
    [
        ("2048", True),
        ("2048.5", True),
        ("2048999m", True),
        ("2047.9", False),
        ("2047999m", False),
        ("1.5", False),
        ("2Ki", True),
        ("plenty", True),
        ("", True),
    ],
)
def test_fractions_of_a_quota_are_rounded_down_and_no_number_is_no_limit(
    limit: str,
    fits: bool,
) -> None:
    there = node("n", card("a"))
    for other in (10**6, "2048.1"):
        quotas = [quota(memory=other), quota(memory=limit)]
        answer = ask(pod(gpu(1, 2048)), there, quotas=quotas)
        assert answer.failed == ({} if fits else {"n": "1/1 ResourceQuotaNotFit"})


def test_core_quota_and_the_quota_of_a_factor() -> None:
    there = node("n", card("a"), card("b", 1))
    assert ask(pod(gpu(2, 1, 30)), there, quotas=[quota(cores=60)]).winner == "n"
    assert ask(pod(gpu(2, 1, 30)), there, quotas=[quota(cores=59)]).winner is None
    # HAMi's MLU example: 60 units of 256 MiB, two cards of 40 units.
    vendor = dataclasses.replace(NVIDIA, memory_factor=256)
    big = node("n", card("a", devmem=20480), card("b", 1, devmem=20480))
    for units, want in ((40, None), (30, "n"), (31, None)):
        answer = ask(pod(gpu(2, units)), big, quotas=[quota(memory=60)], vendors=[vendor])
        assert answer.winner == want
