"""Things in progress are not reported, impossible ones once seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from tests.e2e.auditor import settling
from tests.e2e.auditor.evidence import Evidence, TokenThing
from tests.e2e.auditor.findings import MOMENTARY, Finding, Kind
from tests.e2e.auditor.layouts import HAMI
from tests.unit.e2e_tools import auditor_sample as sample
from tests.unit.e2e_tools.auditor_sample import GPU, Draft, container, grant, pod


class Cluster:
    """Shows one piece of evidence after the other, the last for ever; its clock is the pauses."""

    def __init__(self, looks: Sequence[Draft]) -> None:
        self._looks = [look.evidence() for look in looks]
        self.taken = 0
        self.now = 0.0

    def gather(self) -> Evidence:
        self.taken += 1
        return self._looks[min(self.taken, len(self._looks)) - 1]

    def settle(self, patience: float = 5.0) -> list[Finding]:
        return settling.settle(
            self.gather, patience=patience, pause=1.0, clock=lambda: self.now, sleep=self._sleep
        )

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def with_(change: Callable[[Draft], object]) -> Draft:
    draft = sample.clean()
    change(draft)
    return draft


def folder(name: str) -> Draft:
    thing = TokenThing(HAMI, name, f"{HAMI.tokens}/{name}")
    return with_(lambda draft: draft.folders.update({name: thing}))


def overbooked() -> Draft:
    one = pod("uid-x", container(limits={GPU: "1"}), devices=f"{grant('GPU-0', 6000, 0)};")
    return with_(lambda draft: draft.add(one))


def test_a_clean_cluster_costs_one_look() -> None:
    cluster = Cluster([sample.clean()])
    assert cluster.settle() == []
    assert cluster.taken == 1


def test_what_goes_away_in_time_is_not_reported() -> None:
    cluster = Cluster([folder("a"), folder("a"), sample.clean()])
    assert cluster.settle() == []
    assert cluster.taken == 3


def test_what_stands_until_the_end_is_reported_once() -> None:
    cluster = Cluster([folder("a")])
    assert [finding.kind for finding in cluster.settle()] == [Kind.FOLDER_LEFT]
    assert cluster.now == 5.0


def test_things_that_come_and_go_are_not_one_thing_that_stands() -> None:
    cluster = Cluster([folder("a"), folder("b"), folder("c")])
    assert cluster.settle() == []


def test_one_look_is_never_enough_for_what_may_be_in_progress() -> None:
    cluster = Cluster([folder("a"), sample.clean()])
    assert cluster.settle(patience=0.0) == []
    assert cluster.taken == 2


def test_a_double_booking_is_reported_even_if_only_the_first_look_shows_it() -> None:
    cluster = Cluster([overbooked(), sample.clean()])
    assert [finding.kind for finding in cluster.settle()] == [Kind.CARD_MEMORY]


def test_a_double_booking_is_reported_even_if_only_a_later_look_shows_it() -> None:
    cluster = Cluster([folder("a"), overbooked(), sample.clean()])
    assert [finding.kind for finding in cluster.settle()] == [Kind.CARD_MEMORY]


def test_only_what_nobody_decides_alone_is_momentary() -> None:
    """Limits, grants and peaks are wrong at once; files and locks of others take their time."""
    at_once = {kind.split("-")[0] for kind in set(Kind) - MOMENTARY}
    assert {"card", "peak", "driver", "device", "spec"} <= at_once
    assert {
        Kind.SPEC_OWNER,
        Kind.SPEC_LIMITS,
        Kind.POLICY_OWNER,
        Kind.POLICY_LIMITS,
    } & MOMENTARY == set()


def test_a_quiet_cluster_has_no_lock_at_all() -> None:
    def locked(draft: Draft) -> None:
        key = "hami.io/mutex.lock"
        value = "2026-01-01T00:00:00Z,team,bare"
        draft.nodes["node-1"]["metadata"]["annotations"][key] = value

    busy = with_(locked)
    quiet = dataclasses.replace(busy, quiet=True)
    assert Cluster([busy]).settle() == []
    assert [finding.kind for finding in Cluster([quiet]).settle()] == [Kind.LOCK_LEFT]
