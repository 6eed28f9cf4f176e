"""The state follows pods as the API server shows them, by UID."""

from __future__ import annotations

import pytest

from hami.cluster import state
from hami.cluster.pod_info import Hold
from hami.cluster.state import Cluster
from hami.placement import decide, request
from hami.wire import shares
from hami.wire.shares import Share
from tests import builders
from tests.builders import card, cluster, container, granted, node, pod, use
from tests.oracle import rebuild


def test_a_bound_pod_uses_its_cards_until_it_has_finished() -> None:
    kept = cluster(node("n", [card("a")]), granted("p", "n", [("a", 3000, 30)]))
    assert use(kept, "n", "a") == (1, 3000, 30)
    kept.observe_pod(granted("p", "n", [("a", 3000, 30)], phase="Succeeded"))
    assert use(kept, "n", "a") == (0, 0, 0)
    assert not kept.pods


def test_a_deleted_pod_gives_everything_back() -> None:
    kept = cluster(node("n", [card("a")]), granted("p", "n", [("a", 3000, 30)]))
    kept.forget_pod("p")
    assert use(kept, "n", "a") == (0, 0, 0)
    assert kept.quotas.used("default", "NVIDIA") == (0, 0)
    assert kept.forget_pod("p") is None


def test_pods_seen_before_their_node_count_when_the_node_appears() -> None:
    kept = cluster(granted("p", "n", [("a", 3000, 30)]))
    kept.observe_node(node("n", [card("a")]))
    assert use(kept, "n", "a") == (1, 3000, 30)


def test_use_survives_a_change_of_the_nodes_cards() -> None:
    kept = cluster(node("n", [card("a")]), granted("p", "n", [("b", 3000, 30)]))
    assert use(kept, "n", "a") == (0, 0, 0)
    kept.observe_node(node("n", [card("a"), card("b")]))
    assert use(kept, "n", "b") == (1, 3000, 30)
    kept.observe_node(node("n", [*builders.cards("c", 40), card("b")]))
    assert use(kept, "n", "b") == (1, 3000, 30)


def test_the_same_name_with_another_uid_is_another_pod() -> None:
    kept = cluster(node("n", [card("a")]), granted("old", "n", [("a", 3000, 30)]))
    kept.observe_pod(granted("new", "n", [("a", 1000, 10)]))
    assert use(kept, "n", "a") == (2, 4000, 40)


def test_a_grant_is_frozen_when_its_pod_is_first_seen_bound() -> None:
    kept = cluster(node("n", [card("a")]), granted("p", "n", [("a", 3000, 30)]))
    assert kept.observe_pod(granted("p", "n", [("a", 1, 0)])) is None
    assert kept.observe_pod(pod("p", container(gpu=1), node_name="n")) is None
    assert use(kept, "n", "a") == (1, 3000, 30)


def test_a_device_list_that_does_not_decode_is_that_pods_problem_alone() -> None:
    bad = granted(
        "bad",
        "n",
        [("a", 1, 1)],
        annotations={builders.NVIDIA.annotations.allocated: "a,NVIDIA,lots,30:;"},
    )
    kept = cluster(node("n", [card("a")]), granted("good", "n", [("a", 3000, 30)]), bad)
    assert use(kept, "n", "a") == (1, 3000, 30)
    (problem,) = kept.problems()["pod bad"]
    assert "default/bad" in problem
    assert "'lots'" in problem
    assert kept.pods["bad"].ids == (("NVIDIA", 1),), "kubelet gave it an id all the same"
    kept.forget_pod("bad")
    assert not kept.problems()


def test_a_pod_annotated_by_hamis_scheduler_counts_before_it_is_bound() -> None:
    promised = granted("p", "n", [("a", 3000, 30)])
    unbound = pod(
        "p",
        container(gpu=1),
        annotations={key: value for key, value in promised.annotations.items() if value},
    )
    kept = cluster(node("n", [card("a")]), unbound)
    assert use(kept, "n", "a") == (1, 3000, 30)
    assert kept.pods["p"].hold is Hold.ANNOTATED
    kept.observe_pod(pod("p", container(gpu=1)))
    assert use(kept, "n", "a") == (0, 0, 0)


