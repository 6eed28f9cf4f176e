"""Pods that no node could take.

Each keeps its request, a short note of why it was refused, and the nodes that kube-scheduler
offered: room elsewhere does not help it. Pods that fit or do not fit together, those of one job for
example, form a group. When cards become free the groups are tried again (`hami.scheduler.requeue`),
each once. The notes are written onto the pods (`hami.scheduler.explanation_notes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator

from hami.cluster.state import Asked
from hami.placement import request
from hami.placement.request import PodRequest
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.watched import WatchedPod
from hami.wire import annotation_keys, explanation_note, objects
from hami.wire import errors as wire_errors

#: Seconds after a refusal until a group is tried again though no free card was announced. The
#: interval doubles with each such try, up to the longest.
AGAIN_S, AGAIN_AT_MOST_S = 5.0, 300.0
_DOUBLINGS = 10
#: Seconds that a pod has to be refused before a note is worth a write.
FIRST_AFTER_S = 2.0


@dataclasses.dataclass(slots=True, eq=False)
class UnschedulablePod:
    """A pod that was refused and is not placed yet."""

    wanted: PodRequest
    note: explanation_note.Note
    group: Group
    priority: int = 0
    refusals: int = 0
    #: Monotonic: when it was refused last, and when its note may be written next.
    refused_at: float = 0.0
    write_from: float = 0.0
    #: The note that the pod carries, as far as we know; None: none.
    written: explanation_note.Note | None = None
    #: (written, note) that were found to be different; None: not compared yet.
    compared: tuple[explanation_note.Note, explanation_note.Note] | None = None

    @property
    def key(self) -> str:
        return f"{self.wanted.namespace}/{self.wanted.name}"


@dataclasses.dataclass(slots=True, eq=False)
class Offer:
    """Nodes that kube-scheduler offered, kept once for all groups that it offered them to."""

    asked: Asked
    groups: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class Group:
    """Unschedulable pods that fit or do not fit together."""

    key: Hashable
    #: Equal for groups that differ only in what they were offered.
    alike: Hashable
    #: The nodes that kube-scheduler offered when it asked last.
    offer: Offer
    priority: int
    #: UIDs, the longest ago refused first.
    uids: dict[str, None] = dataclasses.field(default_factory=dict)
    #: Nodes that were changed for it since one of its pods was refused or placed.
    changed_nodes: set[str] = dataclasses.field(default_factory=set)
    #: How often it was tried since something of its concern changed, and when that is due again.
    tries: int = 0
    try_from: float = 0.0
    #: Whether announced room made it fit since it was refused.
    had_room: bool = False
    #: How often room had been noted when cards were last searched for it in vain.
    searched_at: int = -1

    @property
    def offered(self) -> Asked:
        return self.offer.asked

    def back_off(self, now: float) -> None:
        """Let the next try without announced room come later than the last one did."""
        self.tries += 1
        self.try_from = now + min(AGAIN_S * 2 ** min(self.tries, _DOUBLINGS), AGAIN_AT_MOST_S)


class UnschedulablePods:
    """All pods that were refused and are not placed yet, by UID and by group."""

    def __init__(self, watched: WatchedCluster, *, clock: Callable[[], float]) -> None:
        self._watched = watched
        self._clock = clock
        self._pods: dict[str, UnschedulablePod] = {}
        #: A thousand pods of one job are tried once.
        self._groups: dict[Hashable, Group] = {}
        #: By digest. Thousands of pods may wait, each kind for the same thousands of nodes.
        self._offers: dict[int, Offer] = {}
        watched.pods.add_handler(self._on_pod)

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[UnschedulablePod]:
        return iter(tuple(self._pods.values()))

    def get(self, uid: str) -> UnschedulablePod | None:
        return self._pods.get(uid)

    def groups(self) -> list[Group]:
        """Return all groups, the most important first, then those refused the longest ago."""
        return sorted(self._groups.values(), key=lambda group: -group.priority)

    def group(self, key: Hashable) -> Group | None:
        return self._groups.get(key)

    def first(self, group: Group) -> UnschedulablePod:
        """Return the pod of a group that was refused the longest ago."""
        return self._pods[next(iter(group.uids))]

    def members(self, group: Group) -> list[UnschedulablePod]:
        """Return the pods of a group, the longest ago refused first."""
        return [self._pods[uid] for uid in group.uids]

    def refuse(
        self, pod: objects.Pod, wanted: PodRequest, note: explanation_note.Note, offered: Asked
    ) -> UnschedulablePod:
        """Keep why a pod was refused just now, on these nodes."""
        if not self._pods:
            self._watched.take_room()  # room from before counted in this refusal
        now = self._clock()
        alike = (request.shape_of(wanted), pod.priority)
        key = (alike, offered.digest)
        group = self._groups.get(key)
        if group is None:
            offer = self._offers.get(offered.digest)
            if offer is None:
                compact = self._watched.cluster.compact(offered)
                offer = self._offers[offered.digest] = Offer(compact)
            offer.groups += 1
            group = self._groups[key] = Group(
                key, alike, offer, pod.priority, try_from=now + AGAIN_S
            )
        elif group.had_room:
            # Another pod was faster. If nothing has changed, the interval stays as it is.
            group.tries, group.try_from, group.had_room = 0, now + AGAIN_S, False
        known = self._pods.get(pod.uid)
        # Only now: the last pod of an offer takes it along, and its names would be found again.
        if known is not None and known.group is not group:
            self.forget(pod.uid)
        group.changed_nodes.clear()
        group.uids.pop(pod.uid, None)
        group.uids[pod.uid] = None
        if known is None:
            known = UnschedulablePod(
                wanted, note, group, write_from=now + FIRST_AFTER_S, written=carried_note(pod)
            )
        known.wanted, known.note, known.group, known.priority = wanted, note, group, pod.priority
        known.refusals += 1
        known.refused_at = now
        self._pods[pod.uid] = known
        return known

    def forget(self, uid: str) -> UnschedulablePod | None:
        """Remove a pod that is placed or deleted; returns it, None if it was not refused."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            group = pod.group
            group.changed_nodes.clear()
            del group.uids[uid]
            if not group.uids:
                del self._groups[group.key]
                group.offer.groups -= 1
                if not group.offer.groups:
                    del self._offers[group.offered.digest]
        return pod

    def _on_pod(self, old: WatchedPod | None, new: WatchedPod | None) -> None:
        if new is None:
            if old is not None:
                self.forget(old.uid)
        elif new.node or new.finished or new.deleting:
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
