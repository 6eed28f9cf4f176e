"""What became of a Binding whose answer was lost.

The API server is asked for the pod until that is certain. Its cells stay booked meanwhile: freeing
them on a guess is how two pods get one card. A pod that is still unbound counts as never bound only
after the time in which the lost Binding could have taken effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hami.kube import errors, paths
from hami.kube.backoff import Backoff
from hami.kube.client import Client
from hami.scheduler.bookings import Booking, Bookings, Stage
from hami.scheduler.world import World
from hami.wire import codec, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

ASK_AGAIN_S, ASK_AT_MOST_S = 0.5, 30.0
#: Seconds until an accepted Binding that no watch has shown is looked up.
ACCEPTED_FOR_S = 60.0


class Fates:
    def __init__(
        self, client: Client, world: World, bookings: Bookings, *, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._world = world
        self._bookings = bookings
        self._clock = clock
        self._asking: dict[str, asyncio.Task[bool]] = {}

    def ask(self, booking: Booking, certain_at: float) -> asyncio.Task[bool]:
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

    async def _ask(self, booking: Booking, certain_at: float) -> bool:
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
            if pod is None or pod.uid != booking.uid or pod.finished:
                _log.info("pod is gone, its booking ends", extra=extra)
                self._world.pods.drop(booking.uid)
            elif pod.node_name:
                self._world.pods.put(pod)
            elif asked_at >= certain_at:
                _log.info("pod was not bound, its booking ends", extra=extra)
                self._bookings.give_up(booking.uid)
            else:
                await asyncio.sleep(min(ASK_AGAIN_S, max(certain_at - self._clock(), 0.01)))
        row = self._world.cluster.rows.get(booking.uid)
        return row is not None and row.node == booking.node and not self._bookings.get(booking.uid)
