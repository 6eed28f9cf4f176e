"""Evict pods that their nodes have marked: overuse of a card, refused starts.

A node's account may mark pods of its own node (`hami.wire.pod_marks`) and evict none; the leader
does that, with `--overuse=evict` and `--evict-refused`. A mark of overuse counts for as long as
this replica has seen it written again: no clock of a node is compared with ours, and a replica that
starts counts from 0. A mark that is not renewed (its monitor has stopped) does not count on,
and no pod is evicted because of it. Time without the mark ends the count only after a whole grace,
and a mark that is written again after it was removed counts as one that is renewed, so that a pod
gains nothing by dropping below its limit for a moment.

Before an eviction the pod is read: it must be the one that was marked (UID, node), and still be
marked. The eviction names that version of the pod, so a mark that is removed meanwhile stops it.
PodDisruptionBudgets are respected: a refused eviction is retried and reported. Evictions have a
rate: a fault of all monitors at once must not empty a cluster. A pod evicted for overuse has ten
minutes to end, at most, also if its owner has deleted it with more: it would go on until then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

import msgspec

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.transport import Backoff, TokenBucket
from hami.scheduler import eviction_requests as requests
from hami.scheduler.events import PodEvents
from hami.scheduler.eviction_requests import PodNow
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.leadership import NotLeadingError
from hami.scheduler.metrics import Metrics
from hami.scheduler.readiness import Readiness
from hami.scheduler.settings import Settings
from hami.scheduler.watched import WatchedPod
from hami.wire import annotation_keys, codec, objects, text_values
from hami.wire import errors as wire_errors
from hami.wire.pod_marks import Overuse, PodMarks, Refusal

_log = logging.getLogger(__name__)

ROUND_S = 1.0
#: Seconds since its last renewal in which a mark of overuse counts; monitors renew it every 20 s.
FRESH_S = 45.0
#: Evictions a second, and at once.
RATE, BURST = 1.0, 10
_TIMEOUT_S = 10.0
#: Seconds to wait, at most, after the first eviction that failed, and after many.
_AGAIN_S, _AT_MOST_S = 5.0, 60.0
_CONNECTIONS = 2

EVICT, REPORT = "evict", "report"


class _MarkedPod(msgspec.Struct):
    """A pod that is or was marked, and for how long."""

    pod: WatchedPod
    #: Whether it is marked for overuse now; `since` and `seen` of that mark, or of the last one.
    overuses: bool = False
    since: str = ""
    seen: str = ""
    #: By our clock: when that was last seen to change, and removed.
    changed: float = 0.0
    removed: float = math.inf
    #: When the pod was last seen with any mark; infinity: it has one.
    ended: float = math.inf
    #: Whether the mark was seen to be written: renewed, or again after it was removed.
    renewed: bool = False
    #: Seconds of overuse.
    counted: float = 0.0
    try_from: float = -math.inf
    backoff: Backoff = msgspec.field(
        default_factory=lambda: Backoff(first=_AGAIN_S, longest=_AT_MOST_S)
    )
    #: Whether it is being deleted, and will certainly end soon.
    leaving: bool = False
    ends: bool = False
    #: The cause of an eviction whose answer was lost.
    unanswered: Overuse | Refusal | None = None
    warned: bool = False


class Evictions:
    """Counts the time of marks, and evicts their pods while this replica leads."""

    def __init__(
        self,
        client: Client,
        watched: WatchedCluster,
        pod_events: PodEvents,
        *,
        readiness: Readiness,
        metrics: Metrics,
        settings: Settings,
        clock: Callable[[], float],
    ) -> None:
        # Neither waits for the other: evictions and binds.
        self._client = client.apart(_CONNECTIONS)
        self._pod_events = pod_events
        self._readiness = readiness
        self._counter = metrics.evictions
        self._evict_overuse = settings.overuse == EVICT
        self._evict_refused = settings.evict_refused
        self._grace = settings.overuse_grace
        self._exempt = frozenset(text_values.comma_list(settings.overuse_exempt_namespaces))
        self._clock = clock
        self._bucket = TokenBucket(rate=RATE, burst=BURST, clock=clock)
        self._marked: dict[str, _MarkedPod] = {}
        watched.pods.add_handler(self._on_pod)

    def overusing(self) -> int:
        """Return how many pods are marked for overuse now."""
        return sum(marked.overuses for marked in self._marked.values())

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.run_round()

    async def run_round(self) -> None:
        """Evict pods whose mark has counted long enough, as many as the rate allows."""
        now = self._clock()
        for uid in [u for u, m in self._marked.items() if now - m.ended > self._grace]:
            del self._marked[uid]
        for uid, marked in list(self._marked.items()):
            cause = self._cause(marked) or marked.unanswered
            if marked.try_from > now or cause is None:
                continue
            if not self._readiness.ready or not self._bucket.try_take():
                return
            # Tried last in the next round: pods that cannot be evicted take no other's turn.
            self._marked[uid] = self._marked.pop(uid)
            await self._evict(marked, cause)

    def _on_pod(self, old: WatchedPod | None, new: WatchedPod | None) -> None:
        pod = new or old
        assert pod is not None
        marked = self._marked.get(pod.uid)
        marks = new.marks if new is not None else None
        if marked is None:
            if marks is None:
                return
            marked = self._marked[pod.uid] = _MarkedPod(pod)
        marked.pod = pod
        # A pod without cards is not watched any more when it loses its mark: `new` is None then,
        # too, as if it were deleted.
        if new is not None and new.deleting:
            self._is_leaving(marked)
        self._count(marked, marks.overuse if marks is not None else None)
        if marks is None:
            marked.ended = min(marked.ended, self._clock())
            return
        marked.ended = math.inf
        if marks.problem and not marked.warned:
            marked.warned = True
            _log.warning(
                "cannot read a mark on a pod, ignoring it",
                extra={"pod": f"{pod.namespace}/{pod.name}", "problem": marks.problem},
            )

    def _count(self, marked: _MarkedPod, overuse: Overuse | None) -> None:
        """Add the time since the mark was last seen to change."""
        now = self._clock()
        if overuse is None:
            if marked.overuses:
                marked.overuses, marked.removed = False, now
                if marked.renewed and now - marked.changed <= FRESH_S:
                    marked.counted += now - marked.changed
            return
        if not marked.overuses:
            # The first sight proves nothing: the monitor may have stopped long ago. Nor does the
            # mark that was removed, if it comes back as it was.
            marked.overuses = True
            marked.renewed = marked.seen not in ("", overuse.seen)
            if now - marked.removed > self._grace:
                marked.counted = 0.0
        elif overuse.seen != marked.seen:
            if overuse.since == marked.since:
                marked.counted += min(now - marked.changed, FRESH_S)
                marked.renewed = True
        else:
            return  # written by others, or read again
        marked.seen, marked.since, marked.changed = overuse.seen, overuse.since, now

    def _cause(self, marked: _MarkedPod) -> Overuse | Refusal | None:
        """Return the mark for which a pod is to be evicted now; None: it stays."""
        pod, marks = marked.pod, marked.pod.marks
        if marks is None or marked.ends or marked.ended < math.inf:
            return None
        if self._evict_overuse and marks.overuse is not None and pod.namespace not in self._exempt:
            fresh = self._clock() - marked.changed <= FRESH_S
            if marked.renewed and fresh and marked.counted >= self._grace:
                return marks.overuse
        return marks.refusal if self._evict_refused and not marked.leaving else None

    async def _evict(self, marked: _MarkedPod, cause: Overuse | Refusal) -> None:
        try:
            eviction = await self._still_marked(marked, cause)
            if eviction and self._cause(marked) is not None:
                await self._send(marked, cause, eviction)
            elif not marked.ends:
                marked.unanswered = None  # it has not arrived, or its pod was written since
                marked.try_from = self._clock() + marked.backoff.next()
        except NotLeadingError:
            return
        except (errors.KubeError, wire_errors.WireError) as error:
            self._failed(marked, cause, error)

    async def _still_marked(self, marked: _MarkedPod, cause: Overuse | Refusal) -> bytes:
        """Read a pod; return its eviction if it is still to be evicted, else nothing."""
        pod = marked.pod
        try:
            body = await self._client.get(paths.pods(pod.namespace, pod.name), timeout=_TIMEOUT_S)
        except errors.NotFound:
            self._is_leaving(marked, ends=True)
            return b""
        now = codec.decode(body, objects.Pod, what=f"pod {pod.namespace}/{pod.name}")
        more = codec.decode(body, PodNow, what=f"pod {pod.namespace}/{pod.name}")
        for_long = isinstance(cause, Overuse) and more.deleted_for_long
        if now.uid != pod.uid or (now.deleting and not for_long):
            self._is_leaving(marked, ends=True)
            return b""
        marks = PodMarks.of(now)
        if marks is None or now.finished or annotation_keys.MIRROR in now.annotations:
            return b""  # a static pod would be started again at once
        end_s = None
        if isinstance(cause, Overuse):
            found = marks.overuse is not None and marks.overuse.since == cause.since
            end_s = more.end_s
        else:
            # It may have started before the agent could remove its mark.
            found = marks.refusal is not None and not more.started_after(marks.refusal)
        version = now.metadata and now.metadata.resource_version
        return requests.eviction(pod, version, end_s) if found and version else b""

    def _is_leaving(self, marked: _MarkedPod, *, ends: bool = False) -> None:
        """Note that a pod is being deleted; by us, if the answer to an eviction was lost."""
        marked.leaving = True
        marked.ends = marked.ends or ends
        if marked.unanswered is not None:
            cause, marked.unanswered = marked.unanswered, None
            self._done(marked, cause)

    async def _send(self, marked: _MarkedPod, cause: Overuse | Refusal, eviction: bytes) -> None:
        pod, marked.unanswered = marked.pod, None
        deleted_before = marked.leaving
        try:
            await self._client.create(
                paths.eviction(pod.namespace, pod.name),
                eviction,
                guard=self._check,
                timeout=_TIMEOUT_S,
                retry_busy=False,
            )
        except errors.NotFound:
            marked.ends = True
        except errors.Conflict:
            # It was written since it was read: by kubelet, or its mark was removed. Read it again.
            marked.try_from = self._clock() + ROUND_S
        except errors.TooManyRequests as error:
            marked.try_from = self._clock() + marked.backoff.next(error.retry_after)
            self._counter.labels(requests.reason(cause), "blocked").inc()
            _log.warning("cannot evict a pod yet", extra=_about(pod) | {"error": str(error)})
            self._pod_events.eviction_blocked(
                pod,
                f"not evicted yet, although it {requests.why(cause)}: {error.message}. This is "
                "retried",
            )
        except errors.KubeError as error:
            if not error.outcome_unknown:
                raise
            marked.unanswered = cause
            if deleted_before or not marked.leaving:
                raise
            self._is_leaving(marked)  # the watch was quicker
        else:
            self._done(marked, cause)

    def _failed(self, marked: _MarkedPod, cause: Overuse | Refusal, error: Exception) -> None:
        retry_after = error.retry_after if isinstance(error, errors.KubeError) else None
        marked.try_from = self._clock() + marked.backoff.next(retry_after)
        self._counter.labels(requests.reason(cause), "failed").inc()
        _log.warning(
            "cannot evict a pod, retrying", extra=_about(marked.pod) | {"error": str(error)}
        )

    def _done(self, marked: _MarkedPod, cause: Overuse | Refusal) -> None:
        marked.leaving = marked.ends = True
        self._counter.labels(requests.reason(cause), "evicted").inc()
        _log.info("evicted a pod", extra=_about(marked.pod) | {"reason": requests.reason(cause)})
        self._pod_events.evicted(
            marked.pod,
            f"evicted: it {requests.why(cause)}. {requests.remedy(cause)}",
        )

    def _check(self) -> None:
        if not self._readiness.ready:
            raise NotLeadingError("the lease was lost before an eviction was sent")


def _about(pod: WatchedPod) -> dict[str, str]:
    return {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "node": pod.node}
