"""Pods that no node could take: why, and what happens when there is room.

Each keeps what it asked for and a short note of why it was refused. The note is written onto the
pod (`hami.scheduler.notes`), so that it outlives us. When cells become free, those who might fit
there are tried, and if one does the node is touched (`hami.scheduler.wake_ups`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator

from hami.placement.explanation import Explanation
from hami.placement.request import PodRequest
from hami.scheduler.world import World
from hami.wire import annotation_keys, errors, explanation_note, objects

#: Seconds after a refusal until a pod is looked at though nobody told of room.
AGAIN_S = 5.0


@dataclasses.dataclass(slots=True, eq=False)
class WaitingPod:
    wanted: PodRequest
    note: explanation_note.Note
    #: Monotonic: when it was first refused, and last.
    since: float
    refused_at: float
    refusals: int = 1
    #: Monotonic: when its note may be written next.
    write_from: float = 0.0
    #: What the pod carries of notes, as far as we know; None: nothing.
    written: explanation_note.Note | None = None
    #: How often it was looked at or woken since it was last refused, and when that is due again.
    looks: int = 0
    look_from: float = 0.0
    #: What decides where it fits: pods of one shape fit or do not fit together.
    shape: Hashable = ()

    @property
    def key(self) -> str:
        return f"{self.wanted.namespace}/{self.wanted.name}"


class Waiting:
    def __init__(
        self, world: World, *, clock: Callable[[], float], first_note_after: float
    ) -> None:
        self._clock = clock
        self._first_note_after = first_note_after
        self._pods: dict[str, WaitingPod] = {}
        #: Shape -> UIDs: a thousand pods of one job are looked at once.
        self._shapes: dict[Hashable, dict[str, None]] = {}
        world.pod_seen.listen(self._on_pod)
        world.pod_gone.listen(self._on_gone)

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(tuple(self._pods.values()))

    def get(self, uid: str) -> WaitingPod | None:
        return self._pods.get(uid)

    def shapes(self, namespace: str = "") -> list[Hashable]:
        """Return what is waited for, the longest ago refused first; "" is any namespace."""
        if not namespace:
            return list(self._shapes)
        return [
            shape for shape in self._shapes if self._one_of(shape).wanted.namespace == namespace
        ]

    def one_of(self, shape: Hashable) -> WaitingPod | None:
        """Return somebody who waits for this."""
        return self._one_of(shape) if shape in self._shapes else None

    def all_of(self, shape: Hashable) -> list[WaitingPod]:
        """Return everybody who waits for this, the longest ago refused first."""
        return [self._pods[uid] for uid in self._shapes.get(shape, ())]

    def _one_of(self, shape: Hashable) -> WaitingPod:
        return self._pods[next(iter(self._shapes[shape]))]

    def refuse(self, pod: objects.Pod, wanted: PodRequest, note: explanation_note.Note) -> None:
        """Keep why a pod was refused just now."""
        now = self._clock()
        known = self.forget(pod.uid)
        if known is None:
            known = WaitingPod(
                wanted=wanted,
                note=note,
                since=now,
                refused_at=now,
                refusals=0,
                write_from=now + self._first_note_after,
                written=carried(pod),
            )
        known.wanted, known.note, known.refused_at = wanted, note, now
        known.refusals += 1
        known.looks, known.look_from = 0, now + AGAIN_S
        known.shape = _shape(wanted)
        self._pods[pod.uid] = known
        self._shapes.setdefault(known.shape, {})[pod.uid] = None

    def forget(self, uid: str) -> WaitingPod | None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            alike = self._shapes[pod.shape]
            del alike[uid]
            if not alike:
                del self._shapes[pod.shape]
        return pod

    def _on_gone(self, uid: str) -> None:
        self.forget(uid)

    def _on_pod(self, pod: objects.Pod) -> None:
        if pod.node_name or pod.finished:
            self.forget(pod.uid)
            return
        known = self._pods.get(pod.uid)
        if known is not None:
            # Another leader, or anybody, may have written since we did.
            known.written = carried(pod)


def _shape(pod: PodRequest) -> Hashable:
    wishes = tuple(sorted(pod.wishes.items()))
    return (
        pod.namespace,
        pod.containers,
        pod.node_policy,
        pod.gpu_policy,
        pod.weights,
        wishes,
    )


def carried(pod: objects.Pod) -> explanation_note.Note | None:
    """Return the note that a pod carries; None if it has none, an empty one if it is not ours."""
    text = pod.annotation(annotation_keys.EXPLANATION)
    if not text:
        return None
    if len(text) > explanation_note.LIMIT:
        return explanation_note.Note()
    try:
        return explanation_note.decode(text)
    except errors.WireError:
        return explanation_note.Note()


def note_of(
    explanation: Explanation, counts: dict[str, tuple[int, int]], *, at: str
) -> explanation_note.Note:
    """Make the short note of a refusal."""
    return explanation_note.Note(
        at=at,
        summary=explanation.summary(counts),
        fitting=explanation.fitting,
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
            for miss in explanation.near_misses
        ),
    )
