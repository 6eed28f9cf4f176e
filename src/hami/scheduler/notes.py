"""The last explanation of a waiting pod, written onto the pod.

Events age out and name only the first reason; the annotation stays until the pod is placed,
survives us, and everybody who may read the pod can read it. A note is written when what it says
has changed, at most once a minute per pod, and not at all for a pod that is refused only for a
moment.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable

import msgspec

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.scheduler.leadership import Leadership
from hami.scheduler.waiting import Waiting, WaitingPod
from hami.wire import annotation_keys, codec, explanation_note

_log = logging.getLogger(__name__)

#: Seconds that a pod has to be refused before a note is worth a write.
FIRST_AFTER_S = 2.0
INTERVAL_S = 60.0
#: Notes per round, so that a thousand waiting pods do not crowd out Bindings.
BATCH = 10
ROUND_S = 0.5
_SOME_TIME = "2000-01-01T00:00:00Z"


class Notes:
    def __init__(
        self,
        client: Client,
        waiting: Waiting,
        leadership: Leadership,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._waiting = waiting
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
        due = [pod for pod in self._waiting if pod.write_from <= now and _says_more(pod)]
        # Whoever waits longest for a write comes first, so that all have their turn.
        for pod in heapq.nsmallest(BATCH, due, key=lambda pod: pod.write_from):
            await self._write(pod)

    async def _write(self, pod: WaitingPod) -> None:
        note = pod.note
        patch = {
            "metadata": {
                "uid": pod.wanted.uid,  # a namesake is another pod
                "annotations": {annotation_keys.EXPLANATION: explanation_note.encode(note)},
            }
        }
        pod.write_from = self._clock() + INTERVAL_S
        try:
            path = paths.pods(pod.wanted.namespace, pod.wanted.name)
            await self._client.patch(path, codec.encode(patch))
        except (errors.NotFound, errors.Conflict):
            # It is gone, and we have not seen it go (or never come).
            self._waiting.forget(pod.wanted.uid)
        except errors.KubeError as error:
            _log.info("note not written", extra={"pod": pod.key, "error": str(error)})
        else:
            pod.written = note


def _says_more(pod: WaitingPod) -> bool:
    if pod.written is None:
        return True
    if pod.written is pod.note:
        return False
    # What was written may have been cut; only what would be written can be compared with it.
    if _without_time(pod.written) != _without_time(pod.note):
        return True
    pod.written = pod.note  # quicker the next time
    return False


def _without_time(note: explanation_note.Note) -> str:
    # Not shorter than a time: what is cut off depends on the length.
    return explanation_note.encode(msgspec.structs.replace(note, at=_SOME_TIME))
