"""A rolling update keeps its bounds at every step, and comes to its end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.controllers import deployments
from hami_sandbox.controllers.deployments import Bounds, Set


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        (4, "25%", "25%", Bounds(1, 1)),
        (3, "25%", "25%", Bounds(1, 0)),
        (10, "25%", "25%", Bounds(3, 2)),
        (4, 2, 0, Bounds(2, 0)),
        (4, 0, 0, Bounds(0, 1)),
        (1, "0%", "0%", Bounds(0, 1)),
        (0, "25%", "25%", Bounds(0, 0)),
        (2, 0, 5, Bounds(0, 2)),
    ],
)
def test_shares_are_rounded_up_for_more_and_down_for_fewer(
    replicas: int, surge: str | int, unavailable: str | int, expected: Bounds
) -> None:
    assert deployments.bounds(replicas, surge, unavailable) == expected


def test_the_first_rollout_starts_all_at_once() -> None:
    assert deployments.new_size(3, Bounds(1, 0), Set(0), []) == 3


def test_pods_that_never_worked_are_given_up_first() -> None:
    broken, serving = Set(2, 0), Set(2, 2)
    assert deployments.old_sizes(3, Bounds(1, 1), Set(1, 0), [serving, broken]) == [2, 0]


@given(
    replicas=st.integers(0, 12),
    surge=st.integers(0, 4) | st.sampled_from(["0%", "25%", "100%"]),
    unavailable=st.integers(0, 4) | st.sampled_from(["0%", "25%", "100%"]),
    old=st.lists(st.integers(0, 12), max_size=3),
)
def test_every_step_keeps_the_bounds_and_the_last_has_only_new_pods(
    replicas: int, surge: str | int, unavailable: str | int, old: list[int]
) -> None:
    limits = deployments.bounds(replicas, surge, unavailable)
    new, new_ready = 0, 0
    sizes, ready = list(old), list(old)  # the old pods serve
    began = sum(old)
    for _ in range(200):
        sets = [Set(*each) for each in zip(sizes, ready, strict=True)]
        new = deployments.new_size(replicas, limits, Set(new, new_ready), sets)
        sizes = deployments.old_sizes(replicas, limits, Set(new, new_ready), sets)
        assert new + sum(sizes) <= max(replicas + limits.surge, began)
        ready = [min(each) for each in zip(sizes, ready, strict=True)]
        new_ready = min(new_ready, new)
        least = min(replicas, began) - limits.unavailable
        assert new_ready + sum(ready) >= min(least, replicas - limits.unavailable)
        if new == new_ready == replicas and not any(sizes):
            return
        new_ready = min(new, new_ready + 1)  # pods come up one by one
    pytest.fail(f"no end: {new}/{new_ready} new, {sizes} old")
