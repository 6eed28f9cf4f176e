"""All nodes checked and scored for one kind of pod, and kept up to date.

The pods of a burst are alike: between two of them one node has changed, and only that one is
checked again. Pod affinity is not part of it. Among the nodes that fit, the emptier one wins,
together with the points of the extenders.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping, Sequence

from hami_sandbox.kube_scheduler import checks, pods
from hami_sandbox.kube_scheduler.checks import Reasons
from hami_sandbox.kube_scheduler.nodes import Row
from hami_sandbox.kube_scheduler.pods import Pod

#: A node's own score is at most this.
MOST = 100
#: Extenders score up to 10; times their weight it counts as much as a score of the node.
PER_EXTENDER_POINT = 10


#: Kinds of pods that are remembered; the one that was not asked for the longest goes first.
KINDS = 64


class Survey:
    """The nodes as they are for one kind of pod."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._judged: dict[str, Reasons] = {}
        self._against: Counter[str] = Counter()
        self._changed: dict[str, Row] = {}
        #: Nodes that fit, by name, and how empty they are.
        self.fitting: dict[str, Row] = {}
        self.scores: dict[str, int] = {}

    @property
    def nodes(self) -> int:
        """How many there are, whether they fit or not."""
        return len(self._judged)

    @property
    def against(self) -> Counter[str]:
        """The reasons against the others, and how many have each."""
        return +self._against

    def touch(self, row: Row) -> None:
        self._changed[row.name] = row

    def refresh(self) -> None:
        """Check the nodes that have changed."""
        for name, row in self._changed.items():
            for reason in self._judged.pop(name, ()):
                self._against[reason] -= 1
            self.fitting.pop(name, None)
            self.scores.pop(name, None)
            if row.node is None:
                continue
            found = self._judged[name] = checks.reasons(self._pod, row)
            for reason in found:
                self._against[reason] += 1
            if not found:
                self.fitting[name] = row
                self.scores[name] = least_allocated(self._pod, row)
        self._changed.clear()


class Surveys:
    def __init__(self, rows: Mapping[str, Row]) -> None:
        self._rows = rows
        self._surveys: OrderedDict[Hashable, Survey] = OrderedDict()

    def of(self, pod: Pod) -> Survey:
        """Return the checked and scored nodes for a pod now."""
        survey = self._surveys.get(pod.kind)
        if survey is None:
            survey = self._surveys[pod.kind] = Survey(pod)
            for row in self._rows.values():
                survey.touch(row)
            if len(self._surveys) > KINDS:
                self._surveys.popitem(last=False)
        self._surveys.move_to_end(pod.kind)
        survey.refresh()
        return survey

    def touch(self, row: Row) -> None:
        """Take note that a node, or what is on it, has changed."""
        for survey in self._surveys.values():
            survey.touch(row)


def least_allocated(pod: Pod, row: Row) -> int:
    """Return how much of cpu and memory would be left, in percent of what the node has."""
    allocatable = row.node.allocatable if row.node is not None else {}
    kinds = zip((pods.CPU, pods.MEMORY), pod.weight, row.weight, strict=True)
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
