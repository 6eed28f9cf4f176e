"""A refused pod learns why, node by node, and what would have been enough."""

from __future__ import annotations

import json

from hami.placement.explanation import NearMiss
from hami.wire import codec
from tests.builders import ask, card, cards, cluster, container, granted, node, pod


def test_every_refused_node_has_its_text_and_unknown_ones_are_unregistered() -> None:
    kept = cluster(
        node("full", [card("a", devmem=10), card("b", health=False)]),
        node("closed", [card("c")], allocatable=0),
        node("fits", [card("d")]),
    )
    decision = ask(kept, pod("p", container(gpu=1, memory=100)), ["full", "closed", "gone", "fits"])
    assert decision.explanation.failed_nodes() == {
        "full": "1/2 CardInsufficientMemory, 1/2 CardNotHealth",
        "closed": "node unregistered",
        "gone": "node unregistered",
    }
    assert decision.explanation.winner == "fits"
    assert decision.explanation.fitting == 1


def test_only_nodes_that_were_asked_about_are_explained_or_chosen() -> None:
    kept = cluster(node("a", [card("1")]), node("b", [card("2", devmem=1)]))
    decision = ask(kept, pod("p", container(gpu=1, memory=100)), ["b"])
    assert decision.winner is None
    assert decision.explanation.failed_nodes() == {"b": "1/1 CardInsufficientMemory"}
    assert ask(kept, pod("p", container(gpu=1)), []).explanation.failed_nodes() == {}


def test_a_kept_question_stays_right_when_nodes_come_and_go() -> None:
    kept = cluster(node("a", [card("1", devmem=1)]), node("b", [card("2")]))
    asked = kept.ask(["a", "b", "c"])
    asking = pod("p", container(gpu=1, memory=100))
    assert ask(kept, asking, asked).explanation.failed_nodes() == {
        "a": "1/1 CardInsufficientMemory",
        "c": "node unregistered",
    }
    kept.forget_node("a")
    kept.forget_node("b")
    kept.observe_node(node("c", [card("3")]))
    decision = ask(kept, asking, asked)
    assert decision.explanation.winner == "c"
    assert set(decision.explanation.failed_nodes()) == {"a", "b"}


def test_a_question_is_recognised_by_its_names_and_not_by_its_list() -> None:
    kept = cluster(node("a", [card("1")]), node("b", [card("2")]))
    names = ["a"]
    asking = pod("p", container(gpu=1))
    assert ask(kept, asking, names).explanation.winner == "a"
    names[0] = "b"
    assert ask(kept, asking, names).explanation.winner == "b"
    assert kept.ask(["b"]) is kept.ask(["b"])


def test_reasons_name_their_nodes_and_count_their_cards() -> None:
    kept = cluster(
        node("n2", cards("b", 8, devmem=10)),
        node("n1", [*cards("a", 8, devmem=10), card("ill", index=9, health=False)]),
        node("none", []),
    )
    reasons = ask(kept, pod("p", container(gpu=1, memory=100)), ["n1", "n2", "none", "gone"])
    by_reason = reasons.explanation.by_reason()
    assert list(by_reason) == ["CardInsufficientMemory", "CardNotHealth", "node unregistered"]
    assert by_reason["CardInsufficientMemory"].nodes == ("n1", "n2")
    assert by_reason["CardInsufficientMemory"].cards == 16
    assert by_reason["CardNotHealth"].cards == 1
    assert by_reason["node unregistered"].nodes == ("gone", "none")
    assert by_reason["node unregistered"].cards == 0


def test_the_nearest_misses_say_how_little_was_missing() -> None:
    kept = cluster(
        node("far", [card("a"), card("b")]),
        node("near", [card("c"), card("d")]),
        granted("w", "far", [("a", 7900, 0)]),
        granted("x", "far", [("b", 7900, 0)]),
        granted("y", "near", [("c", 7901, 0)]),
    )
    decision = ask(kept, pod("p", container(gpu=2, memory=100)))
    assert decision.winner is not None, "each card still has its 100 MiB"
    asking = pod("p", container(gpu=2, memory=101))
    nearest, other = ask(kept, asking).explanation.near_misses
    assert nearest == NearMiss(
        node="near",
        text="1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
        container="main",
        vendor="NVIDIA",
        cards_missing=1,
        memory_short=2,
    )
    assert (other.node, other.cards_missing, other.memory_short) == ("far", 2, 1)


def test_cores_can_be_short_too() -> None:
    kept = cluster(node("n", [card("a")]), granted("x", "n", [("a", 1, 80)]))
    (miss,) = ask(kept, pod("p", container(gpu=1, memory=1, cores=25))).explanation.near_misses
    assert (miss.memory_short, miss.cores_short) == (None, 5)


