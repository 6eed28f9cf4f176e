"""Pods that no node could take: why, and what happens when there is room.

Each keeps what it asked for and a short note of why it was refused. The note is written onto the
pod (`hami.extender.notes`), so that it outlives us. When cells become free, those who might fit
there are tried, and if one does the node is touched (`hami.extender.wake_ups`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from hami.extender.world import World
from hami.placement.explanation import Explanation
from hami.placement.request import PodRequest
from hami.wire import annotation_keys, errors, explanation_note, objects


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
    #: How often its room was announced since it was last refused, and when last.
    wake_ups: int = 0
    woken_at: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.wanted.namespace}/{self.wanted.name}"

    @property
    def shape(self) -> object:
        """What decides where it fits: pods of one shape fit or do not fit together."""
        pod = self.wanted
        wishes = tuple(sorted(pod.wishes.items()))
        return (
            pod.namespace,
            pod.containers,
            pod.node_policy,
            pod.gpu_policy,
            pod.weights,
            wishes,
        )


class Waiting:
    def __init__(
        self, world: World, *, clock: Callable[[], float], first_note_after: float
    ) -> None:
        self._clock = clock
        self._first_note_after = first_note_after
        self._pods: dict[str, WaitingPod] = {}
        world.pod_seen.listen(self._on_pod)
        world.pod_gone.listen(self._on_gone)

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(tuple(self._pods.values()))

    def get(self, uid: str) -> WaitingPod | None:
        return self._pods.get(uid)

    def refuse(self, pod: objects.Pod, wanted: PodRequest, note: explanation_note.Note) -> None:
        """Keep why a pod was refused just now."""
        now = self._clock()
        known = self._pods.get(pod.uid)
        if known is None:
            self._pods[pod.uid] = WaitingPod(
                wanted=wanted,
                note=note,
                since=now,
                refused_at=now,
                write_from=now + self._first_note_after,
                written=carried(pod),
            )
            return
        known.wanted, known.note, known.refused_at = wanted, note, now
        known.refusals += 1

    def forget(self, uid: str) -> WaitingPod | None:
        return self._pods.pop(uid, None)

    def _on_gone(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def _on_pod(self, pod: objects.Pod) -> None:
        if pod.node_name or pod.finished:
            self._pods.pop(pod.uid, None)


def carried(pod: objects.Pod) -> explanation_note.Note | None:
    """Return the note that a pod carries; None if it has none, an empty one if it is unreadable."""
    text = pod.annotation(annotation_keys.EXPLANATION)
    if not text:
        return None
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
