"""The queue: which pod is tried next, and when again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.kube_scheduler.pods import Pod
from hami_sandbox.kube_scheduler.queue import AT_THE_LATEST_S, Entry, Queue
from sandbox.tests.unit.kube_scheduler import makers


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pod(name: str, *, priority: int = 0, created: str = "", **fields: Any) -> Pod:
    metadata = {"creationTimestamp": created} if created else {}
    return makers.pod(name, priority=priority, metadata=metadata, **fields)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def queue(time: Time) -> Queue:
    return Queue(clock=time)


def popped(queue: Queue) -> Entry:
    entry = queue.pop()
    assert entry is not None
    return entry


def names(queue: Queue) -> list[str]:
    found = []
    while (entry := queue.pop()) is not None:
        found.append(entry.pod.name)
    return found


def test_the_most_important_first_then_the_oldest(queue: Queue) -> None:
    queue.put(pod("new", created="2026-01-01T00:00:02Z"))
    queue.put(pod("old", created="2026-01-01T00:00:01Z"))
    queue.put(pod("high", priority=5, created="2026-01-01T00:00:03Z"))
    queue.put(pod("low", priority=-5, created="2026-01-01T00:00:00Z"))
    assert names(queue) == ["high", "old", "new", "low"]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), max_size=20))
def test_the_order_is_that_of_sorting(wanted: list[tuple[int, int]]) -> None:
    queue = Queue(clock=Time())
    for number, (priority, second) in enumerate(wanted):
        created = f"2026-01-01T00:00:0{second}Z"
        queue.put(pod(f"p{number}", priority=priority, created=created))
    order = sorted(range(len(wanted)), key=lambda n: (-wanted[n][0], wanted[n][1], n))
    assert names(queue) == [f"p{number}" for number in order]


def test_backoff_doubles_to_its_end_after_errors(queue: Queue, time: Time) -> None:
    queue.put(pod("p"))
    waits = []
    for _ in range(6):
        queue.failed(popped(queue), error=True)
        wait = queue.seconds_to_next()
        assert wait is not None
        waits.append(wait)
        time.now += wait - 0.001
        assert queue.pop() is None
        time.now += 0.001
    assert waits == [1, 2, 4, 8, 10, 10]


def test_who_fits_nowhere_waits_for_something_to_happen(queue: Queue, time: Time) -> None:
    queue.put(pod("p"))
    queue.failed(popped(queue), error=False)
    time.now += 100
    assert queue.pop() is None
    queue.wake(lambda _: False)
    assert queue.pop() is None
    queue.wake(lambda _: True)
    assert names(queue) == ["p"]


def test_a_wake_up_does_not_shorten_the_backoff(queue: Queue, time: Time) -> None:
    queue.put(pod("p"))
    queue.failed(popped(queue), error=False)
    queue.wake(lambda _: True)
    assert queue.pop() is None
    assert queue.seconds_to_next() == 1
    time.now += 1
    assert names(queue) == ["p"]


@pytest.mark.parametrize("apart", [0.001, 0.02, 0.999])
@pytest.mark.parametrize("beyond", [-0.5, 0.0, 0.0005])
def test_of_backoffs_that_end_soon_after_each_other_priority_decides(
    queue: Queue, time: Time, apart: float, beyond: float
) -> None:
    """Whether something happens before the first has ended, or between the two."""
    queue.put(pod("patient", priority=1))
    queue.failed(popped(queue), error=False)
    time.now += apart
    queue.put(pod("urgent", priority=1000))
    queue.failed(popped(queue), error=False)
    time.now += 1 - apart + beyond
    queue.wake(lambda _: True)
    wait = queue.seconds_to_next()
    assert wait is not None
    assert wait == pytest.approx(max(-beyond, 0))
    time.now += wait
    assert names(queue) == ["urgent", "patient"]


def test_backoffs_that_end_later_are_waited_out(queue: Queue, time: Time) -> None:
    for number in range(3):
        queue.put(pod(f"p{number}"))
        queue.failed(popped(queue), error=True)
        time.now += 0.3 * (number + 1)
    queue.put(pod("last"))
    queue.failed(popped(queue), error=True)  # 1.8 seconds after the first, whose time is over
    assert names(queue) == ["p0", "p1", "p2"]
    assert queue.seconds_to_next() == pytest.approx(1.0)


def test_what_happens_during_a_try_is_not_missed(queue: Queue, time: Time) -> None:
    queue.put(pod("p"))
    entry = popped(queue)
    queue.wake(lambda _: True)
    queue.failed(entry, error=False)
    assert queue.seconds_to_next() == 1
    time.now += 1
    entry = popped(queue)
    queue.failed(entry, error=False)  # this time nothing happened
    time.now += 10
    assert queue.pop() is None


def test_after_five_minutes_it_is_tried_anyhow(queue: Queue, time: Time) -> None:
    queue.put(pod("p"))
    queue.failed(popped(queue), error=False)
    assert queue.seconds_to_next() == AT_THE_LATEST_S
    time.now += AT_THE_LATEST_S
    assert names(queue) == ["p"]


def test_its_own_change_wakes_a_pod_and_its_status_does_not(queue: Queue, time: Time) -> None:
    queue.put(pod("p"))
    queue.failed(popped(queue), error=False)
    time.now += 5
    queue.put(pod("p", status={"conditions": [{"type": "PodScheduled", "status": "False"}]}))
    assert queue.pop() is None
    queue.put(pod("p", labels={"new": "label"}))
    assert popped(queue).pod.labels == {"new": "label"}


def test_a_pod_that_is_gone_is_not_tried_nor_put_back(queue: Queue, time: Time) -> None:
    for name in ("ready", "waiting", "tried", "backoff"):
        queue.put(pod(name))
        if name != "ready":
            entry = popped(queue)
            if name != "tried":
                queue.failed(entry, error=name == "backoff")
        queue.remove(f"uid-{name}")
        assert len(queue) == 0
        queue.wake(lambda _: True)
        if name == "tried":
            assert entry.out
            queue.failed(entry, error=True)
        time.now += 1000
        assert queue.pop() is None, name
        assert queue.seconds_to_next() is None


def test_a_pod_that_came_back_under_its_uid_begins_anew(queue: Queue) -> None:
    queue.put(pod("p"))
    queue.remove("uid-p")
    queue.put(pod("p"))
    assert popped(queue).attempts == 1
    assert queue.pop() is None


def test_a_raised_priority_counts(queue: Queue) -> None:
    queue.put(pod("a", priority=1))
    queue.put(pod("b"))
    queue.put(pod("b", priority=2))
    assert names(queue) == ["b", "a"]


def test_whoever_listens_is_told_when_there_is_somebody(time: Time) -> None:
    told: list[int] = []
    queue = Queue(clock=time, on_change=lambda: told.append(1))
    queue.put(pod("p"))
    assert told
    entry = popped(queue)
    told.clear()
    queue.failed(entry, error=False)
    assert told
    told.clear()
    queue.wake(lambda _: True)
    assert told
