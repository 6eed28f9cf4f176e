"""Holdings and cards in the reference: docs/placement.md, sections 2 and 7."""

from __future__ import annotations

import pytest

from hami.wire import objects
from tests.oracle.hand_made_cases import (
    APP,
    INIT,
    SIDECAR,
    ask,
    card,
    gpu,
    node,
    placed,
    pod,
    quota,
)
from tests.oracle.reference_holdings import by_node, cards_of, peak
from tests.oracle.reference_quota import quota_of
from tests.oracle.reference_request import Kind
from tests.oracle.sample_vendors import NVIDIA


@pytest.mark.parametrize(
    ("series", "want"),
    [
        ([], 0),
        ([(APP, 2), (APP, 3)], 5),
        ([(INIT, 7), (APP, 3)], 7),
        ([(INIT, 2), (INIT, 3), (APP, 4)], 4),
        ([(SIDECAR, 3), (INIT, 5), (APP, 4)], 8),
        ([(INIT, 5), (SIDECAR, 3), (APP, 4)], 7),
        ([(INIT, 9), (SIDECAR, 3), (INIT, 5), (APP, 4)], 9),
    ],
)
def test_peaks(series: list[tuple[Kind, int]], want: int) -> None:
    assert peak(series) == want


def used(there: objects.Node, *pods: objects.Pod) -> list[tuple[int, int, int]]:
    cards = cards_of(there, NVIDIA, by_node(pods).get(there.name, []))
    return [(c.shares, c.memory, c.cores) for c in cards]


def test_a_pod_shrinks_when_its_init_containers_are_done() -> None:
    there = node("n", card("a", devmem=40960))
    devices = "a,NVIDIA,20000,10:;a,NVIDIA,10000,5:;"
    before = placed("p", "n", devices, INIT, APP)
    failed = placed("p", "n", devices, INIT, APP, init_exit_code=1)
    after = placed("p", "n", devices, INIT, APP, init_exit_code=0)
    assert used(there, before) == used(there, failed) == [(1, 20000, 10)]
    assert used(there, after) == [(1, 10000, 5)]
    for held, want in ((before, (20000, 10)), (after, (10000, 5))):
        quota_use = quota_of(NVIDIA, "team", [held], [])
        assert (quota_use.memory_used, quota_use.cores_used) == want


def test_cards_take_their_own_peaks_but_the_quota_takes_that_of_the_pod() -> None:
    there = node("n", card("a"), card("b", 1))
    held = placed("p", "n", "a,NVIDIA,500,10:;b,NVIDIA,300,20:;", INIT, APP)
    assert used(there, held) == [(1, 500, 10), (1, 300, 20)]
    quota_use = quota_of(NVIDIA, "team", [held], [])
    assert (quota_use.memory_used, quota_use.cores_used) == (500, 20)


def test_two_apps_and_a_sidecar_share_a_card_and_unknown_cards_do_not_count() -> None:
    there = node("n", card("a"))
    devices = "a,NVIDIA,1,2:;;a,NVIDIA,3,4:x,NVIDIA,9,9:;a,NVIDIA,5,6:;"
    held = placed("p", "n", devices, SIDECAR, INIT, APP, APP)
    assert used(there, held) == [(3, 9, 12)]
    assert used(there, placed("p", "other", devices, SIDECAR, INIT, APP, APP)) == [(0, 0, 0)]


def test_an_earlier_life_of_the_pod_and_finished_pods_do_not_count() -> None:
    there = node("n", card("a", count=1), ids={NVIDIA.count: 1})
    earlier = placed("incoming", "n", "a,NVIDIA,8000,100:;")
    finished = placed("done", "n", "a,NVIDIA,8000,100:;", phase="Succeeded")
    quotas = [quota(memory=8000)]
    assert ask(pod(gpu()), there, pods=[earlier, finished], quotas=quotas).winner == "n"
    assert ask(pod(gpu(), uid="x"), there, pods=[earlier], quotas=quotas).winner is None


def test_ids_are_held_by_foreign_pods_and_by_finished_init_containers() -> None:
    cards = [card("a"), card("b", 1)]
    foreign = pod(gpu(1, 1), uid="foreign", on="n")
    done = placed(
        "done", "n", "a,NVIDIA,1,0:b,NVIDIA,1,0:;a,NVIDIA,1,0:;", INIT, APP, init_exit_code=0
    )
    failed = placed("failed", "n", "a,NVIDIA,1,0:;", phase="Failed")
    pods = [foreign, done, failed]
    for ids, want in ((5, "n"), (4, None)):
        answer = ask(pod(gpu(2, 1)), node("n", *cards, ids={NVIDIA.count: ids}), pods=pods)
        assert answer.winner == want
