"""The live view: nodes, cards, pods and the running example.

A bar has three parts: in use, granted beyond that, free. Everything is also there as numbers, so
nothing depends on colours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from hami_sandbox.demo.results import Met, Status
from hami_sandbox.demo.running import Progress
from hami_sandbox.demo.snapshot import CardRow, NodeRow, PodRow, Snapshot

_USED, _GRANTED, _FREE = "█", "▓", "░"
_STYLES = {_USED: Style(color="green"), _GRANTED: Style(color="cyan"), _FREE: Style(dim=True)}
_WIDEST_BAR = 40
_FEWEST_PODS = 3
_GIB = 1024
#: The maker's part of a card's name, which is not shown.
_MAKER = re.compile("^(NVIDIA[- ])*(Tesla )?")
_PHASES = {
    "Running": "green",
    "Succeeded": "green",
    "Pending": "yellow",
    "Failed": "red",
    "Terminating": "dim",
}
_MARKS = {
    Status.AS_EXPECTED: Text("✓", style="green"),
    Status.OTHERWISE: Text("✗", style="red"),
    Status.SKIPPED: Text("-", style="dim"),
}


class Bar:
    """A card's memory."""

    def __init__(self, *, used: float, granted: float, total: float) -> None:
        self._used = used
        self._granted = max(granted, used)
        self._total = max(total, 1.0)

    def text(self, width: int) -> str:
        """Return the bar's letters; whatever is above 0 is seen."""
        used = self._cells(self._used, width)
        granted = max(self._cells(self._granted, width), used)
        return _USED * used + _GRANTED * (granted - used) + _FREE * (width - granted)

    def _cells(self, amount: float, width: int) -> int:
        if amount <= 0:
            return 0
        return min(max(round(amount / self._total * width), 1), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        letters = self.text(min(options.max_width, _WIDEST_BAR))
        for letter, style in _STYLES.items():
            if number := letters.count(letter):
                yield Segment(letter * number, style)


def fitted(snapshot: Snapshot, progress: Progress, console: Console, *, footer: str) -> Group:
    """Draw everything with as many pods as the terminal has lines for."""
    without = render(snapshot, progress, most_pods=0, footer=footer)
    # The line with the number of further pods is there without them, and one more is the cursor's.
    room = console.height - len(console.render_lines(without)) - 1
    return render(snapshot, progress, most_pods=max(room, _FEWEST_PODS), footer=footer)


def render(snapshot: Snapshot, progress: Progress, *, most_pods: int, footer: str = "") -> Group:
    """Draw everything, with at most so many pods."""
    parts: list[RenderableType] = [_nodes(snapshot)]
    if snapshot.simulated.nodes:
        parts.append(_simulated(snapshot))
    if progress.total:
        parts.append(_examples(progress))
    parts.append(_pods(snapshot, most_pods))
    if footer:
        parts.append(Text(footer, style="dim"))
    return Group(*parts)


def _nodes(snapshot: Snapshot) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, expand=True, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    table.add_column("node", no_wrap=True)
    table.add_column("card", no_wrap=True)
    table.add_column("memory: in use, granted, free", ratio=1, min_width=12, no_wrap=True)
    table.add_column("granted", justify="right", no_wrap=True)
    table.add_column("in use", justify="right", no_wrap=True)
    table.add_column("compute", justify="right", no_wrap=True)
    table.add_column("shares", justify="right", no_wrap=True)
    for node in snapshot.nodes:
        _add_node(table, node)
    return table


def _add_node(table: Table, node: NodeRow) -> None:
    label = Text.assemble((node.name, "bold"), (f" {node.binding.partition(' ')[0]}", "dim"))
    for row in node.cards:
        table.add_row(label, *_card(row), end_section=row is node.cards[-1])
        label = Text("")
    if not node.cards:
        table.add_row(label, Text("no cards yet", style="dim"), end_section=True)


def _card(row: CardRow) -> Iterator[RenderableType]:
    card = row.card
    name = f"{card.index} {_MAKER.sub('', card.type)}"
    yield Text(name if card.healthy else f"{name} unhealthy", style="" if card.healthy else "red")
    yield Bar(used=row.used or 0, granted=card.granted_memory, total=card.memory)
    yield f"{_gib(card.granted_memory)}/{_gib(card.memory)} GiB"
    yield "-" if row.used is None else f"{_gib(row.used)} GiB"
    yield f"{card.granted_cores} %"
    yield f"{card.shares}/{card.slots}"


def _simulated(snapshot: Snapshot) -> Text:
    rest = snapshot.simulated
    return Text(
        f"{rest.nodes} simulated nodes: {rest.cards} cards, {_gib(rest.granted_memory)} of "
        f"{_gib(rest.memory)} GiB granted in {rest.shares} shares",
        style="cyan",
    )


def _examples(progress: Progress) -> Panel:
    marks = Text()
    for result in progress.results:
        marks.append_text(_MARKS[result.status]).append(" ")
    marks.append("· " * (progress.total - len(progress.results)), style="dim")
    marks.append(f"{progress.done} of {progress.total} examples")
    lines: list[RenderableType] = [marks]
    title = "all examples are through"
    if progress.example is not None:
        title = f"{progress.example.name}: {progress.example.title}"
        lines += [Text(progress.example.text, style="italic"), *map(_met, progress.met)]
        if progress.waiting_for:
            lines.append(Text(f"… {progress.waiting_for}", style="yellow"))
    return Panel(Group(*lines), title=title, title_align="left", box=box.ROUNDED)


def _met(met: Met) -> Text:
    if met.met:
        return Text.assemble(("✓ ", "green"), met.words)
    return Text.assemble(("✗ ", "red"), met.words, (f": {met.seen}", "red"))


def _pods(snapshot: Snapshot, most: int) -> Table:
    counts = ", ".join(f"{number} {phase}" for phase, number in snapshot.phases) or "none yet"
    table = Table(
        title=f"pods: {counts}",
        title_justify="left",
        title_style="bold",
        box=None,
        expand=True,
        pad_edge=False,
    )
    table.add_column("pod", no_wrap=True, ratio=3)
    table.add_column("phase", no_wrap=True)
    table.add_column("node", no_wrap=True)
    table.add_column("share", no_wrap=True, ratio=2)
    table.add_column("in use", justify="right", no_wrap=True)
    for pod in snapshot.pods[:most]:
        table.add_row(*_pod(pod))
    if (more := len(snapshot.pods) - most) > 0:
        table.add_row(Text(f"and {more} more", style="dim"))
    return table


def _pod(pod: PodRow) -> Iterator[RenderableType]:
    yield pod.name
    yield Text(pod.phase, style=_PHASES.get(pod.phase, ""))
    yield pod.node or "-"
    if pod.cards:
        number = f"{pod.cards} cards, " if pod.cards > 1 else ""
        compute = f", {pod.cores} %" if pod.cores else ""
        yield f"{number}{_gib(pod.memory)} GiB{compute}"
    else:
        yield Text(pod.trouble, style="yellow")
    yield "-" if pod.used is None else f"{_gib(pod.used)} GiB"


def _gib(mib: float) -> str:
    return f"{mib / _GIB:.1f}"
