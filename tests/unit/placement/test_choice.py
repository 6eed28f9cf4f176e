"""Choice among fitting cards and nodes: policies, scores and ties."""

from __future__ import annotations

import numpy as np
import pytest

from hami.cluster.state import Cluster
from hami.placement import policy, score
from hami.placement.policy import Key, Weights
from hami.wire import objects
from hami.wire.node_register import RegisteredCard
from tests.builders import ask, card, cards, cluster, container, granted, node, pod, winner


class TestScores:
    """The worked numbers of docs/designs/006-hami-protocol.md."""

    def of(
        self,
        device: RegisteredCard,
        *,
        shares: int = 2,
        cores: int = 1,
        memory: int = 2048,
        weights: Weights | None = None,
    ) -> float:
        """Score a card of which so much would be used."""
        tables = cluster(node("n", [device])).card_tables[8].cards["NVIDIA"]
        scores = score.card_score(
            tables,
            slice(0, 1),
            shares=shares,
            cores=cores,
            memory=memory,
            weights=weights or Weights(),
        )
        return float(scores[0, 0])

    CARD = card("a", count=10, devcore=4, devmem=8192)

    def test_a_card_without_a_request(self) -> None:
        assert self.of(self.CARD) == pytest.approx(7.0)

    def test_a_card_with_a_request(self) -> None:
        assert self.of(self.CARD, shares=3, cores=2, memory=3072) == pytest.approx(11.75)

    def test_weights_multiply_their_part(self) -> None:
        weights = Weights(slot=0, core=2, memory=4)
        assert self.of(self.CARD, weights=weights) == pytest.approx(15.0)

    @pytest.mark.parametrize("empty", ["count", "devcore", "devmem"])
    def test_a_card_without_capacity_scores_nothing(self, empty: str) -> None:
        assert self.of(card("a", **{empty: 0})) == 0.0

    def test_a_node(self) -> None:
        kept = cluster(
            node("n", [card("a"), card("b", index=1)]), granted("x", "n", [("a", 2000, 25)])
        )
        totals = kept.card_tables[8].totals
        found = score.node_score(totals, slice(0, 1), shares=0, cores=0, memory=0)
        assert found[0] == pytest.approx(3.0)

    def test_scores_that_differ_by_rounding_noise_are_equal(self) -> None:
        noisy, exact = 0.1 + 0.2, 0.3
        assert noisy != exact
        assert score.quantize(np.array([noisy])) == score.quantize(np.array([exact]))


class TestTwoNodes:
    """HAMi's Test_Filter: the policies of nodes and cards, in all combinations."""

    def two_nodes(self) -> objects.Pod:
        return pod("p", container(gpu=1, memory=1000, cores=20))

    @pytest.mark.parametrize(
        ("node_policy", "gpu_policy", "want"),
        [
            ("binpack", "binpack", ("node2", [["device4"]])),
            ("binpack", "spread", ("node2", [["device3"]])),
            ("spread", "binpack", ("node1", [["device1"]])),
            ("spread", "spread", ("node1", [["device2"]])),
        ],
    )
    def test_policies(self, node_policy: str, gpu_policy: str, want: object) -> None:
        found = ask(self.kept(), self.two_nodes(), node_policy=node_policy, gpu_policy=gpu_policy)
        assert winner(found) == want

    def test_policies_of_the_pod_come_before_the_configured_ones(self) -> None:
        annotations = {
            "hami.io/node-scheduler-policy": "spread",
            "hami.io/gpu-scheduler-policy": "binpack",
        }
        asking = pod("p", container(gpu=1, memory=1000, cores=20), annotations=annotations)
        assert winner(ask(self.kept(), asking)) == ("node1", [["device1"]])

    def test_an_init_container_decides_where_its_peak_fits(self) -> None:
        asking = pod(
            "p",
            container("app", gpu=1, memory=4000, cores=20),
            init=[container("init", gpu=1, memory=5000, cores=20)],
        )
        found = ask(self.kept(), asking, gpu_policy="binpack")
        assert winner(found) == ("node2", [["device3"], ["device3"]])

    def kept(self) -> Cluster:
        return cluster(
            node("node1", [card("device1"), card("device2", index=1)]),
            node("node2", [card("device3"), card("device4", index=1)]),
            granted("x", "node1", [("device1", 2000, 25)]),
            granted("y", "node2", [("device4", 6000, 75)]),
        )


class TestTies:
    def test_equal_nodes_go_by_name_whatever_the_order_of_their_arrival(self) -> None:
        names = ["n3", "n1", "n2"]
        for order in (names, sorted(names), sorted(names, reverse=True)):
            for node_policy in ("binpack", "spread"):
                kept = cluster(*(node(name, cards(name, 2)) for name in order))
                found = ask(kept, pod("p", container(gpu=1)), order, node_policy=node_policy)
                assert winner(found) == ("n1", [["n1-1"]])

    def test_a_name_is_used_again_after_its_node_was_deleted(self) -> None:
        kept = cluster(*(node(name, cards(name, 2)) for name in ("n1", "n2", "n3")))
        kept.forget_node("n1")
        assert winner(ask(kept, pod("p", container(gpu=1)))) == ("n2", [["n2-1"]])
        kept.observe_node(node("n0", cards("n0", 2)))
        assert winner(ask(kept, pod("p", container(gpu=1)))) == ("n0", [["n0-1"]])

    def test_equal_cards_go_by_the_highest_position(self) -> None:
        kept = cluster(node("n", cards("g", 4)))
        for words in ("binpack", "spread", "mutex", "numa", "numa,spread"):
            found = winner(ask(kept, pod("p", container(gpu=1)), gpu_policy=words))
            assert found == ("n", [["g-3"]])

    def test_a_changed_node_keeps_its_place_among_equals(self) -> None:
        kept = cluster(*(node(name, cards(name, 2)) for name in ("n2", "n1")))
        asked = kept.ask(["n1", "n2"])
        kept.observe_node(node("n2", cards("n2", 2, type="NVIDIA H200")))
        assert kept.ask(asked) is asked, "nothing to look up again"
        assert winner(ask(kept, pod("p", container(gpu=1)), asked)) == ("n1", [["n1-1"]])

    def test_nodes_of_different_width_compete_by_score(self) -> None:
        kept = cluster(node("wide", cards("w", 9)), node("narrow", cards("n", 2)))
        assert winner(ask(kept, pod("p", container(gpu=1)))) == ("narrow", [["n-1"]])
        spread = ask(kept, pod("p", container(gpu=1)), node_policy="spread")
        assert winner(spread) == ("wide", [["w-8"]])


