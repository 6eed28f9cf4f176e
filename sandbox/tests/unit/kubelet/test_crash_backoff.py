"""Backoff of a crashing container: 10 s to 5 min, reset after 10 min."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.kubelet.attempts import CrashBackoff, Waits


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def test_the_waits_of_a_container_that_crashes_at_once() -> None:
    clock = Clock()
    backoff = CrashBackoff(Waits(), now=clock)
    waits = []
    for _ in range(8):
        ended_at = clock.time
        wait = backoff.wait("c", ended_at)
        waits.append(wait)
        clock.time = ended_at + wait
        assert backoff.wait("c", ended_at) == 0.0, "the wait is over"
        backoff.restarted("c", ended_at)
    assert waits == [0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


def test_containers_do_not_wait_for_each_other() -> None:
    backoff = CrashBackoff(Waits(), now=Clock())
    backoff.restarted("a", 1000.0)
    assert backoff.wait("a", 1000.0) == 10.0
    assert backoff.wait("b", 1000.0) == 0.0


@given(ran=st.floats(0, 2000), crashes=st.integers(1, 10))
def test_who_ran_long_enough_begins_anew(ran: float, crashes: int) -> None:
    clock = Clock()
    backoff = CrashBackoff(Waits(), now=clock)
    for _ in range(crashes):
        backoff.restarted("c", clock.time)
    clock.time += ran
    assert (backoff.wait("c", clock.time) == 0.0) == (ran > 600.0)
    backoff.restarted("c", clock.time)
    expected = 10.0 if ran > 600.0 else min(10.0 * 2**crashes, 300.0)
    assert backoff.wait("c", clock.time) == expected
