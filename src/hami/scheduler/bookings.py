"""Reservations on their way to become bound pods.

A booking is a reservation in the ledger plus what happens to it. It is *held* after /filter; while
a Binding is on its way nobody but the binder may end it. It ends when the pod is seen bound, is
filtered again, is gone, or after a quarter of an hour without a Binding. Its cells are freed only
when it is certain that no Binding of it can come true any more.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from collections.abc import Callable, Iterator

from hami.cluster import operations
from hami.cluster.ledger import Hold, LedgerRow
from hami.placement import decide
from hami.placement.request import PodRequest
from hami.scheduler.world import World
from hami.wire import objects


class Stage(enum.Enum):
    #: Decided; kube-scheduler has not asked to bind it yet.
    HELD = "held"
    #: A Binding is being prepared or on its way.
    BINDING = "binding"
    #: A Binding was sent, and its answer is lost.
    UNKNOWN = "unknown"
    #: The API server has accepted the Binding; the watch has not shown it yet.
    ACCEPTED = "accepted"
    #: Bound and seen, or given up; it is not in the book any more.
    OVER = "over"


@dataclasses.dataclass(slots=True, eq=False)
class Booking:
    uid: str
    namespace: str
    name: str
    node: str
    stage: Stage
    #: When it was made, and since when it is in this stage (monotonic seconds).
    since: float
    #: Carries the trace from /filter to /bind.
    trace: str = ""
    #: Whether the pod carries an explanation of why it waited.
    explained: bool = False
    #: The gang that the pod belongs to, or empty.
    group: str = ""
    #: Set, and replaced by a new one, when its stage changes.
    moved: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


class Bookings:
    def __init__(self, world: World, *, clock: Callable[[], float], timeout: float) -> None:
        self._world = world
        self._clock = clock
        self._timeout = timeout
        self._bookings: dict[str, Booking] = {}
        world.pod_seen.listen(self._on_pod)
        world.pod_gone.listen(self._on_gone)

    def __len__(self) -> int:
        return len(self._bookings)

    def __iter__(self) -> Iterator[Booking]:
        return iter(tuple(self._bookings.values()))

    def get(self, uid: str) -> Booking | None:
        return self._bookings.get(uid)

    def row(self, booking: Booking) -> LedgerRow:
        return self._world.cluster.rows[booking.uid]

    def hold(self, pod: PodRequest, winner: decide.Placement) -> Booking:
        """Reserve the winner's cards; what the pod had held is replaced."""
        deadline = self._clock() + self._timeout
        before = self._world.cluster.rows.get(pod.uid)
        row = decide.reservation(pod, winner, deadline=deadline)
        self._end(self._bookings.pop(pod.uid, None))
        self._world.cluster.apply(operations.PutRow(row))
        booking = Booking(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            node=winner.node,
            stage=Stage.HELD,
            since=self._clock(),
        )
        self._bookings[pod.uid] = booking
        if before is not None and (before.node, before.slots) != (row.node, row.slots):
            self._world.room(before.node, "")
        return booking

    def enter(self, booking: Booking, stage: Stage) -> None:
        booking.stage = stage
        booking.since = self._clock()
        booking.moved.set()
        booking.moved = asyncio.Event()

    def give_up(self, uid: str) -> None:
        """End a booking that will not be bound, and free its cells."""
        self._end(self._bookings.pop(uid, None))
        row = self._world.cluster.rows.get(uid)
        if self._world.cluster.lapse(uid) is not None and row is not None:
            self._world.room(row.node, row.namespace)

    def give_up_held(self) -> None:
        """End all that wait for a Binding: somebody else decides from now on."""
        for booking in self:
            if booking.stage is Stage.HELD:
                self.give_up(booking.uid)

    def lapse(self) -> list[Booking]:
        """End what was held too long; returns it."""
        due = [self._bookings.get(uid) for uid in self._world.cluster.lapsed(self._clock())]
        lapsed = [booking for booking in due if booking and booking.stage is Stage.HELD]
        for booking in lapsed:
            self.give_up(booking.uid)
        return lapsed

    def in_doubt(self, accepted_for: float) -> list[Booking]:
        """Return what only the API server can decide: answers lost, or not seen for too long."""
        now = self._clock()
        return [
            booking
            for booking in self
            if booking.stage is Stage.UNKNOWN
            or (booking.stage is Stage.ACCEPTED and now - booking.since >= accepted_for)
        ]

    def _on_pod(self, pod: objects.Pod) -> None:
        booking = self._bookings.get(pod.uid)
        if booking is None:
            return
        row = self._world.cluster.rows.get(pod.uid)
        if row is None or row.hold is Hold.BOUND:
            del self._bookings[pod.uid]
            self._end(booking)

    def _on_gone(self, uid: str) -> None:
        self._end(self._bookings.pop(uid, None))

    def _end(self, booking: Booking | None) -> None:
        if booking is not None:
            self.enter(booking, Stage.OVER)
