"""Which of several nodes that fit: the emptier one, and what extenders think of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_sandbox.kube_scheduler import requests
from hami_sandbox.kube_scheduler.nodes import Row
from hami_sandbox.kube_scheduler.pods import Pod

#: A node's own score is at most this.
MOST = 100
#: Extenders score up to 10; times their weight it counts as much as a score of the node.
PER_EXTENDER_POINT = 10


def least_allocated(pod: Pod, row: Row) -> int:
    """Return how much of cpu and memory would be left, in percent of what the node has."""
    allocatable = row.node.allocatable if row.node is not None else {}
    kinds = zip((requests.CPU, requests.MEMORY), pod.weight, row.weight, strict=True)
    left = 0
    for name, wanted, used in kinds:
        has = allocatable.get(name, 0)
        if has > 0:
            left += MOST * max(has - used - wanted, 0) // has
    return left // 2


def best(
    rows: Sequence[Row], scores: Mapping[str, int], points: Mapping[str, int], *, turn: int
) -> Row:
    """Return the node with the highest score; those that are equal take turns."""
    if len(rows) == 1:
        return rows[0]
    totals = [
        scores.get(row.name, 0) + PER_EXTENDER_POINT * points.get(row.name, 0) for row in rows
    ]
    highest = max(totals)
    equal = [row for row, total in zip(rows, totals, strict=True) if total == highest]
    return equal[turn % len(equal)]
