"""The scheduling queue: ready pods, backoffs, unschedulable pods.

As in kube-scheduler a pod is in one of three places. Ready: the highest priority first, then the
oldest. Backoff: one second after the first failure, twice as long after each further one.
Unschedulable: until a change makes a new attempt sensible (`wake`), or for five minutes.

Pods fail one after the other, so their backoffs would end one after the other, the oldest first.
So backoffs that end within a second of the first of them end together, and priority decides.
kube-scheduler has whole seconds for that. No clock is read but the given one.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
import itertools
from collections.abc import Callable

from hami_sandbox.kube_scheduler.pods import Pod

#: Seconds after which a pod is tried again though nothing has happened.
AT_THE_LATEST_S = 300.0
#: Backoffs that end so soon after the first end with it.
TOGETHER_S = 1.0
_DOUBLINGS = 32


class Place(enum.Enum):
    READY = enum.auto()
    BACKOFF = enum.auto()
    WAITING = enum.auto()
    TRIED = enum.auto()
    #: In no place: it is bound, or deleted.
    OUT = enum.auto()


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    pod: Pod
    place: Place = Place.OUT
    attempts: int = 0
    #: When it failed, and until when it is not tried in any case.
    failed_at: float = 0.0
    not_before: float = 0.0
    #: A change during the attempt makes another one sensible.
    woken: bool = False
    #: The number of its current item in a heap; older items are stale.
    ticket: int = -1

    @property
    def out(self) -> bool:
        return self.place is Place.OUT


_Ready = tuple[int, str, int, Entry]
_Later = tuple[float, int, Entry]


class Queue:
    def __init__(
        self,
        *,
        clock: Callable[[], float],
        first: float = 1.0,
        longest: float = 10.0,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._first = first
        self._longest = longest
        self._on_change = on_change
        self._entries: dict[str, Entry] = {}
        self._ready: list[_Ready] = []
        self._backoff: list[_Later] = []
        #: In the order in which they failed; a dict is an ordered set.
        self._waiting: dict[str, Entry] = {}
        self._tried: dict[str, Entry] = {}
        self._tickets = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, uid: str) -> Entry | None:
        return self._entries.get(uid)

    # Changes from the API server.

    def put(self, pod: Pod) -> None:
        """Take a pod that wants a node: new, or changed."""
        entry = self._entries.get(pod.uid)
        if entry is None:
            entry = self._entries[pod.uid] = Entry(pod)
            self._to_ready(entry)
            return
        before, entry.pod = entry.pod, pod
        if entry.place is Place.READY and before.priority != pod.priority:
            self._to_ready(entry)
        elif before.own != pod.own:
            self._wake(entry)

    def remove(self, uid: str) -> None:
        """Remove a pod: it has a node, or is deleted."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._leave(entry)
            entry.place = Place.OUT

    def wake(self, sensible: Callable[[Pod], bool]) -> None:
        """Requeue the pods for which a change makes a new attempt sensible."""
        for entry in (*self._waiting.values(), *self._tried.values()):
            if not entry.woken and sensible(entry.pod):
                self._wake(entry)

    # What the scheduler does.

    def pop(self) -> Entry | None:
        """Return the pod to try now; None: there is none."""
        self._flush()
        if not self._ready:
            return None
        entry = heapq.heappop(self._ready)[-1]
        entry.place, entry.woken = Place.TRIED, False
        entry.attempts += 1
        self._tried[entry.pod.uid] = entry
        return entry

    def seconds_to_next(self) -> float | None:
        """Return the seconds until `pop` has a pod; None: not before a change."""
        self._flush()
        if self._ready:
            return 0.0
        times = [self._backoff[0][0]] if self._backoff else []
        for entry in self._waiting.values():
            times.append(entry.failed_at + AT_THE_LATEST_S)
            break  # in the order of failures
        return max(min(times) - self._clock(), 0.0) if times else None

    def failed(self, entry: Entry, *, error: bool) -> None:
        """Put a pod back that was tried; after an error it is always tried again."""
        if entry.place is not Place.TRIED:
            return
        self._leave(entry)
        entry.failed_at = self._clock()
        doublings = min(entry.attempts - 1, _DOUBLINGS)
        entry.not_before = entry.failed_at + min(self._first * 2**doublings, self._longest)
        if error or entry.woken:
            self._to_backoff(entry)
        else:
            entry.place = Place.WAITING
            self._waiting[entry.pod.uid] = entry
        self._on_change()

    def _wake(self, entry: Entry) -> None:
        if entry.place is Place.TRIED:
            entry.woken = True
        elif entry.place is Place.WAITING:
            self._leave(entry)
            self._to_backoff(entry)  # it may be over: `_flush` sees to it
            self._on_change()

    def _flush(self) -> None:
        """Move pods whose time has come, and drop stale items from the heads of the heaps."""
        now = ending = self._clock()
        while self._backoff:
            until, ticket, entry = self._backoff[0]
            valid = ticket == entry.ticket and entry.place is Place.BACKOFF
            if valid and until > ending:
                break
            heapq.heappop(self._backoff)
            if valid:
                self._to_ready(entry)
                ending = now + TOGETHER_S
        for entry in list(self._waiting.values()):
            if entry.failed_at + AT_THE_LATEST_S > now:
                break
            self._leave(entry)
            self._to_ready(entry)
        while self._ready:
            *_, ticket, entry = self._ready[0]
            if ticket == entry.ticket and entry.place is Place.READY:
                break
            heapq.heappop(self._ready)

    def _to_ready(self, entry: Entry) -> None:
        entry.place, entry.ticket = Place.READY, next(self._tickets)
        pod = entry.pod
        heapq.heappush(self._ready, (-pod.priority, pod.created, entry.ticket, entry))
        self._on_change()

    def _to_backoff(self, entry: Entry) -> None:
        entry.place, entry.ticket = Place.BACKOFF, next(self._tickets)
        heapq.heappush(self._backoff, (entry.not_before, entry.ticket, entry))

    def _leave(self, entry: Entry) -> None:
        self._waiting.pop(entry.pod.uid, None)
        self._tried.pop(entry.pod.uid, None)
