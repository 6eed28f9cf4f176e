"""Allocations: init containers by their peak, sidecars and apps by their sum."""

from __future__ import annotations

import pytest

from hami.cluster.pod_info import PodInfo
from hami.wire import shares
from hami.wire.objects import ContainerKind
from hami.wire.shares import Share
from tests import builders

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


@pytest.mark.parametrize(
    ("steps", "want"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([(APP, 3), (APP, 4)], 7, id="app containers add up"),
        pytest.param([(INIT, 5)], 5, id="only an init container"),
        pytest.param([(INIT, 5), (INIT, 9), (INIT, 2)], 9, id="init containers do not add up"),
        pytest.param([(INIT, 20), (APP, 10)], 20, id="a larger init container decides"),
        pytest.param([(INIT, 5), (APP, 10)], 10, id="a smaller init container does not"),
        pytest.param([(SIDECAR, 3), (APP, 4)], 7, id="a sidecar runs beside the app"),
        pytest.param([(SIDECAR, 3), (INIT, 9), (APP, 4)], 12, id="and beside later init"),
        pytest.param([(INIT, 9), (SIDECAR, 3), (APP, 4)], 9, id="but not beside earlier init"),
        pytest.param([(SIDECAR, 3), (SIDECAR, 4), (INIT, 5), (APP, 4)], 12, id="two sidecars"),
    ],
)
def test_the_peak_is_the_most_that_ever_runs_at_once(
    steps: list[tuple[ContainerKind, int]], want: int
) -> None:
    assert shares.peak(steps) == want


def test_ended_init_containers_count_nothing_but_sidecars_still_do() -> None:
    steps = [(SIDECAR, 3), (INIT, 9), (APP, 4)]
    assert shares.peak(steps, init_done=True) == 7


def pod_info(*containers: tuple[ContainerKind, list[tuple[str, int, int]]]) -> PodInfo:
    return PodInfo(
        uid="u",
        namespace="ns",
        name="p",
        node="n",
        kinds=tuple(kind for kind, _ in containers),
        shares=(
            (
                "NVIDIA",
                tuple(
                    tuple(Share(card, "NVIDIA", memory, cores) for card, memory, cores in each)
                    for _, each in containers
                ),
            ),
        ),
    )


def held(of: PodInfo) -> dict[str, tuple[int, int, int]]:
    return {a.card: (a.share_count, a.memory, a.cores) for a in of.allocations()}


@pytest.mark.parametrize(
    ("containers", "want"),
    [
        pytest.param([(APP, [])], {}, id="no device"),
        pytest.param(
            [(APP, [("a", 10, 1)]), (APP, [("b", 20, 2)])],
            {"a": (1, 10, 1), "b": (1, 20, 2)},
            id="two cards",
        ),
        pytest.param(
            [(APP, [("a", 10, 1)]), (APP, [("a", 20, 2)])],
            {"a": (2, 30, 3)},
            id="two app containers on one card are two shares",
        ),
        pytest.param(
            [(INIT, [("a", 10, 1)]), (INIT, [("a", 30, 2)])],
            {"a": (1, 30, 2)},
            id="init containers on one card are one share",
        ),
        pytest.param(
            [(INIT, [("a", 10, 90)]), (APP, [("a", 30, 2)])],
            {"a": (1, 30, 90)},
            id="memory and cores peak each for itself",
        ),
        pytest.param(
            [(INIT, [("a", 50, 5)]), (APP, [("b", 30, 2)])],
            {"a": (1, 50, 5), "b": (1, 30, 2)},
            id="init and app on different cards hold both",
        ),
        pytest.param(
            [(SIDECAR, [("a", 10, 5)]), (INIT, [("a", 50, 5)]), (APP, [("a", 30, 2)])],
            {"a": (2, 60, 10)},
            id="a sidecar adds to both phases",
        ),
    ],
)
def test_a_card_is_held_at_its_peak(
    containers: list[tuple[ContainerKind, list[tuple[str, int, int]]]],
    want: dict[str, tuple[int, int, int]],
) -> None:
    assert held(pod_info(*containers)) == want


def test_quota_counts_the_peak_over_all_cards_and_not_the_sum_of_card_peaks() -> None:
    both = pod_info((INIT, [("a", 50, 5)]), (APP, [("b", 30, 20)]))
    assert list(both.quota_use()) == [("NVIDIA", 50, 20)]


def test_a_pod_shrinks_to_its_app_containers_when_its_init_containers_have_ended() -> None:
    init = [builders.container("prepare", gpu=1)]
    pod_of = {
        code: builders.granted(
            "p",
            "n",
            [("a", 20000, 10)],
            [("a", 10000, 5)],
            init=init,
            init_exit_codes={} if code is None else {"prepare": code},
        )
        for code in (None, 1, 0)
    }
    cluster = builders.cluster(builders.node("n", [builders.card("a", devmem=80000)]))
    cluster.observe_pod(pod_of[None])
    assert builders.use(cluster, "n", "a") == (1, 20000, 10)
    cluster.observe_pod(pod_of[1])
    assert builders.use(cluster, "n", "a") == (1, 20000, 10)
    cluster.observe_pod(pod_of[0])
    assert builders.use(cluster, "n", "a") == (1, 10000, 5)
    assert cluster.quotas.used("default", "NVIDIA") == (10000, 5)


def test_a_sidecar_never_ends_so_only_plain_init_containers_decide_when_a_pod_shrinks() -> None:
    init = [builders.sidecar("proxy", gpu=1), builders.container("prepare", gpu=1)]
    given = [("a", 100, 1)], [("a", 500, 1)], [("a", 200, 1)]
    cluster = builders.cluster(builders.node("n", [builders.card("a")]))
    running = builders.granted("p", "n", *given, init=init)
    cluster.observe_pod(running)
    assert builders.use(cluster, "n", "a") == (2, 600, 2)
    document = builders.granted("p", "n", *given, init=init, init_exit_codes={"prepare": 0})
    assert document.init_done
    cluster.observe_pod(document)
    assert builders.use(cluster, "n", "a") == (2, 300, 2)
