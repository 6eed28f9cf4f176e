"""Priorities between HAMi's containers, compared with the rule in plain words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami.monitor import hami
from hami.monitor.hami import Feedback, RegionState

STATES = st.dictionaries(
    st.integers(0, 6),
    st.builds(
        RegionState,
        uuids=st.lists(st.sampled_from("abc"), unique=True, max_size=3).map(tuple),
        priority=st.integers(-1, 3),
        recent_kernel=st.integers(-1, 3),
        utilization_switch=st.integers(0, 1),
    ),
    max_size=6,
)


def state(*uuids: str, priority: int, recent_kernel: int, switch: int = 1) -> RegionState:
    return RegionState(
        uuids=uuids, priority=priority, recent_kernel=recent_kernel, utilization_switch=switch
    )


def feedback(recent_kernel: int, switch: int) -> Feedback:
    return Feedback(recent_kernel=recent_kernel, utilization_switch=switch)


def test_alone_on_its_card_a_container_may_have_it_whole() -> None:
    found = hami.decide({1: state("a", priority=1, recent_kernel=2)})
    assert found == {1: feedback(1, 0)}


def test_the_lower_priority_waits_while_the_higher_works() -> None:
    found = hami.decide(
        {
            "high": state("a", priority=0, recent_kernel=2),
            "low": state("a", priority=1, recent_kernel=2),
        }
    )
    assert found == {"high": feedback(1, 0), "low": feedback(-1, 1)}


def test_a_higher_priority_on_any_of_its_cards_makes_it_wait() -> None:
    found = hami.decide(
        {
            "high": state("b", priority=0, recent_kernel=3),
            "low": state("a", "b", priority=1, recent_kernel=0),
        }
    )
    assert found["low"] == feedback(-1, 1)


def test_it_goes_on_when_the_higher_one_has_stopped() -> None:
    found = hami.decide(
        {
            "high": state("a", priority=0, recent_kernel=1),  # counts down to nothing
            "low": state("a", priority=1, recent_kernel=-1),
        }
    )
    assert found == {"high": feedback(0, 0), "low": feedback(0, 0)}


def test_two_of_one_priority_keep_to_their_limits() -> None:
    found = hami.decide({number: state("a", priority=1, recent_kernel=2) for number in range(2)})
    assert found == {0: feedback(1, 1), 1: feedback(1, 1)}


@given(STATES)
def test_a_container_waits_only_for_a_higher_priority_on_its_cards(
    states: dict[int, RegionState],
) -> None:
    found = hami.decide(states)
    assert found.keys() == states.keys()
    for key, answer in found.items():
        mine = states[key]
        ahead = [
            other
            for other in states.values()
            if other.recent_kernel > 1
            and 0 <= other.priority < mine.priority
            and set(other.uuids) & set(mine.uuids)
        ]
        assert (answer.recent_kernel == -1) == bool(ahead)
        assert answer.utilization_switch in (0, 1)
        if ahead:
            assert answer.utilization_switch == 1


@given(STATES)
def test_left_alone_everything_comes_to_rest(states: dict[int, RegionState]) -> None:
    for _ in range(5):
        states = {
            key: RegionState(
                uuids=states[key].uuids,
                priority=states[key].priority,
                recent_kernel=answer.recent_kernel,
                utilization_switch=answer.utilization_switch,
            )
            for key, answer in hami.decide(states).items()
        }
    assert all(each.recent_kernel == 0 for each in states.values())
    assert all(each.utilization_switch == 0 for each in states.values())
