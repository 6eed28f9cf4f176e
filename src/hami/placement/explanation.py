"""Explanation of a decision: why a pod goes to its node, or to none.

A decision leaves its raw findings here: bits per card and node, and the names they belong to. They
are turned into words only when a caller asks, each distinct reason once. FailedNodes of the
extender, events, `hami explain`, traces and the dashboard are all views of this object. It stays
true when the cluster changes, because nothing in it points into the live tables.

Near misses, the nodes that almost held a refused pod, are worked out at once, because the amounts
are only true while the tables are. First come the nodes that got furthest through the pod's
containers, then those with the fewest cards missing, then by name.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from hami.cluster.card_table import Cards, CardTable, Flags, Mask
from hami.placement import fit
from hami.placement.checks import (
    FIXED_REASONS,
    NODE_DETAILS,
    NODE_REASONS,
    REASON_NUMBERS,
    REASONS,
    USAGE_REASONS,
    CardRefusals,
    Fixed,
    NodeReason,
    Usage,
)
from hami.placement.fit import Survey
from hami.placement.question import Question
from hami.vendors.family import OneCard, Reason
from hami.wire.node_register import RegisteredCard

_ELIGIBLE, _NO_CARD = 0, 255
_NO_CARDS_KNOWN = "no cards of the node are known"

Rows = npt.NDArray[np.intp]


class NearMiss(msgspec.Struct, frozen=True):
    """A node that almost held the pod."""

    node: str
    #: As in FailedNodes.
    text: str
    #: The container and the vendor of the cards it was about.
    container: str
    vendor: str
    #: How many more cards would have had to be eligible, at least one.
    cards_missing: int
    #: The smallest amounts that a card refused for nothing else was short of, where one was.
    memory_short: int | None = None
    cores_short: int | None = None


class ReasonCount(msgspec.Struct, frozen=True):
    """Where one reason was met."""

    nodes: tuple[str, ...]
    #: Cards over all those nodes; 0 for reasons of whole nodes.
    cards: int


class Group(msgspec.Struct, frozen=True):
    """Nodes that were refused for the same reasons."""

    names: Sequence[str]
    #: How many cards of each node a reason refused; a reason of the whole node refused none.
    reasons: Counter[str]
    #: What the reason of a whole node means here.
    detail: str = ""
    #: The container whose cards were too few, and the vendor's name; empty for whole nodes.
    container: str = ""
    vendor: str = ""

    @property
    def text(self) -> str:
        """As in FailedNodes."""
        return _text(self.reasons)


class Finding(msgspec.Struct, frozen=True):
    """What was found in one card table."""

    names: Sequence[str]
    asked: Mask
    survey: Survey

    @property
    def refused(self) -> Mask:
        return self.asked & ~self.survey.fits

    def names_of(self, rows: Rows) -> Sequence[str]:
        if rows.size == len(self.names):
            return self.names
        return [self.names[row] for row in rows.tolist()]


class Explanation(msgspec.Struct, frozen=True):
    """Everything a decision knows about its nodes."""

    question: Question
    findings: tuple[Finding, ...]
    #: Names asked about of which we know no card.
    unknown: tuple[str, ...]
    winner: str | None
    score: float | None
    near_misses: tuple[NearMiss, ...]
    #: Nodes asked about whose annotations do not decode, and why; only if no node fits.
    problems: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def fitting(self) -> int:
        """How many nodes could take the pod."""
        return sum(int(np.count_nonzero(f.survey.fits)) for f in self.findings)

    def groups(self) -> Iterator[Group]:
        """Yield the refused nodes that were asked about, those with the same reasons together."""
        if self.unknown:
            yield Group(self.unknown, Counter({str(NodeReason.UNREGISTERED): 0}), _NO_CARDS_KNOWN)
        for finding in self.findings:
            yield from _groups(self.question, finding)

    def failed_nodes(self) -> dict[str, str]:
        """Return the text of every refused node that was asked about."""
        failed: dict[str, str] = {}
        for group in self.groups():
            failed.update(dict.fromkeys(group.names, group.text))
        return failed

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return, for every reason met, the number of nodes and of cards, sorted by reason."""
        return count_reasons(self.groups())

    def by_reason(self) -> dict[str, ReasonCount]:
        """Return, for every reason met, the nodes (sorted) and the number of cards."""
        nodes: dict[str, list[str]] = {}
        cards: Counter[str] = Counter()
        for group in self.groups():
            for reason, number in group.reasons.items():
                nodes.setdefault(reason, []).extend(group.names)
                cards[reason] += number * len(group.names)
        return {r: ReasonCount(tuple(sorted(nodes[r])), cards[r]) for r in sorted(nodes)}

    def to_data(self, *, most_nodes: int = 10) -> dict[str, object]:
        """Return plain data for JSON; at most so many nodes are named per reason."""
        pod = self.question.pod
        details: Counter[str] = Counter()
        requests: Counter[str] = Counter()
        for group in self.groups():
            if group.detail:
                details[group.detail] += len(group.names)
            else:
                requests[f"{group.vendor} of container {group.container}"] += len(group.names)
        return {
            "pod": f"{pod.namespace}/{pod.name}",
            "uid": pod.uid,
            "winner": self.winner,
            "score": self.score,
            "fitting": self.fitting,
            "reasons": {
                reason: {
                    "nodes": len(found.nodes),
                    "cards": found.cards,
                    "names": list(found.nodes[:most_nodes]),
                }
                for reason, found in self.by_reason().items()
            },
            "details": dict(details),
            "failedRequests": dict(requests),
            "problems": dict(self.problems),
            "nearMisses": [msgspec.to_builtins(miss) for miss in self.near_misses],
            "notes": list(self.notes),
        }

    def summary(self, counts: Mapping[str, tuple[int, int]] | None = None) -> str:
        """Return one line; `counts` if they are known already."""
        if self.winner is not None:
            return f"placed on {self.winner} (score {self.score:.2f}), {self.fitting} nodes fit"
        met = self.counts() if counts is None else counts
        reasons = (f"{nodes} nodes {reason}" for reason, (nodes, _) in met.items())
        line = "no node fits: " + (", ".join(reasons) or "no node was asked about")
        for miss in self.near_misses[:1]:
            short = [
                f"{amount} {unit} short on its best card"
                for amount, unit in ((miss.memory_short, "MiB"), (miss.cores_short, "% cores"))
                if amount is not None
            ]
            line += f"; nearest {miss.node} ({', '.join(short) or miss.text})"
        for node, problem in list(self.problems.items())[:1]:
            line += f"; {problem}" if node in problem else f"; {node}: {problem}"
        return line