def test_a_summary_says_it_in_one_line() -> None:
    kept = cluster(node("n", [card("a", devmem=8000)]))
    fits = ask(kept, pod("p", container(gpu=1, memory=8000)))
    assert fits.explanation.summary() == "placed on n (score 11.00), 1 nodes fit"
    refused = ask(kept, pod("p", container(gpu=1, memory=9000)), ["n", "gone"])
    assert refused.explanation.summary() == (
        "no node fits: 1 nodes CardInsufficientMemory, 1 nodes node unregistered; "
        "nearest n (1000 MiB short on its best card)"
    )


def test_reasons_that_are_one_word_in_hami_have_details() -> None:
    kept = cluster(
        node("few-cards", [card("a")]),
        node("few-ids", cards("b", 2), allocatable=1),
        node("no-plugin", cards("c", 2), allocatable=0),
    )
    explanation = ask(kept, pod("p", container(gpu=2)), ["few-cards", "few-ids", "no-plugin", "x"])
    data = explanation.explanation.to_data()
    assert data["details"] == {
        "the node has fewer cards than one container asks for": 1,
        "kubelet has fewer free device ids than the pod needs": 1,
        "kubelet offers no device id: the device plugin has not registered": 1,
        "no cards of the node are known": 1,
    }
    assert set(explanation.explanation.failed_nodes().values()) == {
        "NodeInsufficientDevice",
        "node unregistered",
    }


def test_details_of_nodes_of_different_width_add_up() -> None:
    kept = cluster(
        node("narrow", cards("a", 2), allocatable=1), node("wide", cards("b", 9), allocatable=1)
    )
    data = ask(kept, pod("p", container(gpu=2))).explanation.to_data()
    assert data["details"] == {"kubelet has fewer free device ids than the pod needs": 2}


def test_a_refusal_says_whose_cards_were_too_few() -> None:
    asking = pod("p", container("small", gpu=1, memory=1), container("large", gpu=1, memory=9000))
    explanation = ask(cluster(node("n", [card("a")])), asking).explanation
    assert explanation.to_data()["failedRequests"] == {"NVIDIA of container large": 1}
    assert explanation.near_misses[0].container == "large"


def test_a_numa_miss_is_not_nearer_than_it_is() -> None:
    bound = {"nvidia.com/numa-bind": "true"}
    kept = cluster(node("n", [card("a", numa=0), card("b", numa=1)]))
    (miss,) = ask(kept, pod("p", container(gpu=2), annotations=bound)).explanation.near_misses
    assert (miss.text, miss.cards_missing) == ("2/2 NumaNotFit", 1)


def test_a_node_whose_annotation_does_not_decode_is_explained_with_the_error() -> None:
    kept = cluster(node("bad", "[{"), node("worse", "x"))
    for names in (["bad", "gone"], None):
        explanation = ask(kept, pod("p", container(gpu=1)), names).explanation
        assert explanation.failed_nodes()["bad"] == "node unregistered"
        assert "does not decode" in explanation.problems["bad"]
        assert "node bad, hami.io/node-nvidia-register" in explanation.summary()
        assert ("worse" in explanation.problems) is (names is None)


def test_an_explanation_is_plain_data() -> None:
    kept = cluster(node("n", [card("a", devmem=8000)]))
    refused = ask(kept, pod("p", container(gpu=1, memory=9000)))
    data = json.loads(codec.encode(refused.explanation.to_data()))
    assert data["pod"] == "default/p"
    assert data["winner"] is None
    assert data["reasons"] == {"CardInsufficientMemory": {"nodes": 1, "cards": 1, "names": ["n"]}}
    assert data["nearMisses"][0]["memory_short"] == 1000


def test_an_explanation_stays_true_when_the_cluster_moves_on() -> None:
    kept = cluster(node("n1", [card("a", devmem=10)]), node("n2", [card("b")]))
    decision = ask(kept, pod("p", container(gpu=1, memory=100)))
    kept.forget_node("n1")
    kept.observe_node(node("n3", [card("c", health=False)]))
    kept.observe_pod(granted("x", "n2", [("b", 8000, 100)]))
    assert decision.explanation.failed_nodes() == {"n1": "1/1 CardInsufficientMemory"}


def test_a_policy_that_is_not_followed_yet_is_noted() -> None:
    annotations = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    kept = cluster(node("n", [card("a")]))
    decision = ask(kept, pod("p", container(gpu=1), annotations=annotations))
    assert "topology-aware" in decision.explanation.notes[0]
    assert ask(kept, pod("p", container(gpu=1))).explanation.notes == ()
