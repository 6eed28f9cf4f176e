"""Decide the node of a pod, and the cards of its containers.

`decide` is pure: it reads the cluster and returns the winner with its shares, and the explanation.
To hold the cards, the caller applies `reservation` of the winner to the cluster.

The steps: one survey of every card table, the best node by score and name, the same survey again on
that node alone to learn the cards, and the shares that the vendor's family makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from hami.cluster import state
from hami.cluster.card_table import CardTable, Mask
from hami.cluster.pod_info import Hold, PodInfo
from hami.cluster.state import Asked, Cluster
from hami.placement import explanation, policy, question, score
from hami.placement.explanation import Explanation, Finding
from hami.placement.fit import Survey, Surveyor
from hami.placement.question import Question
from hami.placement.request import PodRequest
from hami.wire.shares import PodShares, Share

_LINKS_NOTE = "topology-aware: links between cards are not weighed yet, cards are spread"


class Placement(msgspec.Struct, frozen=True):
    """The node a pod goes to, and the cards of each container."""

    node: str
    score: float
    #: By vendor name: the shares of each container, in the order of the node's cards.
    shares: Mapping[str, PodShares]


class Decision(msgspec.Struct, frozen=True):
    winner: Placement | None
    explanation: Explanation


Names = Sequence[str] | Asked | None
"""Nodes by name, a kept answer of `Cluster.ask`, or all."""


def decide(cluster: Cluster, pod: PodRequest, names: Names = None) -> Decision:
    """Find the best of the named nodes for a pod.

    What the pod already holds does not count against it.
    """
    if pod.uid not in cluster.pods:
        return _decide(cluster, pod, names)
    held = cluster.apply(state.DropPod(pod.uid))
    try:
        return _decide(cluster, pod, names)
    finally:
        cluster.apply(held)


def reservation(pod: PodRequest, winner: Placement) -> PodInfo:
    """Return what holds the winner's cards until the pod is bound."""
    return PodInfo(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        node=winner.node,
        kinds=pod.kinds,
        shares=tuple(sorted(winner.shares.items())),
        ids=tuple((vendor, total.count) for vendor, total in pod.totals().items()),
        hold=Hold.RESERVED,
    )


class _Surveyed(msgspec.Struct, frozen=True):
    """One card table and what was found in it."""

    table: CardTable
    surveyor: Surveyor
    finding: Finding


def _decide(cluster: Cluster, pod: PodRequest, names: Names) -> Decision:
    asked = cluster.ask(names)
    first = question.ask(cluster, pod)
    surveyed = [
        _survey(table, first, asked) for table in cluster.card_tables.values() if table.rows
    ]
    best = _best(surveyed, pod.node_policy)
    if best is None:
        second = first.hardest_first()
        if second is not None:
            surveyed = [_survey_again(each, second) for each in surveyed]
            best = _best(surveyed, pod.node_policy)
    winner = None if best is None else _place(cluster, *best)
    findings = tuple(each.finding for each in surveyed)
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
            else explanation.near_misses(first, [(each.table, each.finding) for each in surveyed]),
            problems={} if winner else cluster.broken(asked.names),
            notes=(_LINKS_NOTE,) if pod.gpu_policy.wants_links else (),
        ),
    )


def _survey(table: CardTable, asking: Question, asked: Asked) -> _Surveyed:
    rows = slice(0, table.rows)
    if asked.masks is None:
        mask: Mask = table.totals.occupied[rows] > 0
    else:
        mask = asked.masks[table.width]
    surveyor = Surveyor(table, asking)
    return _Surveyed(table, surveyor, Finding(table.names, mask, surveyor.survey(rows, mask)))


def _survey_again(before: _Surveyed, asking: Question) -> _Surveyed:
    """Try another order of containers; the reasons stay those of the first try."""
    surveyor = Surveyor(before.table, asking)
    mask = before.finding.asked
    again = surveyor.survey(slice(0, before.table.rows), mask)
    survey = msgspec.structs.replace(before.finding.survey, fits=again.fits, score=again.score)
    return _Surveyed(before.table, surveyor, Finding(before.finding.names, mask, survey))


def _best(surveyed: Sequence[_Surveyed], node_policy: str) -> tuple[_Surveyed, int] | None:
    """Return the best fitting node: by score, then by name."""
    sign = 1 if node_policy == policy.BINPACK else -1
    found = []
    for each in surveyed:
        survey: Survey = each.finding.survey
        rows = np.flatnonzero(survey.fits)
        if rows.size:
            merit = score.quantize(survey.score[rows]) * sign
            equal = rows[merit == merit.max()]
            row = int(equal[each.table.name_ranks[equal].argmin()])
            found.append((-int(merit.max()), each.finding.names[row], each, row))
    if not found:
        return None
    _, _, best, row = min(found, key=lambda entry: entry[:2])
    return best, row


def _place(cluster: Cluster, surveyed: _Surveyed, row: int) -> Placement:
    """Run the survey on the winner alone, and let the families share its cards."""
    asking = surveyed.surveyor.question
    survey = surveyed.surveyor.survey(slice(row, row + 1), np.ones(1, dtype=np.bool_), choose=True)
    assert survey.fits[0], "the survey of one node agrees with the survey of all"
    node = surveyed.finding.names[row]
    shares: dict[str, list[tuple[Share, ...]]] = {
        vendor: [()] * len(asking.pod.containers) for vendor in asking.families
    }
    for (index, request), taken in zip(asking.steps, survey.taken, strict=True):
        vendor = request.vendor
        cards = cluster.nodes[node].cards[vendor]
        chosen = asking.families[vendor].choose(
            request, [cards[column] for column in np.flatnonzero(taken[:, 0])]
        )
        shares[vendor][index] = tuple(
            Share(
                share.card,
                share.type or vendor,
                share.amount.memory,
                int(share.amount.cores),
                int(share.amount.slots),
            )
            for share in chosen
        )
    merit = float(surveyed.finding.survey.score[row])
    return Placement(node, merit, {vendor: tuple(each) for vendor, each in shares.items()})
