"""Pods that no node could take.

Each keeps its request and a short note of why it was refused. When cards become free, the requests
are tried again (`hami.scheduler.requeue`); pods of one shape are tried once. The notes are written
onto the pods (`hami.scheduler.explanation_notes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator

from hami.placement import request
from hami.placement.request import PodRequest
from hami.scheduler.informers import WatchedCluster, WatchedPod
from hami.wire import annotation_keys, explanation_note, objects
from hami.wire import errors as wire_errors

#: Seconds after a refusal until a pod is tried again though no free card was announced.
AGAIN_S = 5.0
#: Seconds that a pod has to be refused before a note is worth a write.
FIRST_AFTER_S = 2.0


@dataclasses.dataclass(slots=True, eq=False)
class UnschedulablePod:
    """A pod that was refused and is not placed yet."""

    wanted: PodRequest
    note: explanation_note.Note
    refusals: int = 0
    #: Monotonic: when its note may be written next.
    write_from: float = 0.0
    #: The note that the pod carries, as far as we know; None: none.
    written: explanation_note.Note | None = None
    #: (written, note) that were found to be different; None: not compared yet.
    compared: tuple[explanation_note.Note, explanation_note.Note] | None = None
    #: How often it was tried or requeued since it was last refused, and when that is due again.
    tries: int = 0
    try_from: float = 0.0
    #: All that decides where it fits: pods of one shape fit or do not fit together.
    shape: Hashable = ()

    @property
    def key(self) -> str:
        return f"{self.wanted.namespace}/{self.wanted.name}"


class UnschedulablePods:
    """All pods that were refused and are not placed yet, by UID and by shape."""

    def __init__(self, watched: WatchedCluster, *, clock: Callable[[], float]) -> None:
        self._watched = watched
        self._clock = clock
        self._pods: dict[str, UnschedulablePod] = {}
        #: Shape -> UIDs: a thousand pods of one job are tried once.
        self._shapes: dict[Hashable, dict[str, None]] = {}
        watched.pods.add_handler(self._on_pod)

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[UnschedulablePod]:
        return iter(tuple(self._pods.values()))

    def get(self, uid: str) -> UnschedulablePod | None:
        return self._pods.get(uid)

    def shapes(self, namespace: str = "") -> list[Hashable]:
        """Return the shapes of a namespace, the longest ago refused first; "" is any."""
        if not namespace:
            return list(self._shapes)
        return [
            shape for shape in self._shapes if self._one_of(shape).wanted.namespace == namespace
        ]

    def one_of(self, shape: Hashable) -> UnschedulablePod | None:
        """Return a pod of this shape; None: there is none any more."""
        return self._one_of(shape) if shape in self._shapes else None

    def all_of(self, shape: Hashable) -> list[UnschedulablePod]:
        """Return all pods of this shape, the longest ago refused first."""
        return [self._pods[uid] for uid in self._shapes.get(shape, ())]

    def _one_of(self, shape: Hashable) -> UnschedulablePod:
        return self._pods[next(iter(self._shapes[shape]))]

    def refuse(self, pod: objects.Pod, wanted: PodRequest, note: explanation_note.Note) -> None:
        """Keep why a pod was refused just now."""
        if not self._pods:
            self._watched.take_room()  # room from before counted in this refusal
        now = self._clock()
        known = self.forget(pod.uid)
        if known is None:
            known = UnschedulablePod(
                wanted=wanted,
                note=note,
                write_from=now + FIRST_AFTER_S,
                written=carried_note(pod),
            )
        known.wanted, known.note = wanted, note
        known.refusals += 1
        known.tries, known.try_from = 0, now + AGAIN_S
        known.shape = request.shape_of(wanted)
        self._pods[pod.uid] = known
        self._shapes.setdefault(known.shape, {})[pod.uid] = None

    def forget(self, uid: str) -> UnschedulablePod | None:
        """Remove a pod that is placed or deleted; returns it, None if it was not refused."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            alike = self._shapes[pod.shape]
            del alike[uid]
            if not alike:
                del self._shapes[pod.shape]
        return pod

    def _on_pod(self, old: WatchedPod | None, new: WatchedPod | None) -> None:
        if new is None:
            if old is not None:
                self.forget(old.uid)
        elif new.node or new.finished:
            self.forget(new.uid)
        else:
            known = self._pods.get(new.uid)
            if known is not None:
                # Another leader, or a user, may have written since we did.
                known.written = note_in(new.explanation)


def carried_note(pod: objects.Pod) -> explanation_note.Note | None:
    """Return the note that a pod carries; None if it has none, an empty one if it is not ours."""
    return note_in(pod.annotation(annotation_keys.EXPLANATION))


def note_in(text: str) -> explanation_note.Note | None:
    """Return the note in an annotation; None if it is empty, an empty note if it is not ours."""
    if not text:
        return None
    if len(text) > explanation_note.LIMIT:
        return explanation_note.Note()
    try:
        return explanation_note.decode(text)
    except wire_errors.WireError:
        return explanation_note.Note()