def count_reasons(groups: Iterable[Group]) -> dict[str, tuple[int, int]]:
    """Add up how many nodes and cards met each reason, sorted by reason."""
    nodes: Counter[str] = Counter()
    cards: Counter[str] = Counter()
    for group in groups:
        for reason, number in group.reasons.items():
            nodes[reason] += len(group.names)
            cards[reason] += number * len(group.names)
    return {reason: (nodes[reason], cards[reason]) for reason in sorted(nodes)}


def _groups(question: Question, finding: Finding) -> Iterator[Group]:
    survey = finding.survey
    for number, reason in enumerate(NODE_REASONS):
        rows = np.flatnonzero(finding.refused & (survey.node_refusal == number))
        if reason is not None and rows.size:
            yield Group(finding.names_of(rows), Counter({str(reason): 0}), NODE_DETAILS[number])
    by_cards = finding.refused & (survey.node_refusal == 0)
    for step in np.flatnonzero(np.bincount(survey.failed_step[by_cards])).tolist():
        index, request = question.steps[step]
        rows = np.flatnonzero(by_cards & (survey.failed_step == step))
        numbers = card_reasons(question, step, survey.refusals.of_rows(rows))
        met = np.flatnonzero(np.bincount(numbers.ravel(), minlength=_NO_CARD + 1)[:_NO_CARD])
        counts = np.stack([fit.count(numbers == number) for number in met])
        for members in _alike(counts):
            reasons = zip(met.tolist(), counts[:, members[0]].tolist(), strict=True)
            yield Group(
                finding.names_of(rows[members]),
                Counter({str(REASONS[number - 1]): cards for number, cards in reasons if cards}),
                container=question.pod.containers[index].name,
                vendor=request.vendor,
            )


def _alike(columns: npt.NDArray[np.uint16]) -> list[Rows]:
    """Group equal columns; returns the positions of each group."""
    key = np.zeros(columns.shape[1], dtype=np.int64)
    for row in columns:
        if key.max() >= 1 << 47:  # no room for 16 bits more: number what is distinct
            key = np.unique(key, return_inverse=True)[1]
        key = key << 16 | row
    if (key == key[0]).all():
        return [np.arange(key.size)]
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def card_reasons(question: Question, step: int, refusals: CardRefusals) -> Flags:
    """Return the number of each card's reason for not being taken in a step that failed."""
    _, request = question.steps[step]
    numbers = _fixed_table().take(refusals.fixed)
    np.copyto(numbers, _usage_table().take(refusals.usage), where=numbers == _ELIGIBLE)
    if refusals.own is not None:
        np.copyto(numbers, refusals.own, where=numbers == _ELIGIBLE)
    eligible = numbers == _ELIGIBLE
    bound = question.pod.selectors[request.vendor].numa_bind
    numa = (fit.count(eligible) >= request.count) & bound
    leftover = np.where(
        numa,
        np.uint8(REASON_NUMBERS[Reason.NUMA_NOT_FIT]),
        np.uint8(REASON_NUMBERS[Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST]),
    )
    np.copyto(numbers, leftover, where=eligible)
    return numbers


