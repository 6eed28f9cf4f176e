"""Pods without a valid grant: docs/placement.md, section 7, by hand."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from hami.cluster.state import Cluster
from hami.wire import objects
from tests.builders import NVIDIA, VENDORS, cards, container, node, pod, sidecar, use

THERE = node("n", cards("g", 2), allocatable=20)
ALLOCATED = NVIDIA.annotations.allocated


def kept(things: Iterable[objects.Pod]) -> Cluster:
    """Make a cluster in which only pods of the name `signed` have a valid grant."""
    cluster = Cluster(VENDORS, verify=lambda seen: seen.name == "signed")
    cluster.observe_node(THERE)
    for thing in things:
        cluster.observe_pod(thing)
    return cluster


def used(cluster: Cluster) -> list[tuple[int, int, int]]:
    return [use(cluster, "n", card) for card in ("g-0", "g-1")]


def on_node(name: str, *containers: dict[str, Any], devices: str = "") -> objects.Pod:
    return pod(
        name, *containers, node_name="n", annotations={ALLOCATED: devices} if devices else {}
    )


def test_the_order_in_which_pods_come_and_go_does_not_matter() -> None:
    pods = [
        on_node("a", container(gpu=1, memory=5000)),
        on_node("b", container(gpu=1, memory=4000)),
        on_node("c", container(gpu=1, memory=3500)),
    ]
    for order in itertools.permutations(pods):
        cluster = kept(order)
        assert used(cluster) == [(1, 5000, 0), (2, 7500, 0)]
        cluster.forget_node("n")
        cluster.observe_node(THERE)
        assert used(cluster) == [(1, 5000, 0), (2, 7500, 0)]
        cluster.forget_pod(order[0].uid)
        assert used(cluster) == used(kept(order[1:]))


@pytest.mark.parametrize(
    ("asking", "devices", "want"),
    [
        # The fullest card with room: the signed pod has 3000 MiB of the second.
        (container(gpu=1, memory=5000), "", [(0, 0, 0), (2, 8000, 50)]),
        (container(gpu=1, memory=5001), "", [(1, 5001, 0), (1, 3000, 50)]),
        (container(gpu=1, memory=1, cores=51), "", [(1, 1, 51), (1, 3000, 50)]),
        # None has room: the one with the most memory left is overdrawn.
        (container(gpu=1, memory=9000), "", [(1, 9000, 0), (1, 3000, 50)]),
        # Each card once, and no more cards than there are.
        (container(gpu=3, memory=10), "", [(1, 10, 0), (2, 3010, 50)]),
        # A percentage is that of the card.
        (container(gpu=1, percent=50), "", [(0, 0, 0), (2, 7000, 50)]),
        # At least what the annotation says, and at least what is asked for.
        (container(gpu=1, memory=9), "g-0,NVIDIA,70,5:;", [(1, 70, 5), (1, 3000, 50)]),
        (container(gpu=1, memory=90), "g-0,NVIDIA,70,5:;", [(1, 90, 5), (1, 3000, 50)]),
        (container(gpu=2, memory=90), "g-0,NVIDIA,70,5:;", [(1, 90, 5), (2, 3090, 50)]),
        (container(gpu=1, memory=9), "else,NVIDIA,70,5:;", [(0, 0, 0), (2, 3070, 55)]),
        # What cannot be read closes nothing.
        (container(gpu=1, memory=9), "g-0,NVIDIA,x,5:;", [(0, 0, 0), (2, 3009, 50)]),
    ],
)
def test_it_counts_on(
    asking: dict[str, Any], devices: str, want: list[tuple[int, int, int]]
) -> None:
    signed = on_node(
        "signed", container(gpu=1, memory=3000, cores=50), devices="g-1,NVIDIA,3000,50:;"
    )
    cluster = kept([signed, on_node("x", asking, devices=devices)])
    assert used(cluster) == want
    assert all(not table.cards["NVIDIA"].closed for table in cluster.card_tables.values())


def test_containers_of_one_pod_count_as_they_run() -> None:
    made = pod(
        "x",
        container("app", gpu=1, memory=5000),
        init=[container("first", gpu=1, memory=8000), sidecar("beside", gpu=1, memory=3000)],
        node_name="n",
    )
    # The init container runs alone; sidecar and app container share the card.
    assert used(kept([made])) == [(2, 8000, 0), (0, 0, 0)]


def test_its_quota_use_is_what_it_asks_for_or_lists() -> None:
    cluster = kept(
        [
            on_node("x", container(gpu=2, memory=1000, cores=10)),
            on_node("y", container(gpu=1, percent=50), devices="g-0,NVIDIA,70,5:;"),
        ]
    )
    assert cluster.quotas.used("default", "NVIDIA") == (2070, 25)


def test_a_pod_that_asks_for_two_billion_cards_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        cluster = kept([on_node("x", container(gpu=20_000_000, memory=10))])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used(cluster) == [(1, 10, 0), (1, 10, 0)]
    assert peak < 50_000_000  # the cluster itself has some


@pytest.mark.parametrize(
    ("asking", "want"),
    [
        (container(gpu=1, memory=10), [(1, 10, 0), (1, 3000, 100)]),
        (container(gpu=1, memory=10, cores=1), [(1, 10, 1), (1, 3000, 100)]),
    ],
)
def test_it_counts_on_no_card_whose_compute_is_all_taken(
    asking: dict[str, Any], want: list[tuple[int, int, int]]
) -> None:
    signed = on_node(
        "signed", container(gpu=1, memory=3000, cores=100), devices="g-1,NVIDIA,3000,100:;"
    )
    assert used(kept([signed, on_node("x", asking)])) == want


def test_one_that_asks_for_all_compute_counts_on_an_idle_card() -> None:
    signed = on_node("signed", container(gpu=1, memory=3000), devices="g-1,NVIDIA,3000,0:;")
    asking = container(gpu=1, memory=10, cores=100)
    assert used(kept([signed, on_node("x", asking)])) == [(1, 10, 100), (1, 3000, 0)]


@pytest.mark.parametrize("verified", [True, False])
def test_a_pod_that_is_not_bound_closes_no_card(verified: bool) -> None:
    cluster = Cluster(VENDORS, verify=(lambda _: True) if verified else None)
    cluster.observe_node(THERE)
    annotations = {ALLOCATED: "g-0,NVIDIA,much,0:g-1,NVIDIA,7,0:;", "hami.io/vgpu-node": "n"}
    made = pod("x", container(gpu=2, memory=7), annotations=annotations)
    cluster.observe_pod(made)
    assert all(not table.cards["NVIDIA"].closed for table in cluster.card_tables.values())
    assert used(cluster) == [(0, 0, 0), (1, 7, 0)]