def test_the_node_score_counts_the_incoming_pod() -> None:
    """Both nodes are empty; only with the pod on it is the small one fuller."""
    kept = cluster(node("a-large", cards("l", 8)), node("b-small", cards("s", 1)))
    decision = ask(kept, pod("p", container(gpu=1, memory=1000, cores=10)))
    assert decision.winner is not None
    assert decision.winner.node == "b-small"
    assert decision.winner.score == pytest.approx(10 * (1 / 10 + 10 / 100 + 1000 / 8000))


def test_the_request_itself_counts_in_the_score_of_unequal_cards() -> None:
    """Spread: of two idle cards the larger one is left emptier."""
    devices = [card("large", devmem=16000), card("small", index=1, devmem=8000)]
    found = ask(cluster(node("n", devices)), pod("p", container(gpu=1, memory=4000)))
    assert winner(found) == ("n", [["large"]])


@pytest.mark.parametrize(
    ("words", "numa_bind", "want"),
    [
        (("binpack",), False, (Key.SCORE_HIGH, Key.NUMA_HIGH)),
        (("spread",), False, (Key.SCORE_LOW, Key.NUMA_HIGH)),
        (("topology-aware",), False, (Key.SCORE_LOW, Key.NUMA_HIGH)),
        (("mutex",), False, (Key.USED_LOW, Key.NUMA_HIGH)),
        (("numa",), False, (Key.NUMA_HIGH,)),
        (("binpack", "numa"), False, (Key.SCORE_HIGH, Key.NUMA_HIGH)),
        (("numa", "binpack", "numa"), False, (Key.NUMA_HIGH, Key.SCORE_HIGH)),
        (("spread", "binpack"), False, (Key.SCORE_LOW,)),
        (("mutex", "topology-aware"), False, (Key.SCORE_LOW,)),
        (("mutex", "binpack"), False, (Key.SCORE_HIGH,)),
        (("binpack",), True, (Key.NUMA_LOW, Key.SCORE_HIGH)),
        (("spread",), True, (Key.NUMA_HIGH, Key.SCORE_LOW)),
        (("mutex",), True, (Key.NUMA_HIGH, Key.SCORE_LOW)),
        (("numa",), True, (Key.NUMA_HIGH,)),
        (("binpack", "numa"), True, (Key.NUMA_HIGH, Key.SCORE_HIGH)),
        (("spread", "mutex"), True, (Key.NUMA_HIGH, Key.SCORE_LOW)),
    ],
)
def test_a_policy_is_an_order_of_keys(
    words: tuple[str, ...], *, numa_bind: bool, want: tuple[Key, ...]
) -> None:
    assert policy.parse_gpu_policy(",".join(words), "").order(numa_bind=numa_bind) == want


@pytest.mark.parametrize(
    ("words", "bound", "want"),
    [
        ("binpack", "false", "g-2"),
        ("spread", "false", "g-3"),
        ("mutex", "false", "g-3"),
        ("numa", "false", "g-3"),
        ("numa,binpack", "false", "g-2"),
        ("binpack,numa", "false", "g-2"),
        ("binpack", "true", "g-1"),
        ("spread", "true", "g-3"),
        ("numa,binpack", "true", "g-2"),
    ],
)
def test_policies_order_cards_of_two_numa_nodes(words: str, bound: str, want: str) -> None:
    devices = [card(f"g-{at}", index=at, numa=at // 2) for at in range(4)]
    kept = cluster(
        node("n", devices),
        granted("x", "n", [("g-1", 1000, 0)]),
        granted("y", "n", [("g-2", 2000, 0)]),
    )
    annotations = {"nvidia.com/numa-bind": bound}
    asking = pod("p", container(gpu=1, memory=10), annotations=annotations)
    assert winner(ask(kept, asking, gpu_policy=words)) == ("n", [[want]])


def test_weights_decide_what_full_means() -> None:
    kept = cluster(
        node("n", cards("g", 2)),
        granted("memory", "n", [("g-0", 4000, 0)]),
        granted("cores", "n", [("g-1", 1000, 90)]),
    )
    for weights, want in (("slot=0,core=0,memory=1", "g-0"), ("slot=0,core=1,memory=0", "g-1")):
        annotations = {"hami.io/device-scoring-weights": weights}
        asking = pod("p", container(gpu=1, memory=10), annotations=annotations)
        assert winner(ask(kept, asking, gpu_policy="binpack")) == ("n", [[want]])
