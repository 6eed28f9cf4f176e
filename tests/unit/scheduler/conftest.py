"""Clocks that tests move, and background rounds that tests start by hand."""

from __future__ import annotations

import pytest

from hami.scheduler import compat, evictions, explanation_notes, maintenance, rejected_pods, requeue


class Times:
    """A monotonic clock and a wall clock."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.wall = 1_800_000_000.0

    def clock(self) -> float:
        return self.seconds

    def now(self) -> float:
        return self.wall

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += seconds


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    """Return clocks that stand still; nothing is looked at but when the test says so."""
    for module in (compat, evictions, explanation_notes, maintenance, rejected_pods, requeue):
        monkeypatch.setattr(module, "ROUND_S", 1e6)
    return Times()
