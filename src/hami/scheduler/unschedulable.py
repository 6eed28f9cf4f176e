"""Pods that no node could take, and the explanation kept on each.

Each keeps its request, a short note of why it was refused, and the nodes that kube-scheduler
offered: room elsewhere does not help it. Pods that fit or do not fit together, those of one job for
example, form a group. When cards become free the groups are tried again (`hami.scheduler.requeue`),
each once.

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

from hami.cluster.state import Asked
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.placement.explanation import Explanation
from hami.placement.request import PodRequest
from hami.scheduler.informers import WatchedCluster, WatchedPod
from hami.scheduler.leadership import Leadership
from hami.wire import annotation_keys, codec, explanation_note, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Seconds after a refusal until a group is tried again though no free card was announced. The
#: interval doubles with each such try, up to the longest.
AGAIN_S, AGAIN_AT_MOST_S = 5.0, 300.0
_DOUBLINGS = 10
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
    group: Group
    priority: int = 0
    refusals: int = 0
    #: Monotonic: when it was refused last, and when its note may be written next.
    refused_at: float = 0.0
    write_from: float = 0.0
    #: The note that the pod carries, as far as we know; None: none.
    written: explanation_note.Note | None = None

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
        alike = (_shape(wanted), pod.priority)
        key = (alike, offered.digest)
        group = self._groups.get(key)
        known = self._pods.get(pod.uid)
        if known is not None and known.group is not group:
            self.forget(pod.uid)
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


def _shape(pod: PodRequest) -> Hashable:
    return (
        pod.namespace,
        pod.containers,
        pod.node_policy,
        pod.gpu_policy,
        pod.weights,
        tuple(sorted(pod.selectors.items())),
    )


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
