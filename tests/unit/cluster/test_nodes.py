"""Nodes come, change and go; their cards and kubelet's device ids bound what fits."""

from __future__ import annotations

import pytest

from hami.cluster import node_info
from hami.vendors import families
from tests.builders import (
    VENDORS,
    ask,
    card,
    cards,
    cluster,
    container,
    granted,
    node,
    pod,
    use,
    winner,
)

ASKING = pod("p", container(gpu=1, memory=1000))


def test_cards_are_ordered_by_index_and_id_however_the_annotation_lists_them() -> None:
    shuffled = [card("c", index=1), card("b", index=0), card("a", index=1)]
    info = node_info.read_node(node("n", shuffled), map(families.of, VENDORS))
    assert [card.id for card in info.cards["NVIDIA"]] == ["b", "a", "c"]


def test_an_unchanged_node_changes_nothing() -> None:
    kept = cluster(node("n", [card("a"), card("b")]))
    assert kept.observe_node(node("n", [card("b"), card("a")])) is None


def test_a_removed_node_is_unknown_and_its_pods_wait_for_it() -> None:
    kept = cluster(node("n", [card("a")]), granted("x", "n", [("a", 3000, 30)]))
    kept.forget_node("n")
    assert ask(kept, ASKING, ["n"]).explanation.failed_nodes() == {"n": "node unregistered"}
    assert kept.forget_node("n") is None
    kept.observe_node(node("n", [card("a")]))
    assert use(kept, "n", "a") == (1, 3000, 30)


@pytest.mark.parametrize(
    ("register", "part"),
    [
        pytest.param("[{", "does not decode", id="truncated"),
        pytest.param('{"id":"a"}', "does not decode", id="not a list"),
        pytest.param('[{"id":"a","count":-1}]', "-1", id="negative count"),
        pytest.param('[{"id":"a"},{"id":"a"}]', "'a'", id="one card twice"),
        pytest.param("[" + "0," * 500_000 + "0]", "(1000003 characters)", id="a megabyte of zeros"),
    ],
)
def test_a_corrupt_register_annotation_closes_that_node_alone(register: str, part: str) -> None:
    kept = cluster(node("bad", register), node("good", [card("a")]))
    decision = ask(kept, ASKING)
    assert winner(decision) == ("good", [["a"]])
    assert decision.explanation.failed_nodes() == {"bad": "node unregistered"}
    (problem,) = kept.problems()["node bad"]
    assert "node bad, hami.io/node-nvidia-register" in problem
    assert part in problem
    assert len(problem) < 500


def test_a_register_annotation_with_more_cards_than_any_machine_has_is_refused() -> None:
    kept = cluster(node("n", cards("g", 1025)))
    assert "1025 cards" in kept.problems()["node n"][0]
    assert ask(kept, ASKING).winner is None


def test_a_corrupt_annotation_loses_no_pod_of_the_node() -> None:
    kept = cluster(node("n", [card("a")]), granted("x", "n", [("a", 3000, 30)]))
    kept.observe_node(node("n", "[{"))
    assert kept.pods["x"].node == "n"
    kept.observe_node(node("n", [card("a")]))
    assert use(kept, "n", "a") == (1, 3000, 30)


def test_cordoned_cards_take_nothing_new_from_the_moment_the_annotation_is_seen() -> None:
    open_node = node("n", [card("a"), card("b")])
    kept = cluster(open_node)
    closed = node("n", [card("a"), card("b")], **{"hami.io/device-cordon": " b , ,zzz"})
    kept.observe_node(closed)
    assert winner(ask(kept, ASKING)) == ("n", [["a"]])
    kept.observe_node(node("n", [card("a"), card("b")], **{"hami.io/device-cordon": "a,b"}))
    assert ask(kept, ASKING).explanation.failed_nodes() == {"n": "2/2 CardCordoned"}
    kept.observe_node(node("n", [card("a"), card("b")], **{"hami.io/device-cordon": "all"}))
    assert ask(kept, ASKING).explanation.failed_nodes() == {"n": "2/2 CardCordoned"}
    kept.observe_node(open_node)
    assert ask(kept, ASKING).winner is not None


def test_cards_that_the_agent_has_closed_take_nothing_new() -> None:
    closed = {"hami.io/node-nvidia-closed": '{"b":"processes of deleted pod team/x run on it"}'}
    kept = cluster(node("n", [card("a"), card("b")], **closed))
    assert winner(ask(kept, ASKING)) == ("n", [["a"]])
    kept.observe_node(node("n", [card("b")], **closed))
    assert ask(kept, ASKING).explanation.failed_nodes() == {"n": "1/1 CardCordoned"}
    kept.observe_node(node("n", [card("b")], **{"hami.io/node-nvidia-closed": "b"}))
    assert ask(kept, ASKING).winner is None
    assert "closed cards of a node" in kept.problems()["node n"][0]
    kept.observe_node(node("n", [card("b")]))
    assert ask(kept, ASKING).winner is not None


class TestDeviceIds:
    """Kubelet gives every container its own ids; without a free one a pod fails on the node."""

    def test_a_node_whose_plugin_has_not_registered_is_unregistered(self) -> None:
        for amount in (None, 0, "0"):
            kept = cluster(node("n", [card("a")], allocatable=amount))
            assert ask(kept, ASKING).explanation.failed_nodes() == {"n": "node unregistered"}

    def test_ids_held_by_pods_bound_the_node_although_its_cards_have_room(self) -> None:
        kept = cluster(
            node("n", [card("a")], allocatable=2),
            granted("x", "n", [("a", 10, 0)]),
            granted("y", "n", [("a", 10, 0)]),
        )
        assert ask(kept, ASKING).explanation.failed_nodes() == {"n": "NodeInsufficientDevice"}
        kept.forget_pod("x")
        assert ask(kept, ASKING).winner is not None

    def test_pods_that_went_past_us_hold_ids_too(self) -> None:
        kept = cluster(
            node("n", [card("a")], allocatable=2),
            pod("foreign", container(gpu=2), node_name="n"),
        )
        assert ask(kept, ASKING).explanation.failed_nodes() == {"n": "NodeInsufficientDevice"}
        assert use(kept, "n", "a") == (1, 8000, 0)  # what it asks for
        kept.observe_pod(pod("foreign", container(gpu=2), node_name="n", phase="Failed"))
        assert ask(kept, ASKING).winner is not None

    def test_a_pod_needs_as_many_ids_as_run_at_once(self) -> None:
        asking = pod("p", container("main", gpu=1), init=[container("prepare", gpu=2)])
        assert ask(cluster(node("n", cards("g", 2), allocatable=1)), asking).winner is None
        assert ask(cluster(node("n", cards("g", 2), allocatable=2)), asking).winner is not None

    def test_ids_of_ended_init_containers_stay_with_the_pod(self) -> None:
        done = granted(
            "x",
            "n",
            [("g-0", 10, 0), ("g-1", 10, 0)],
            [("g-0", 10, 0)],
            init=[container("prepare", gpu=2)],
            init_exit_codes={"prepare": 0},
        )
        kept = cluster(node("n", cards("g", 2), allocatable=2), done)
        assert use(kept, "n", "g-1") == (0, 0, 0)
        assert ask(kept, ASKING).explanation.failed_nodes() == {"n": "NodeInsufficientDevice"}
