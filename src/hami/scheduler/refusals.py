"""Refusals of pods, kept for equal pods while the cluster is the same.

A job brings a thousand equal pods, and kube-scheduler asks about each of them, again and again. The
refusal of the first is the refusal of all, until something changes: so it is kept by the pod's
shape, for one set of asked nodes and one state of the cluster (`Cluster.changes`), with its texts
already encoded. Any change drops all of them: a kept refusal is byte by byte what a new decision
would give. Only what says which pod it is about is not in it: the time, and the containers' names.

A pod that holds cards itself is decided without them, so its refusal is neither kept nor reused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import msgspec

from hami.cluster.state import Asked, Cluster
from hami.placement import decide, explanation, request
from hami.placement.decide import Decision
from hami.placement.explanation import Explanation, Group
from hami.placement.request import PodRequest
from hami.wire import explanation_note, extender_api

#: Node names per reason in an event; the rest is a number.
NAMED = 5
#: Bytes of answers that are kept: a few dozen shapes on a cluster of 5,000 nodes.
_KEPT_BYTES = 16 * 2**20


class Refusal(msgspec.Struct, frozen=True):
    """Why no node takes a pod, in each form in which it is sent."""

    #: To kube-scheduler.
    answer: bytes
    #: One line, for logs and traces.
    summary: str
    #: For the event on the pod.
    message: str
    #: For the pod's annotation, without a time.
    note: explanation_note.Note


class _Kept(msgspec.Struct, frozen=True):
    refusal: Refusal
    asked_nodes: int
    #: Names of the containers of the pod that was decided.
    containers: tuple[str, ...]


class Refusals:
    """Decide about pods, or repeat the refusal of an equal pod."""

    def __init__(self, cluster: Cluster, *, unresolvable: bool = True) -> None:
        self._cluster = cluster
        self._unresolvable = unresolvable
        self._kept: dict[Hashable, _Kept] = {}
        self._bytes = 0
        #: The state and the nodes that the kept refusals are about.
        self._changes = cluster.changes
        self._asked: Asked | None = None
        #: How many pods were refused without a decision, since start.
        self.repeated = 0

    def decide(self, pod: PodRequest, asked: Asked, asked_nodes: int) -> Decision | Refusal:
        """Choose the best of these nodes; a refusal if none fits."""
        if pod.uid in self._cluster.pods:
            return self._decide(pod, asked, asked_nodes)
        if asked is not self._asked or self._changes != self._cluster.changes:
            self._kept.clear()
            self._bytes = 0
            self._asked, self._changes = asked, self._cluster.changes
        shape = request.shape_of(pod)
        kept = self._kept.get(shape)
        if kept is not None and kept.asked_nodes == asked_nodes:
            refusal = _for_containers(kept, pod)
            if refusal is not None:
                self.repeated += 1
                return refusal
        decision = self._decide(pod, asked, asked_nodes)
        if isinstance(decision, Refusal):
            self._keep(shape, _Kept(decision, asked_nodes, _names(pod)))
        return decision

    def _decide(self, pod: PodRequest, asked: Asked, asked_nodes: int) -> Decision | Refusal:
        decision = decide.decide(self._cluster, pod, asked)
        if decision.winner is not None:
            return decision
        return refusal_of(decision.explanation, asked_nodes, unresolvable=self._unresolvable)

    def _keep(self, shape: Hashable, kept: _Kept) -> None:
        self._drop(shape)
        self._kept[shape] = kept
        self._bytes += len(kept.refusal.answer)
        while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))

    def _drop(self, shape: Hashable) -> None:
        kept = self._kept.pop(shape, None)
        if kept is not None:
            self._bytes -= len(kept.refusal.answer)


def _names(pod: PodRequest) -> tuple[str, ...]:
    return tuple(container.name for container in pod.containers)


def _for_containers(kept: _Kept, pod: PodRequest) -> Refusal | None:
    """Return a refusal with this pod's container names; None if they cannot be exchanged."""
    names = _names(pod)
    if names == kept.containers:
        return kept.refusal
    new_names = dict(zip(kept.containers, names, strict=True))
    if len(new_names) < len(names):
        return None  # equal names: which of the containers is meant is not known any more
    near = tuple(
        msgspec.structs.replace(miss, container=new_names[miss.container])
        for miss in kept.refusal.note.near
    )
    note = msgspec.structs.replace(kept.refusal.note, near=near)
    return msgspec.structs.replace(kept.refusal, note=note)


def refusal_of(reasons: Explanation, asked_nodes: int, *, unresolvable: bool = True) -> Refusal:
    """Put the explanation of a refused pod into words."""
    groups = tuple(reasons.groups())
    counts = explanation.count_reasons(groups)
    return Refusal(
        answer=extender_api.encode_refusal(
            ((group.names, group.text) for group in groups), unresolvable=unresolvable
        ),
        summary=reasons.summary(counts),
        message=no_node(groups, counts, asked_nodes),
        note=note_of(reasons, counts),
    )


def note_of(
    reasons: Explanation, counts: Mapping[str, tuple[int, int]], *, at: str = ""
) -> explanation_note.Note:
    """Make the short note of a refusal; `at` is its time, in RFC 3339."""
    return explanation_note.Note(
        at=at,
        summary=reasons.summary(counts),
        fitting=reasons.fitting,
        reasons={
            reason: explanation_note.ReasonCount(nodes=nodes, cards=cards)
            for reason, (nodes, cards) in counts.items()
        },
        near=tuple(
            explanation_note.Near(
                node=miss.node,
                container=miss.container,
                memory_short=miss.memory_short,
                cores_short=miss.cores_short,
                cards_missing=miss.cards_missing,
            )
            for miss in reasons.near_misses
        ),
    )


def no_node(
    groups: Iterable[Group], counts: Mapping[str, tuple[int, int]], asked_nodes: int
) -> str:
    """Return why no node fits: each reason with its number of nodes, and some of their names."""
    names: dict[str, list[str]] = {}
    for group in groups:
        for reason in group.reasons:
            known = names.setdefault(reason, [])
            known.extend(sorted(group.names)[:NAMED] if len(known) < NAMED else ())
    parts = []
    for reason, (nodes, _) in counts.items():
        named = sorted(names[reason])[:NAMED]
        more = f",… {nodes - len(named)} more" if nodes > len(named) else ""
        parts.append(f"{nodes} nodes {reason}({','.join(named)}{more})")
    head = f"no available node, {asked_nodes} nodes do not meet"
    return "; ".join([head, *parts])
