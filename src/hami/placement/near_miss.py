"""Which nodes almost held a pod, and what they were short of.

Worked out at once when a pod is refused, because the amounts are only true while the tables are. Of
the refused nodes those come first that got furthest through the pod's containers, then those with
the fewest cards missing, then by name.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hami.cluster.shelf import Shelf
from hami.placement import checks, choice, explanation
from hami.placement.explanation import Finding, NearMiss
from hami.placement.question import Question
from hami.placement.reasons import Usage

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
    eligible = choice.count((survey.standing[:, rows] | survey.usage[:, rows]) == 0)
    missing = np.maximum(needed[steps] - eligible.astype(np.int64), 0)
    nearest = np.lexsort((shelf.name_ranks[rows], missing, -steps))[:SHOWN]
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
    text = explanation.cards_text(question, step, survey.standing[:, row], survey.usage[:, row])
    shortest: dict[Usage, int] = {}
    if step == 0:  # later steps were judged with the pod's earlier containers in place
        _, request = question.steps[step]
        cards = shelf.cards[request.word]
        wanted = np.broadcast_to(
            checks.memory_wanted(request, cards, slice(row, row + 1)), (shelf.width, 1)
        )
        short = {
            Usage.MEMORY: wanted[:, 0] - (cards.memory[:, row] - cards.memory_used[:, row]),
            Usage.CORES: request.cores - (cards.cores[:, row] - cards.cores_used[:, row]),
        }
        for bit, amounts in short.items():
            only = (survey.standing[:, row] == 0) & (survey.usage[:, row] == bit)
            if only.any():
                shortest[bit] = int(amounts[only].min())
    return NearMiss(
        node=finding.names[row],
        text=text,
        cards_missing=missing,
        memory_short=shortest.get(Usage.MEMORY),
        cores_short=shortest.get(Usage.CORES),
    )
