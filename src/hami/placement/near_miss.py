"""Which nodes almost held a pod, and what they were short of.

Worked out at once when a pod is refused, because the amounts are only true while the tables are. Of
the refused nodes those come first that got furthest through the pod's containers, then those with
the fewest cards missing, then by name.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hami.cluster.shelf import Shelf
from hami.placement import choice, explanation
from hami.placement.explanation import Finding, NearMiss
from hami.placement.question import Question
from hami.placement.reasons import Usage
from hami.placement.request import WHOLE_CARD

SHOWN = 3


def find(question: Question, findings: Iterable[tuple[Shelf, Finding]]) -> tuple[NearMiss, ...]:
    """Return the nearest misses, the nearest first."""
    found = [miss for shelf, finding in findings for miss in _of_shelf(question, shelf, finding)]
    found.sort(key=lambda ranked: (ranked[0], ranked[1].node))
    return tuple(miss for _, miss in found[:SHOWN])


def _of_shelf(
    question: Question, shelf: Shelf, finding: Finding
) -> list[tuple[tuple[int, int], NearMiss]]:
    survey = finding.survey
    rows = np.flatnonzero(finding.refused & (survey.node_refusal == 0))
    if not rows.size:
        return []
    needed = np.array([request.count for _, request in question.steps])
    steps = survey.failed_step[rows]
    standing, usage = finding.cards_of(rows)
    eligible = choice.count((standing | usage) == 0)
    # Enough cards that are not on one NUMA node are still one too few.
    missing = np.maximum(needed[steps] - eligible.astype(np.int64), 1)
    # One number to rank by: steps left to fit, cards missing, name.
    distance = (len(needed) - steps) << 48 | missing << 32 | shelf.name_ranks[rows]
    nearest = np.argpartition(distance, min(SHOWN, len(rows) - 1))[:SHOWN]
    return [
        (
            (-int(steps[at]), int(missing[at])),
            _miss(question, shelf, finding, int(rows[at]), int(missing[at])),
        )
        for at in nearest
    ]


def _miss(question: Question, shelf: Shelf, finding: Finding, row: int, missing: int) -> NearMiss:
    survey = finding.survey
    step = int(survey.failed_step[row])
    standing, usage = survey.standing[:, row], survey.usage[:, row]
    position, request = question.steps[step]
    cards = shelf.cards[request.word]
    memory_short: list[int] = []
    cores_short: list[int] = []
    for column, bits in enumerate(zip(standing.tolist(), usage.tolist(), strict=True)):
        # Later steps were judged with the pod's earlier containers in place: not in the tables.
        if step == 0 and bits == (0, Usage.MEMORY):
            total = int(cards.memory[column, row])
            wanted = request.memory or total * request.percentage // WHOLE_CARD
            memory_short.append(wanted - int(cards.memory_left[column, row]))
        if step == 0 and bits == (0, Usage.CORES):
            cores_short.append(request.cores - int(cards.cores_left[column, row]))
    return NearMiss(
        node=finding.names[row],
        text=explanation.cards_text(question, step, standing, usage),
        container=question.pod.containers[position].name,
        vendor=request.word,
        cards_missing=missing,
        memory_short=min(memory_short, default=None),
        cores_short=min(cores_short, default=None),
    )
