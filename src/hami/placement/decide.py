"""Decide where a pod goes.

`decide` is pure: it reads the cluster and returns the winner with its cards, and the explanation.
To hold the cards, the caller applies the winner's ledger row as a reservation. The way: one survey
of every shelf, the best node by score and name, the same survey again on that node alone to learn
the cards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from hami.cluster import state
from hami.cluster.card_table import CardTable
from hami.cluster.pod_info import Allocation, PodInfo
from hami.cluster.state import Asked, Cluster
from hami.placement import explanation, policy, question, score
from hami.placement.explanation import Explanation, Finding
from hami.placement.fit import Survey, Surveyor
from hami.placement.question import Question
from hami.placement.request import WHOLE_CARD, PodRequest
from hami.placement.rules import Mask
from hami.wire.shares import PodShares, Share

_LINKS_NOTE = "topology-aware: links between cards are not weighed yet, cards are spread"


class Placement(msgspec.Struct, frozen=True):
    """The node a pod goes to, and the cards of each container."""

    node: str
    score: float
    #: By vendor word: one slot per container, the cards of a slot by position on the node.
    slots: Mapping[str, PodShares]


class Decision(msgspec.Struct, frozen=True):
    winner: Placement | None
    explanation: Explanation


Names = Sequence[str] | Asked | None
"""Nodes by name, a kept answer of `Cluster.ask`, or all."""


def decide(cluster: Cluster, pod: PodRequest, names: Names = None) -> Decision:
    """Find the best of the named nodes for a pod.

    What the pod already holds in the ledger does not count against it.
    """
    if pod.uid not in cluster.rows:
        return _decide(cluster, pod, names)
    held = cluster.apply(state.DropPod(pod.uid))
    try:
        return _decide(cluster, pod, names)
    finally:
        cluster.apply(held)


def reservation(pod: PodRequest, winner: Placement, *, deadline: float) -> PodInfo:
    """Make the ledger row that holds the winner's cards until the pod is bound or `deadline`."""
    return PodInfo(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        node=winner.node,
        kinds=pod.kinds,
        slots=tuple(sorted(winner.slots.items())),
        ids=tuple((word, total.count) for word, total in pod.totals().items()),
        hold=Allocation.RESERVED,
        deadline=deadline,
    )


class _Judged(msgspec.Struct, frozen=True):
    shelf: CardTable
    surveyor: Surveyor
    finding: Finding


def _decide(cluster: Cluster, pod: PodRequest, names: Names) -> Decision:
    asked = cluster.ask(names)
    first = question.ask(cluster, pod)
    judged = [_judge(shelf, first, asked) for shelf in cluster.shelves.values() if shelf.rows]
    best = _best(judged, pod.node_policy)
    if best is None:
        second = first.hardest_first()
        if second is not None:
            judged = [_judge_again(j, second) for j in judged]
            best = _best(judged, pod.node_policy)
    winner = None if best is None else _settle(cluster, *best)
    findings = tuple(j.finding for j in judged)
    return Decision(
        winner,
        Explanation(
            question=first,
            findings=findings,
            unknown=asked.unknown,
            winner=winner.node if winner else None,
            score=winner.score if winner else None,
            near_misses=()
            if winner
            else explanation.find(first, [(j.shelf, j.finding) for j in judged]),
            problems={} if winner else cluster.broken(asked.names),
            notes=(_LINKS_NOTE,) if pod.gpu_policy.wants_links else (),
        ),
    )


def _judge(shelf: CardTable, asking: Question, asked: Asked) -> _Judged:
    rows = slice(0, shelf.rows)
    if asked.masks is None:
        mask: Mask = shelf.totals.occupied[rows] > 0
    else:
        mask = asked.masks[shelf.width]
    surveyor = Surveyor(shelf, asking)
    return _Judged(shelf, surveyor, Finding(shelf.names, mask, surveyor.survey(rows, mask)))


def _judge_again(before: _Judged, asking: Question) -> _Judged:
    """Try another order of containers; the reasons stay those of the first try."""
    surveyor = Surveyor(before.shelf, asking)
    mask = before.finding.asked
    again = surveyor.survey(slice(0, before.shelf.rows), mask)
    survey = msgspec.structs.replace(before.finding.survey, fits=again.fits, score=again.score)
    return _Judged(before.shelf, surveyor, Finding(before.finding.names, mask, survey))


def _best(judged: Sequence[_Judged], node_policy: str) -> tuple[_Judged, int] | None:
    """Return the best fitting node: by score, then by name."""
    sign = 1 if node_policy == policy.BINPACK else -1
    found = []
    for j in judged:
        survey: Survey = j.finding.survey
        rows = np.flatnonzero(survey.fits)
        if rows.size:
            merit = score.quantize(survey.score[rows]) * sign
            equal = rows[merit == merit.max()]
            row = int(equal[j.shelf.name_ranks[equal].argmin()])
            found.append((-int(merit.max()), j.finding.names[row], j, row))
    if not found:
        return None
    _, _, best, row = min(found, key=lambda entry: entry[:2])
    return best, row


def _settle(cluster: Cluster, judged: _Judged, row: int) -> Placement:
    """Run the survey on the winner alone, and name its cards."""
    asking = judged.surveyor.question
    survey = judged.surveyor.survey(slice(row, row + 1), np.ones(1, dtype=np.bool_), choose=True)
    assert survey.fits[0], "the survey of one node agrees with the survey of all"
    node = judged.finding.names[row]
    slots: dict[str, list[tuple[Share, ...]]] = {
        word: [()] * len(asking.pod.containers) for word in asking.pod.wishes
    }
    for (position, request), taken in zip(asking.steps, survey.taken, strict=True):
        devices = cluster.nodes[node].cards[request.word]
        slots[request.word][position] = tuple(
            Share(
                card=devices[column].id,
                vendor=request.word,
                memory_mib=request.memory
                or devices[column].devmem * request.percentage // WHOLE_CARD,
                cores=request.cores,
            )
            for column in np.flatnonzero(taken[:, 0])
        )
    merit = float(judged.finding.survey.score[row])
    return Placement(node, merit, {word: tuple(cards) for word, cards in slots.items()})