class TestReservations:
    def reserved(self) -> tuple[Cluster, request.PodRequest]:
        kept = cluster(node("n", [card("a")]))
        asking = pod("p", container(gpu=1, memory=3000, cores=30))
        demand = request.parse(asking, builders.VENDORS, request.Defaults())
        assert demand is not None
        decision = decide.decide(kept, demand)
        assert decision.winner is not None
        row = decide.reservation(demand, decision.winner)
        kept.apply(state.PutPod(row))
        return kept, demand

    def test_a_reservation_is_seen_by_the_next_decision_at_once(self) -> None:
        kept, _ = self.reserved()
        assert use(kept, "n", "a") == (1, 3000, 30)
        crowd = builders.ask(kept, pod("q", container(gpu=1, memory=5001)))
        assert crowd.explanation.failed_nodes() == {"n": "1/1 CardInsufficientMemory"}

    def test_a_pod_that_is_filtered_again_does_not_stand_in_its_own_way(self) -> None:
        kept, _ = self.reserved()
        before = rebuild.snapshot(kept)
        again = builders.ask(kept, pod("p", container(gpu=1, memory=8000, cores=100)))
        assert builders.winner(again) == ("n", [["a"]])
        assert all((before[key] == value).all() for key, value in rebuild.snapshot(kept).items())

    def test_a_reservation_survives_updates_of_the_pod_that_is_not_bound_yet(self) -> None:
        kept, _ = self.reserved()
        assert kept.observe_pod(pod("p", container(gpu=1, memory=3000, cores=30))) is None
        assert use(kept, "n", "a") == (1, 3000, 30)

    def test_the_bound_pod_takes_its_reservations_place(self) -> None:
        kept, _ = self.reserved()
        kept.observe_pod(granted("p", "n", [("a", 3000, 30)]))
        assert use(kept, "n", "a") == (1, 3000, 30)
        assert kept.pods["p"].hold is Hold.BOUND
        assert kept.lapse("p") is None

    def test_a_reservation_that_lapses_frees_its_cards(self) -> None:
        kept, _ = self.reserved()
        kept.lapse("p")
        assert use(kept, "n", "a") == (0, 0, 0)


def given(*lengths: int) -> tuple[tuple[Share, ...], ...]:
    return tuple(
        tuple(Share(f"{at}.{number}", "NVIDIA", 1, 1) for number in range(length))
        for at, length in enumerate(lengths)
    )


@pytest.mark.parametrize(
    ("written", "counts", "want"),
    [
        pytest.param(given(0, 1), [0, 1], given(0, 1), id="one entry per container"),
        pytest.param(given(0, 1, 0, 0), [0, 1], given(0, 1), id="with empty entries behind"),
        pytest.param(given(1), [0, 1], ((), given(1)[0]), id="HAMi left the empty entry out"),
        pytest.param(
            given(1, 2), [0, 1, 0, 2], ((), given(1)[0], (), given(1, 2)[1]), id="and two of them"
        ),
        pytest.param(
            given(1), [1, 0, 0], (given(1)[0], (), ()), id="empty entries behind left out"
        ),
        pytest.param(
            given(2, 1), [1, 0], ((), (*given(2)[0], *given(2, 1)[1])), id="fits nowhere: last one"
        ),
        pytest.param((), [1, 0], ((), ()), id="nothing granted"),
    ],
)
def test_shares_find_their_containers(
    written: tuple[tuple[Share, ...], ...],
    counts: list[int],
    want: tuple[tuple[Share, ...], ...],
) -> None:
    assert shares.align(written, counts) == want


def test_a_grant_of_hami_with_a_missing_slot_is_not_given_back_when_init_ends() -> None:
    """HAMi leaves out empty places, so the app container's is where the init container's should be.

    docs/designs/006-hami-protocol.md has the format.
    """
    shifted = granted(
        "p",
        "n",
        [("a", 3000, 30)],
        init=[container("prepare")],
        containers=[container("main", gpu=1)],
        init_exit_codes={"prepare": 0},
    )
    assert shifted.init_done
    kept = cluster(node("n", [card("a")]), shifted)
    assert use(kept, "n", "a") == (1, 3000, 30)
