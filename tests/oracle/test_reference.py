"""The reference itself on cases computed by hand: whole pods, whole nodes.

Numbers come from the worked examples of docs/designs/006-hami-protocol.md, HAMi's tests, and
docs/placement.md (sections 8 and 9; the sections before are in test_reference_*.py), so that the
oracle is not taken on faith.
"""

from __future__ import annotations

import pytest

from hami.wire import shares
from tests.oracle.hand_made_cases import (
    APP,
    INIT,
    SIDECAR,
    TWO_NODES,
    TWO_PODS,
    ask,
    card,
    gpu,
    node,
    pod,
    uuids,
)
from tests.oracle.reference import hardest_first, node_score
from tests.oracle.reference_holdings import by_node, cards_of
from tests.oracle.reference_request import read_request
from tests.oracle.sample_vendors import ACME, NVIDIA


@pytest.mark.parametrize(
    ("node_policy", "gpu_policy", "want_node", "want_card", "want_score"),
    [
        # (1 + 1) / 20 + (75 + 20) / 200 + (6000 + 1000) / 16000 = 1.0125
        ("binpack", "binpack", "node2", "device4", 10.125),
        ("binpack", "spread", "node2", "device3", 10.125),
        # (1 + 1) / 20 + (25 + 20) / 200 + (2000 + 1000) / 16000 = 0.5125
        ("spread", "binpack", "node1", "device1", 5.125),
        ("spread", "spread", "node1", "device2", 5.125),
    ],
)
def test_the_two_node_example_of_hami(
    node_policy: str, gpu_policy: str, want_node: str, want_card: str, want_score: float
) -> None:
    incoming = pod(gpu(1, 1000, 20), node_policy=node_policy, gpu_policy=gpu_policy)
    answer = ask(incoming, *TWO_NODES, pods=TWO_PODS)
    assert (answer.winner, answer.score) == (want_node, want_score)
    assert answer.shares == {"NVIDIA": ((shares.Share(want_card, "NVIDIA", 1000, 20),),)}
    assert answer.failed == {}


def test_the_two_node_example_with_an_init_container() -> None:
    incoming = pod((INIT, gpu(1, 5000)), (APP, gpu(1, 4000)), gpu_policy="binpack")
    answer = ask(incoming, *TWO_NODES, pods=TWO_PODS)
    assert answer.winner == "node2"
    assert uuids(answer) == [["device3"], ["device3"]]
    # The peak counts: one share and 5000 MiB, not two and 9000.
    assert answer.score == (2 / 20 + 75 / 200 + 11000 / 16000) * 10


# Section 8.


def test_node_score_of_the_worked_example_grows_by_the_pod() -> None:
    state = {"NVIDIA": cards_of(TWO_NODES[0], NVIDIA, by_node(TWO_PODS)["node1"])}
    wanted = read_request(pod(gpu()), [NVIDIA], "binpack", "spread")
    assert wanted is not None
    assert node_score(state, wanted, [{}]) == 3.0
    grant = shares.Share("device2", "NVIDIA", 8000, 0)
    assert node_score(state, wanted, [{"NVIDIA": (grant,)}]) == 8.5


def test_equal_scores_go_to_the_lowest_name() -> None:
    nodes = [node(name, card(f"card-{name}")) for name in ("n2", "n10", "n3")]
    for policy in ("binpack", "spread"):
        answer = ask(pod(gpu(), node_policy=policy), *nodes)
        assert answer.winner == "n10"
        assert "nodes tied" in answer.traits


def test_the_node_score_counts_all_vendors_and_the_pods_peaks() -> None:
    there = node("n", card("a"), acme=[card("x", devmem=1024)])
    both = gpu(1, 500, 10) | {ACME.count: 1, ACME.memory: 1, ACME.cores: 5}
    incoming = pod((INIT, gpu(1, 600)), (SIDECAR, both), (INIT, gpu(1, 700)))
    answer = ask(incoming, there, vendors=(NVIDIA, ACME))
    # Peaks: shares 2 + 1, cores 15, memory 500 + 256 + 700, each from its own moment.
    assert answer.score == (3 / 20 + 15 / 200 + 1456 / 9024) * 10
    assert [len(each) for each in answer.shares["ACME"]] == [0, 1, 0]


# Section 9.


def test_second_try_places_what_the_own_order_cannot() -> None:
    gib = 1024
    there = node("n", card("a", devmem=10 * gib), card("b", 1, devmem=6 * gib))
    two = pod(gpu(1, 5 * gib), gpu(1, 10 * gib))
    answer = ask(two, there)
    assert answer.traits >= {"second try"}
    assert uuids(answer) == [["b"], ["a"]]
    assert answer.failed == {}
    assert answer.score == (2 / 20 + 0 / 200 + 15 / 16) * 10
    # One of them a sidecar: its place in the order is fixed.
    answer = ask(pod((SIDECAR, gpu(1, 5 * gib)), (APP, gpu(1, 10 * gib))), there)
    assert answer.failed == {"n": "2/2 CardInsufficientMemory"}
    # A second node fits neither way: the reasons of the first try.
    small = node("m", card("c", devmem=10 * gib), card("d", 1, devmem=4 * gib))
    answer = ask(two, there, small)
    assert answer.winner == "n"
    assert answer.failed == {"m": "2/2 CardInsufficientMemory"}


def test_second_try_order_is_hardest_first() -> None:
    wanted = read_request(
        pod(
            (INIT, gpu(1, 1)),
            (APP, gpu(1, 5)),
            (APP, {}),
            (APP, gpu(1, 9)),
            (APP, gpu(1, percentage=1)),
            (APP, gpu(1, 5)),
            (APP, gpu(2, 5)),
            (APP, gpu(1, 5, 1)),
        ),
        [NVIDIA],
        "binpack",
        "spread",
    )
    assert wanted is not None
    assert hardest_first(wanted) == [0, 4, 3, 7, 6, 1, 5, 2]
