"""Results of the examples, and the summary."""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


class Status(enum.Enum):
    AS_EXPECTED = "as expected"
    OTHERWISE = "otherwise"
    SKIPPED = "skipped"


class Met(msgspec.Struct, frozen=True):
    """One check, and its finding."""

    words: str
    met: bool
    seen: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    promise: str
    status: Status
    seconds: float = 0.0
    checks: tuple[Met, ...] = ()
    #: Why it was skipped, or what went wrong beside the checks.
    note: str = ""

    def happened(self) -> str:
        """Return a line: the checks that failed, or that none did."""
        if self.note:
            return self.note
        wrong = [check for check in self.checks if not check.met]
        if wrong:
            return f"expected {wrong[0].words}; {wrong[0].seen}"
        return f"{len(self.checks)} of {len(self.checks)} checks met"


class NodeLine(msgspec.Struct, frozen=True):
    name: str
    cards: str
    #: late, or lock and why.
    binding: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the summary."""

    results: tuple[Result, ...]
    nodes: tuple[NodeLine, ...]
    simulated: int
    isolation: str
    #: Seconds after the start; None: no pod was placed.
    ready_after: float
    first_placed_after: float | None
    seconds: float

    @property
    def good(self) -> bool:
        """Whether every example that ran ended as its text says."""
        return all(result.status is not Status.OTHERWISE for result in self.results)


_STYLES = {Status.AS_EXPECTED: "green", Status.OTHERWISE: "bold red", Status.SKIPPED: "yellow"}


def render(outcome: Outcome) -> Group:
    parts: list[RenderableType] = []
    if outcome.results:
        parts.append(_examples(outcome))
    parts += [Text(line) for line in facts(outcome)]
    parts.append(_conclusion(outcome))
    return Group(*parts)


def _examples(outcome: Outcome) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("example", no_wrap=True)
    table.add_column("what was expected")
    table.add_column("what happened")
    table.add_column("seconds", justify="right", no_wrap=True)
    for result in outcome.results:
        table.add_row(result.name, result.promise, _happened(result), f"{result.seconds:.1f}")
    return table


def _happened(result: Result) -> Text:
    text = Text(result.status.value, style=_STYLES[result.status])
    return text.append(f": {result.happened()}", style="default")


def facts(outcome: Outcome) -> Iterator[str]:
    """Yield facts about the cluster, a line each."""
    for node in outcome.nodes:
        yield f"node {node.name}: {node.cards}, binding {node.binding}"
    if outcome.simulated:
        yield f"{outcome.simulated} simulated nodes besides"
    if outcome.isolation:
        yield outcome.isolation
    placed = outcome.first_placed_after
    first = "no pod was placed" if placed is None else f"first pod placed after {placed:.1f} s"
    yield f"cluster ready after {outcome.ready_after:.1f} s, {first}"


def _conclusion(outcome: Outcome) -> Text:
    numbers = {
        status: sum(result.status is status for result in outcome.results) for status in Status
    }
    skipped = f", {numbers[Status.SKIPPED]} skipped" if numbers[Status.SKIPPED] else ""
    ran = len(outcome.results) - numbers[Status.SKIPPED]
    if not outcome.results:
        return Text("no examples were run")
    if outcome.good:
        line = f"{ran} of {ran} examples ended as their texts say{skipped}"
        return Text(f"{line}, in {outcome.seconds:.0f} s", style="bold green")
    wrong = numbers[Status.OTHERWISE]
    return Text(f"{wrong} of {ran} examples did not end as their texts say{skipped}", style="red")
