"""Cards held for pods until they are bound, and lost answers resolved.

Reservations on their way to become bound pods.
A booking is a reservation in the ledger plus what happens to it. It is *held* after /filter; while
a Binding is on its way nobody but the binder may end it. It ends when the pod is seen bound, is
filtered again, is gone, or after a quarter of an hour without a Binding. Its cells are freed only
when it is certain that no Binding of it can come true any more.

What became of a Binding whose answer was lost.
The API server is asked for the pod until that is certain. Its cells stay booked meanwhile: freeing
them on a guess is how two pods get one card. A pod that is still unbound counts as never bound only
after the time in which the lost Binding could have taken effect.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
from collections.abc import Callable, Iterator

from hami.cluster import state
from hami.cluster.pod_info import Allocation, PodInfo
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.transport import Backoff
from hami.placement import decide
from hami.placement.request import PodRequest
from hami.scheduler.informers import WatchedPod, World
from hami.wire import codec, objects
from hami.wire import errors as wire_errors


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
class AssumedPod:
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


class AssumedPods:
    def __init__(self, world: World, *, clock: Callable[[], float], timeout: float) -> None:
        self._world = world
        self._clock = clock
        self._timeout = timeout
        self._bookings: dict[str, AssumedPod] = {}
        world.pods.add_handler(self._on_pod)

    def __len__(self) -> int:
        return len(self._bookings)

    def __iter__(self) -> Iterator[AssumedPod]:
        return iter(tuple(self._bookings.values()))

    def get(self, uid: str) -> AssumedPod | None:
        return self._bookings.get(uid)

    def row(self, booking: AssumedPod) -> PodInfo:
        return self._world.cluster.rows[booking.uid]

    def hold(self, pod: PodRequest, winner: decide.Placement) -> AssumedPod:
        """Reserve the winner's cards; what the pod had held is replaced."""
        deadline = self._clock() + self._timeout
        before = self._world.cluster.rows.get(pod.uid)
        row = decide.reservation(pod, winner, deadline=deadline)
        self._end(self._bookings.pop(pod.uid, None))
        self._world.cluster.apply(state.PutPod(row))
        booking = AssumedPod(
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

    def enter(self, booking: AssumedPod, stage: Stage) -> None:
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

    def lapse(self) -> list[AssumedPod]:
        """End what was held too long; returns it."""
        due = [self._bookings.get(uid) for uid in self._world.cluster.lapsed(self._clock())]
        lapsed = [booking for booking in due if booking and booking.stage is Stage.HELD]
        for booking in lapsed:
            self.give_up(booking.uid)
        return lapsed

    def in_doubt(self, accepted_for: float) -> list[AssumedPod]:
        """Return what only the API server can decide: answers lost, or not seen for too long."""
        now = self._clock()
        return [
            booking
            for booking in self
            if booking.stage is Stage.UNKNOWN
            or (booking.stage is Stage.ACCEPTED and now - booking.since >= accepted_for)
        ]

    def leadership_changed(self, leading: bool) -> None:  # noqa: FBT001  a handler's only value
        """End what waits for a Binding once another replica leads: that one decides again."""
        if not leading:
            self.give_up_held()

    def _on_pod(self, old: WatchedPod | None, new: WatchedPod | None) -> None:
        pod = new or old
        booking = self._bookings.get(pod.uid) if pod is not None else None
        if booking is None:
            return
        row = self._world.cluster.rows.get(booking.uid)
        if new is None or row is None or row.hold is Allocation.BOUND:
            del self._bookings[booking.uid]
            self._end(booking)

    def _end(self, booking: AssumedPod | None) -> None:
        if booking is not None:
            self.enter(booking, Stage.OVER)


_log = logging.getLogger(__name__)

ASK_AGAIN_S, ASK_AT_MOST_S = 0.5, 30.0
#: Seconds until an accepted Binding that no watch has shown is looked up.
ACCEPTED_FOR_S = 60.0


class LostAnswers:
    def __init__(
        self, client: Client, world: World, bookings: AssumedPods, *, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._world = world
        self._bookings = bookings
        self._clock = clock
        self._asking: dict[str, asyncio.Task[bool]] = {}

    def ask(self, booking: AssumedPod, certain_at: float) -> asyncio.Task[bool]:
        """Find out whether a pod is bound to its booked node; once per booking at a time."""
        task = self._asking.get(booking.uid)
        if task is None:
            task = asyncio.create_task(self._ask(booking, certain_at))
            self._asking[booking.uid] = task
            task.add_done_callback(lambda _: self._asking.pop(booking.uid, None))
        return task

    def ask_overdue(self) -> None:
        """Look up what the watch should have shown long ago."""
        for booking in self._bookings.in_doubt(ACCEPTED_FOR_S):
            self.ask(booking, self._clock())

    async def end(self) -> None:
        for task in tuple(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _ask(self, booking: AssumedPod, certain_at: float) -> bool:
        pause = Backoff(first=ASK_AGAIN_S, longest=ASK_AT_MOST_S)
        extra = {"pod": f"{booking.namespace}/{booking.name}", "node": booking.node}
        while booking.stage is not Stage.OVER:
            pod: objects.Pod | None
            asked_at = self._clock()
            try:
                body = await self._client.get(paths.pods(booking.namespace, booking.name))
                pod = codec.decode(body, objects.Pod, what=f"pod {booking.name}")
            except errors.NotFound:
                pod = None
            except (errors.KubeError, wire_errors.WireError) as error:
                wait = pause.next(
                    error.retry_after if isinstance(error, errors.KubeError) else None
                )
                _log.warning(
                    "fate still unknown",
                    extra=extra | {"error": str(error), "wait": round(wait, 3)},
                )
                await asyncio.sleep(wait)
                continue
            if pod is None or pod.uid != booking.uid:
                _log.info("pod is gone, its booking ends", extra=extra)
                self._world.pods.offer_missing(booking.uid)
                self._bookings.give_up(booking.uid)
            elif pod.finished:
                _log.info("pod is gone, its booking ends", extra=extra)
                self._world.pods.offer(body)
                self._bookings.give_up(booking.uid)
            elif pod.node_name:
                self._world.pods.offer(body)
            elif asked_at >= certain_at:
                _log.info("pod was not bound, its booking ends", extra=extra)
                self._bookings.give_up(booking.uid)
            else:
                await asyncio.sleep(min(ASK_AGAIN_S, max(certain_at - self._clock(), 0.01)))
        row = self._world.cluster.rows.get(booking.uid)
        return row is not None and row.node == booking.node and not self._bookings.get(booking.uid)
