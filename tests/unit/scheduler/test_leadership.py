"""Leadership: only by our kube-scheduler's lease, only while it is seen renewed."""

from __future__ import annotations

import datetime as dt

import pytest

from hami.scheduler.leadership import (
    AlwaysLeading,
    Leadership,
    NotLeadingError,
    PermitExpiredError,
    is_sibling,
)
from hami.wire import objects

UUID = "3f0c9d8e-5a47-4c56-9a0f-0f6d2c1b7a90"
OURS = f"sched-1_{UUID}"


class Clocks:
    """A monotonic clock and a wall clock that tests move."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.wall = 1_800_000_000.0

    def pass_by(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds


def make(clocks: Clocks) -> tuple[Leadership, list[bool]]:
    reported: list[bool] = []
    leadership = Leadership(
        is_ours=lambda holder: is_sibling(holder, "sched-1"),
        lease_duration=8,
        renew_deadline=6,
        clock=lambda: clocks.monotonic,
        now=lambda: clocks.wall,
        handlers=[reported.append],
    )
    return leadership, reported


def lease(holder: str, renewed: float) -> objects.Lease:
    time = dt.datetime.fromtimestamp(renewed, dt.UTC).isoformat(timespec="microseconds")
    spec = objects.LeaseSpec(
        holder_identity=holder, renew_time=time.replace("+00:00", "Z"), lease_duration_seconds=8
    )
    return objects.Lease(spec=spec)


@pytest.mark.parametrize(
    ("holder", "ours"),
    {
        OURS: True,
        f"sched-10_{UUID}": False,
        f"sched_{UUID}": False,
        "sched-1": False,
        "sched-1_": False,
        f"sched-1_{UUID}x": False,
        f"sched-1_{UUID[:-1]}": False,
        f"sched-1_{UUID.upper()}": False,
        f"sched-1_more_{UUID}": False,
        f"xsched-1_{UUID}": False,
        "": False,
    }.items(),
)
def test_only_hostname_and_uuid_is_our_sibling(holder: str, ours: bool) -> None:
    assert is_sibling(holder, "sched-1") is ours


def test_the_first_sight_of_a_lease_proves_nothing_and_a_renewal_does() -> None:
    clocks = Clocks()
    leadership, reported = make(clocks)
    leadership.observe(lease(OURS, clocks.wall))
    assert not leadership.leading
    clocks.pass_by(1)
    leadership.observe(lease(OURS, clocks.wall))
    assert leadership.leading
    assert reported == [True]
    assert leadership.term == 1


def lead(clocks: Clocks) -> tuple[Leadership, list[bool]]:
    leadership, reported = make(clocks)
    leadership.observe(lease(OURS, clocks.wall))
    clocks.pass_by(1)
    leadership.observe(lease(OURS, clocks.wall))
    return leadership, reported


def test_without_a_renewal_leadership_ends_at_the_renew_deadline() -> None:
    clocks = Clocks()
    leadership, reported = lead(clocks)
    clocks.pass_by(5.9)
    leadership.check()
    clocks.pass_by(0.2)
    with pytest.raises(NotLeadingError, match="not seen renewing the lease for 6 s"):
        leadership.check()
    leadership.tick()
    assert reported == [True, False]


def test_the_same_lease_seen_again_is_no_renewal() -> None:
    clocks = Clocks()
    leadership, _ = lead(clocks)
    renewed = clocks.wall
    clocks.pass_by(5)
    leadership.observe(lease(OURS, renewed))
    clocks.pass_by(2)
    assert not leadership.leading


def test_a_watch_that_is_late_shortens_the_time_by_its_delay() -> None:
    clocks = Clocks()
    leadership, _ = make(clocks)
    leadership.observe(lease(OURS, clocks.wall - 3))
    clocks.pass_by(1)
    leadership.observe(lease(OURS, clocks.wall - 2))  # seen 2 s after it was written
    assert leadership.permit(leadership.term).may_take == pytest.approx(4 + 2 - 1, abs=1e-3)
    clocks.pass_by(4.1)
    assert not leadership.leading


def test_a_wall_clock_set_back_buys_no_time() -> None:
    clocks = Clocks()
    leadership, _ = make(clocks)
    leadership.observe(lease(OURS, clocks.wall))
    clocks.monotonic += 1
    leadership.observe(lease(OURS, clocks.wall + 3600))
    clocks.monotonic += 6.1
    assert not leadership.leading


def test_another_holder_ends_leadership_at_once() -> None:
    clocks = Clocks()
    leadership, reported = lead(clocks)
    other = f"sched-2_{UUID}"
    leadership.observe(lease(other, clocks.wall))
    with pytest.raises(NotLeadingError, match=other):
        leadership.check()
    assert reported == [True, False]


def test_a_deleted_lease_ends_leadership() -> None:
    clocks = Clocks()
    leadership, _ = lead(clocks)
    leadership.observe(None)
    with pytest.raises(NotLeadingError, match="the lease has no holder"):
        leadership.check()


def test_a_sibling_that_was_restarted_has_to_renew_first() -> None:
    clocks = Clocks()
    leadership, reported = lead(clocks)
    again = "sched-1_11111111-2222-3333-4444-555555555555"
    leadership.observe(lease(again, clocks.wall))
    assert not leadership.leading
    clocks.pass_by(1)
    leadership.observe(lease(again, clocks.wall))
    assert leadership.leading
    assert reported == [True, False, True]
    assert leadership.term == 2


def test_after_a_pause_of_the_process_a_new_term_begins_without_a_check_in_between() -> None:
    clocks = Clocks()
    leadership, reported = lead(clocks)
    clocks.pass_by(20)  # stopped: nothing ran, and the sibling renewed meanwhile
    leadership.observe(lease(OURS, clocks.wall - 0.5))
    assert reported == [True, False, True]
    assert leadership.term == 2


def test_a_write_may_take_until_another_could_lead() -> None:
    clocks = Clocks()
    leadership, _ = lead(clocks)
    # 6 s until we stop, 2 s more until the lease can be another's, 1 s to get it sent.
    assert leadership.permit(leadership.term).may_take == pytest.approx(7, abs=1e-3)
    clocks.pass_by(5)
    assert leadership.permit(leadership.term).may_take == pytest.approx(2, abs=1e-3)


def test_a_write_that_is_not_sent_soon_needs_another_permit() -> None:
    clocks = Clocks()
    leadership, _ = lead(clocks)
    permit = leadership.permit(leadership.term)
    clocks.pass_by(0.9)
    permit.check()
    clocks.pass_by(0.2)
    with pytest.raises(PermitExpiredError):
        permit.check()
    leadership.permit(leadership.term).check()


def test_what_was_decided_in_an_earlier_term_is_not_permitted() -> None:
    clocks = Clocks()
    leadership, _ = lead(clocks)
    decided = leadership.term
    permit = leadership.permit(decided)
    leadership.observe(lease(f"sched-2_{UUID}", clocks.wall))
    leadership.observe(lease(OURS, clocks.wall))
    leadership.observe(lease(OURS, clocks.wall + 0.1))
    leadership.check()
    for attempt in (lambda: leadership.permit(decided), permit.check):
        with pytest.raises(NotLeadingError, match="lost and gained again"):
            attempt()


def test_without_the_lease_there_is_no_permit() -> None:
    clocks = Clocks()
    leadership, _ = lead(clocks)
    permit = leadership.permit(leadership.term)
    clocks.pass_by(6.1)
    with pytest.raises(NotLeadingError):
        leadership.permit(leadership.term)
    with pytest.raises(NotLeadingError):
        permit.check()


def test_a_lease_without_a_readable_time_counts_from_its_sight() -> None:
    clocks = Clocks()
    leadership, _ = make(clocks)
    for renewed in ("yesterday", "today"):
        spec = objects.LeaseSpec(holder_identity=OURS, renew_time=renewed)
        leadership.observe(objects.Lease(spec=spec))
    assert leadership.permit(leadership.term).may_take == pytest.approx(7)


def test_the_only_replica_always_leads() -> None:
    reported: list[bool] = []
    leadership = AlwaysLeading(clock=lambda: 5.0, handlers=[reported.append])
    leadership.tick()
    leadership.check()
    assert reported == [True]
    leadership.permit(leadership.term).check()
