"""Conditions that leave a card out, and that bring it back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hami.agent.cards import xids
from hami.agent.cards.health import Health, HealthChange

CARD, OTHER = "GPU-a", "GPU-b"


class Bench:
    """A health with a clock that we move and a list of what was announced."""

    def __init__(self, disable: str = "") -> None:
        self.now = 1000.0
        self.announced: list[tuple[str, bool]] = []
        self.reasons: list[str] = []
        self.health = Health(
            clock=lambda: self.now,
            quarantine=300.0,
            ignored=xids.ignored(disable),
            changed=self._changed,
        )

    def _changed(self, change: HealthChange) -> None:
        self.announced.append((change.card, change.healthy))
        self.reasons.append(change.why)

    def later(self, seconds: float) -> bool:
        self.now += seconds
        self.health.tick()
        return self.health.is_healthy(CARD)


def test_a_card_without_reports_is_healthy() -> None:
    bench = Bench()
    bench.health.probed(CARD, "", 0)
    bench.health.tick()
    assert bench.health.is_healthy(CARD)
    assert bench.health.is_healthy("GPU-never-seen")
    assert bench.health.why(CARD) == ""
    assert bench.announced == []


def test_a_critical_error_takes_out_that_card_alone_until_its_time_is_over() -> None:
    bench = Bench()
    assert bench.health.xid(CARD, 79)
    assert not bench.health.is_healthy(CARD)
    assert bench.health.is_healthy(OTHER)
    assert "XID 79" in bench.health.why(CARD)
    bench.health.probed(CARD, "")
    assert not bench.later(299)
    assert bench.later(1)
    assert bench.announced == [(CARD, False), (CARD, True)]
    assert "XID 79" in bench.reasons[0]
    assert bench.reasons[1] == ""


def test_another_error_restarts_the_quarantine() -> None:
    bench = Bench()
    bench.health.xid(CARD, 48)
    assert not bench.later(200)
    bench.health.xid(CARD, 62)
    bench.health.probed(CARD, "")
    assert not bench.later(299)
    assert bench.later(1)
    assert bench.announced == [(CARD, False), (CARD, True)]


def test_a_card_has_to_answer_before_it_comes_back() -> None:
    bench = Bench()
    bench.health.xid(CARD, 79)
    assert not bench.later(1000)
    assert "XID 79" in bench.health.why(CARD)
    bench.health.probed(CARD, "")
    assert bench.health.is_healthy(CARD)


def test_an_error_of_a_program_changes_nothing() -> None:
    bench = Bench()
    assert not bench.health.xid(CARD, 31)
    assert bench.announced == []


def test_an_error_of_no_card_changes_nothing() -> None:
    bench = Bench()
    assert not bench.health.xid("", 79)
    assert bench.announced == []


def test_a_silent_card_stays_out_until_it_answers_and_its_time_is_over() -> None:
    bench = Bench()
    bench.health.probed(CARD, "the GPU is lost")
    assert "the GPU is lost" in bench.health.why(CARD)
    assert not bench.later(1000)
    bench.health.probed(CARD, "the GPU is lost")
    bench.later(10)
    bench.health.probed(CARD, "")
    assert "the GPU is lost" in bench.health.why(CARD)
    assert not bench.later(289)
    assert bench.later(1)
    assert bench.announced == [(CARD, False), (CARD, True)]


def test_a_card_waits_for_its_reset() -> None:
    bench = Bench()
    bench.health.xid(CARD, 95)
    bench.health.probed(CARD, "", 1)
    assert not bench.later(1000)
    assert "--gpu-reset" in bench.health.why(CARD)
    bench.health.probed(CARD, "", 0)
    assert bench.health.is_healthy(CARD)


def test_a_reset_that_the_driver_wants_counts_without_an_error_seen() -> None:
    bench = Bench()
    bench.health.probed(CARD, "", 2)
    assert not bench.health.is_healthy(CARD)
    assert "reboot" in bench.health.why(CARD)
    bench.health.probed(CARD, "", 17)
    assert "17" in bench.health.why(CARD)
    bench.health.probed(CARD, "", None)
    assert bench.health.is_healthy(CARD)


def test_with_probing_turned_off_time_alone_brings_a_card_back() -> None:
    bench = Bench()
    bench.health.ignored = xids.ignored("all", "79")
    bench.health.xid(CARD, 79)
    assert not bench.later(299)
    assert bench.later(1)


class AnyStory(RuleBasedStateMachine):
    """Whatever happens to a card: out for a reason, and announced as often as it changed."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.troubled_at = float("-inf")
        self.answered = True
        self.wanted = 0

    @rule(code=st.sampled_from([13, 63, 48, 79, 94, 777]))
    def error(self, code: int) -> None:
        self.bench.health.xid(CARD, code)
        if code not in {13, 63}:
            self.troubled_at, self.answered = self.bench.now, False

    @rule(action=st.sampled_from([None, 0, 1, 4]))
    def answer(self, action: int | None) -> None:
        self.bench.health.probed(CARD, "", action)
        self.answered, self.wanted = True, action or 0

    @rule()
    def silence(self) -> None:
        self.bench.health.probed(CARD, "lost")
        self.troubled_at, self.answered = self.bench.now, False

    @rule(seconds=st.sampled_from([1, 150, 300, 1000]))
    def wait(self, seconds: int) -> None:
        self.bench.later(seconds)

    @invariant()
    def is_out_exactly_with_reason(self) -> None:
        health = self.bench.health
        rested = self.bench.now >= self.troubled_at + 300
        assert health.is_healthy(CARD) is (rested and self.answered and not self.wanted)
        assert bool(health.why(CARD)) is not health.is_healthy(CARD)
        states = [healthy for _, healthy in self.bench.announced]
        assert states == [bool(place % 2) for place in range(len(states))]
        assert ([True, *states][-1]) is health.is_healthy(CARD)


TestAnyStory = AnyStory.TestCase
TestAnyStory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
