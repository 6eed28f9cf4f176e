"""The suite itself: nothing gains but what the committed lists name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.attacks import attack as attacks
from tests.attacks import exceptions, report
from tests.attacks.attack import GAP, NO_GAIN, REFUSED, REPORTED, Attacker, Outcome, Report, Result

ROOT = Path(__file__).resolve().parents[2]


def test_sixty_attacks_are_tried_by_five_attackers() -> None:
    declared = report.declared()
    assert len(declared) >= 60
    assert {each.attacker for each in declared} == set(Attacker)


def test_only_the_listed_attacks_gain_anything() -> None:
    by_outcome = {
        outcome: {each.id for each in report.declared() if each.outcome == outcome}
        for outcome in (REPORTED, GAP)
    }
    assert by_outcome[REPORTED] == exceptions.SEEN_FROM_THE_HOST
    assert by_outcome[GAP] == exceptions.GAPS


def test_a_gap_says_what_is_done_about_it_and_nothing_else_does() -> None:
    for each in report.declared():
        assert bool(each.reference) == (each.outcome == GAP), each.id


def test_the_page_is_what_the_run_would_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--check"]) == 0, capsys.readouterr().err
    assert report.main(["--chekc"]) == 2


def test_what_other_beds_try_is_declared_so() -> None:
    source = (ROOT / "tests/e2e/test_attacks.py").read_text("utf-8")
    tried = set(re.findall(r'@again\("(.+?)"\)', source))
    assert tried == {each.id for each in report.declared() if "e2e" in each.also}


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (Result(0, "x"), NO_GAIN),
        (Result(0, "x", "no"), REFUSED),
        (Result(-5, "x"), NO_GAIN),
        (Result(1, "x", "no"), GAP),
        (Result(1, "x", reports=(Report("R", 10.0),)), REPORTED),
        (Result(1, "x", reports=(Report("R", 10.1),)), GAP),
        (Result(0, "x", reports=(Report("R", 1.0),)), NO_GAIN),
    ],
)
def test_an_outcome_follows_from_what_was_counted(result: Result, outcome: Outcome) -> None:
    assert result.outcome == outcome


def test_a_declared_outcome_that_did_not_happen_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "DECLARED", {})
    monkeypatch.setattr(attacks, "HAPPENED", {})
    declare = attacks.by(Attacker.TENANT)

    @declare("made-up", "takes a card", REFUSED, "of nothing")
    def attempt(gain: int) -> Result:
        return Result(gain, "cards", "no")

    attempt(0)
    assert attacks.HAPPENED == {"made-up": REFUSED}
    with pytest.raises(AssertionError, match="made-up was expected to end as refused, but known"):
        attempt(1)
