"""Pods that no node could take, and the explanation kept on each.

Each keeps its request and a short note of why it was refused. When cards become free, the requests
are tried again (`hami.scheduler.requeue`); pods of one shape are tried once.

The note is written onto the pod as an annotation. Events age out and name only the first reason;
the annotation stays until the pod is placed, outlives this process, and every user who may read
the pod can read it. It is written when it has changed, at most once a minute per pod, and not at
all for a pod that is refused only for a moment.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import logging
from collections.abc import Callable, Hashable, Iterator

import msgspec

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.placement import request
from hami.placement.request import PodRequest
from hami.scheduler.informers import WatchedCluster, WatchedPod
from hami.scheduler.leadership import Leadership
from hami.wire import annotation_keys, codec, explanation_note, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Seconds after a refusal until a pod is tried again though no free card was announced.
AGAIN_S = 5.0
#: Seconds that a pod has to be refused before a note is worth a write.
FIRST_AFTER_S = 2.0
INTERVAL_S = 60.0
#: Notes per round, so that a thousand unschedulable pods do not crowd out Bindings.
BATCH = 10
ROUND_S = 0.5
_SOME_TIME = "2000-01-01T00:00:00Z"


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


class ExplanationNotes:
    """Write the notes of unschedulable pods onto them, while this replica leads."""

    def __init__(
        self,
        client: Client,
        unschedulable: UnschedulablePods,
        leadership: Leadership,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._unschedulable = unschedulable
        self._leadership = leadership
        self._clock = clock

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.write_due()

    async def write_due(self) -> None:
        """Write the notes that are due, at most a batch of them."""
        if not self._leadership.leading:
            return
        now = self._clock()
        due = [pod for pod in self._unschedulable if pod.write_from <= now and _is_news(pod)]
        # The longest due first, so that every pod gets its note.
        for pod in heapq.nsmallest(BATCH, due, key=lambda pod: pod.write_from):
            await self._write(pod)

    async def _write(self, pod: UnschedulablePod) -> None:
        note = pod.note
        patch = {
            "metadata": {
                "uid": pod.wanted.uid,  # another pod of this name must not get it
                "annotations": {annotation_keys.EXPLANATION: explanation_note.encode(note)},
            }
        }
        pod.write_from = self._clock() + INTERVAL_S
        try:
            path = paths.pods(pod.wanted.namespace, pod.wanted.name)
            await self._client.patch(path, codec.encode(patch))
        except (errors.NotFound, errors.Conflict):
            # It was deleted, and the watch has not shown that (or never showed it).
            self._unschedulable.forget(pod.wanted.uid)
        except errors.KubeError as error:
            _log.info(
                "cannot write explanation, retrying", extra={"pod": pod.key, "error": str(error)}
            )
        else:
            pod.written = note


def _is_news(pod: UnschedulablePod) -> bool:
    if pod.written is None:
        return True
    if pod.written is pod.note:
        return False
    # A long note is cut when written, so the written forms are compared.
    if _without_time(pod.written) != _without_time(pod.note):
        return True
    pod.written = pod.note  # quicker the next time
    return False


def _without_time(note: explanation_note.Note) -> str:
    # As long as a real time: where a note is cut depends on the length.
    return explanation_note.encode(msgspec.structs.replace(note, at=_SOME_TIME))
