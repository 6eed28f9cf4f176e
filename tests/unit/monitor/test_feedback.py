"""Priorities between HAMi's containers, held against the algorithm's own words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami.monitor import hami_feedback
from hami.monitor.hami_feedback import Standing, Told

STANDINGS = st.dictionaries(
    st.integers(0, 6),
    st.builds(
        Standing,
        uuids=st.lists(st.sampled_from("abc"), unique=True, max_size=3).map(tuple),
        priority=st.integers(-1, 3),
        recent_kernel=st.integers(-1, 3),
        utilization_switch=st.integers(0, 1),
    ),
    max_size=6,
)


def standing(*uuids: str, priority: int, recent_kernel: int, switch: int = 1) -> Standing:
    return Standing(
        uuids=uuids, priority=priority, recent_kernel=recent_kernel, utilization_switch=switch
    )


def told(recent_kernel: int, switch: int) -> Told:
    return Told(recent_kernel=recent_kernel, utilization_switch=switch)


def test_alone_on_its_card_a_container_may_have_it_whole() -> None:
    found = hami_feedback.decide({1: standing("a", priority=1, recent_kernel=2)})
    assert found == {1: told(1, 0)}


def test_the_lower_priority_waits_while_the_higher_works() -> None:
    found = hami_feedback.decide(
        {
            "high": standing("a", priority=0, recent_kernel=2),
            "low": standing("a", priority=1, recent_kernel=2),
        }
    )
    assert found == {"high": told(1, 0), "low": told(-1, 1)}


def test_a_higher_priority_on_any_of_its_cards_makes_it_wait() -> None:
    found = hami_feedback.decide(
        {
            "high": standing("b", priority=0, recent_kernel=3),
            "low": standing("a", "b", priority=1, recent_kernel=0),
        }
    )
    assert found["low"] == told(-1, 1)


def test_it_goes_on_when_the_higher_one_has_stopped() -> None:
    found = hami_feedback.decide(
        {
            "high": standing("a", priority=0, recent_kernel=1),  # counts down to nothing
            "low": standing("a", priority=1, recent_kernel=-1),
        }
    )
    assert found == {"high": told(0, 0), "low": told(0, 0)}


def test_two_of_one_priority_keep_to_their_limits() -> None:
    found = hami_feedback.decide(
        {number: standing("a", priority=1, recent_kernel=2) for number in range(2)}
    )
    assert found == {0: told(1, 1), 1: told(1, 1)}


@given(STANDINGS)
def test_who_waits_shares_a_card_with_somebody_who_goes_first(
    standings: dict[int, Standing],
) -> None:
    found = hami_feedback.decide(standings)
    assert found.keys() == standings.keys()
    for key, answer in found.items():
        mine = standings[key]
        ahead = [
            other
            for other in standings.values()
            if other.recent_kernel > 1
            and 0 <= other.priority < mine.priority
            and set(other.uuids) & set(mine.uuids)
        ]
        assert (answer.recent_kernel == -1) == bool(ahead)
        assert answer.utilization_switch in (0, 1)
        if ahead:
            assert answer.utilization_switch == 1


@given(STANDINGS)
def test_left_alone_everything_comes_to_rest(standings: dict[int, Standing]) -> None:
    for _ in range(5):
        standings = {
            key: Standing(
                uuids=standings[key].uuids,
                priority=standings[key].priority,
                recent_kernel=answer.recent_kernel,
                utilization_switch=answer.utilization_switch,
            )
            for key, answer in hami_feedback.decide(standings).items()
        }
    assert all(each.recent_kernel == 0 for each in standings.values())
    assert all(each.utilization_switch == 0 for each in standings.values())