def _lowest_bit_table(reasons: Mapping[int, Reason]) -> Flags:
    """Make a table from a byte of bits to the number of the lowest bit's reason; 0 is none."""
    table = np.zeros(256, dtype=np.uint8)
    for bits in range(256):
        for bit, reason in sorted(reasons.items()):
            if bits & bit:
                table[bits] = REASON_NUMBERS[reason]
                break
    return table


@functools.cache
def _fixed_table() -> Flags:
    table = _lowest_bit_table(FIXED_REASONS)
    table[np.arange(256) & Fixed.ABSENT != 0] = _NO_CARD
    return table


@functools.cache
def _usage_table() -> Flags:
    return _lowest_bit_table(USAGE_REASONS)


def _text(counts: Counter[str]) -> str:
    """Write `1/8 CardNotHealth, 7/8 CardInsufficientMemory`, or the reason of a whole node."""
    cards = counts.total()
    return ", ".join(
        sorted(f"{n}/{cards} {reason}" if n else reason for reason, n in counts.items())
    )


SHOWN = 3


def near_misses(
    question: Question, findings: Iterable[tuple[CardTable, Finding]]
) -> tuple[NearMiss, ...]:
    """Return the nearest misses, the nearest first."""
    found = [miss for table, finding in findings for miss in _of_table(question, table, finding)]
    found.sort(key=lambda ranked: (ranked[0], ranked[1].node))
    return tuple(miss for _, miss in found[:SHOWN])


def _of_table(
    question: Question, table: CardTable, finding: Finding
) -> list[tuple[tuple[int, int], NearMiss]]:
    survey = finding.survey
    rows = np.flatnonzero(finding.refused & (survey.node_refusal == 0))
    if not rows.size:
        return []
    needed = np.array([request.count for _, request in question.steps])
    steps = survey.failed_step[rows]
    eligible = fit.count(survey.refusals.of_rows(rows).eligible())
    # Enough cards that are not on one NUMA node are still one too few.
    missing = np.maximum(needed[steps] - eligible.astype(np.int64), 1)
    # One number to rank by: steps left to fit, cards missing, name.
    distance = (len(needed) - steps) << 48 | missing << 32 | table.name_ranks[rows]
    nearest = np.argpartition(distance, min(SHOWN, len(rows) - 1))[:SHOWN]
    return [
        (
            (-int(steps[at]), int(missing[at])),
            _miss(question, table, finding, int(rows[at]), int(missing[at])),
        )
        for at in nearest
    ]


def _sizes(cards: Cards, column: int, row: int) -> OneCard:
    """Return the sizes of a card in the table."""
    cell = column, row
    return OneCard(
        RegisteredCard(
            devmem=int(cards.memory[cell]),
            devcore=int(cards.cores[cell]),
            mode=cards.modes.texts[int(cards.mode_number[cell])],
        )
    )


def _miss(
    question: Question, table: CardTable, finding: Finding, row: int, missing: int
) -> NearMiss:
    survey = finding.survey
    step = int(survey.failed_step[row])
    index, request = question.steps[step]
    refusals = survey.refusals.of_row(row)
    reasons = card_reasons(question, step, refusals).ravel().tolist()
    memory_short: list[int] = []
    cores_short: list[int] = []
    # Later steps were checked with the pod's earlier containers in place: not in the tables.
    if step == 0:
        cards, family = table.cards[request.vendor], question.families[request.vendor]
        memory_short = [
            int(asked.memory) - int(cards.memory_left[column, row])
            for column in refusals.only(Usage.MEMORY)
            for asked in [family.amounts(request, _sizes(cards, column, row))]
        ]
        cores_short = [
            int(asked.cores) - int(cards.cores_left[column, row])
            for column in refusals.only(Usage.CORES)
            for asked in [family.amounts(request, _sizes(cards, column, row))]
        ]
    return NearMiss(
        node=finding.names[row],
        text=_text(Counter(str(REASONS[number - 1]) for number in reasons if number != _NO_CARD)),
        container=question.pod.containers[index].name,
        vendor=request.vendor,
        cards_missing=missing,
        memory_short=min(memory_short, default=None),
        cores_short=min(cores_short, default=None),
    )
