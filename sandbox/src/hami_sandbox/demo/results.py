"""How examples ended: what of each was met, and what the whole says."""

from __future__ import annotations

import enum

import msgspec


class Verdict(enum.Enum):
    AS_SAID = "as said"
    OTHERWISE = "otherwise"
    SKIPPED = "skipped"


class Met(msgspec.Struct, frozen=True):
    """One check, and what was there to see."""

    words: str
    met: bool
    seen: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    promise: str
    verdict: Verdict
    seconds: float = 0.0
    checks: tuple[Met, ...] = ()
    #: What happened beside the checks: why it was skipped, what went wrong.
    note: str = ""

    def happened(self) -> str:
        """Say it in a line: what went otherwise, or that nothing did."""
        if self.note:
            return self.note
        wrong = [check for check in self.checks if not check.met]
        if wrong:
            return f"expected {wrong[0].words}; {wrong[0].seen}"
        return f"{len(self.checks)} of {len(self.checks)} checks met"


class NodeFact(msgspec.Struct, frozen=True):
    name: str
    cards: str
    #: late, or lock and why.
    binding: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the summary tells."""

    results: tuple[Result, ...]
    nodes: tuple[NodeFact, ...]
    simulated: int
    isolation: str
    #: Seconds after the start; None: no pod was placed.
    ready_after: float
    first_placed_after: float | None
    seconds: float

    @property
    def good(self) -> bool:
        """Whether every example that ran ended as its text says."""
        return all(result.verdict is not Verdict.OTHERWISE for result in self.results)
