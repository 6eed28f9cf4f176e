"""The last word of the demo: a table of the examples, and what there is to know of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hami_sandbox.demo.results import Outcome, Result, Verdict

_STYLES = {Verdict.AS_SAID: "green", Verdict.OTHERWISE: "bold red", Verdict.SKIPPED: "yellow"}


def render(outcome: Outcome) -> Group:
    parts: list[RenderableType] = []
    if outcome.results:
        parts.append(_examples(outcome))
    parts += [Text(line) for line in facts(outcome)]
    parts.append(_verdict(outcome))
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
    told = Text(result.verdict.value, style=_STYLES[result.verdict])
    return told.append(f": {result.happened()}", style="default")


def facts(outcome: Outcome) -> Iterator[str]:
    """Say how the cluster was, a line each."""
    for node in outcome.nodes:
        yield f"node {node.name}: {node.cards}, binding {node.binding}"
    if outcome.simulated:
        yield f"{outcome.simulated} simulated nodes besides"
    if outcome.isolation:
        yield outcome.isolation
    placed = outcome.first_placed_after
    first = "no pod was placed" if placed is None else f"first pod placed after {placed:.1f} s"
    yield f"cluster ready after {outcome.ready_after:.1f} s, {first}"


def _verdict(outcome: Outcome) -> Text:
    numbers = {
        verdict: sum(result.verdict is verdict for result in outcome.results) for verdict in Verdict
    }
    skipped = f", {numbers[Verdict.SKIPPED]} skipped" if numbers[Verdict.SKIPPED] else ""
    ran = len(outcome.results) - numbers[Verdict.SKIPPED]
    if not outcome.results:
        return Text("no examples were run")
    if outcome.good:
        line = f"{ran} of {ran} examples ended as their texts say{skipped}"
        return Text(f"{line}, in {outcome.seconds:.0f} s", style="bold green")
    wrong = numbers[Verdict.OTHERWISE]
    return Text(f"{wrong} of {ran} examples did not end as their texts say{skipped}", style="red")
