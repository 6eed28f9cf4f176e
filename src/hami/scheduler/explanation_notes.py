"""Explanations written onto unschedulable pods.

The note is written onto the pod as an annotation. Events age out and name only the first reason;
the annotation stays until the pod is placed, outlives this process, and every user who may read
the pod can read it. It is written when it has changed, at most once a minute per pod, and not at
all for a pod that is refused only for a moment.

A thousand pods may be unschedulable, and each is looked at twice a second. Only a note that has
changed is encoded, once, and other tasks run after each of them.
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
from hami.scheduler.unschedulable import UnschedulablePod, UnschedulablePods
from hami.wire import annotation_keys, codec, explanation_note
from hami.wire.explanation_note import Note

_log = logging.getLogger(__name__)

INTERVAL_S = 60.0
#: Notes per round, so that a thousand unschedulable pods do not crowd out Bindings.
BATCH = 10
ROUND_S = 0.5
#: Pods that are looked at without a pause; each takes less than a microsecond.
_AT_ONCE = 1000
_SOME_TIME = "2000-01-01T00:00:00Z"


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
        due = await self._due(self._clock())
        # The longest due first, so that every pod gets its note.
        for pod in heapq.nsmallest(BATCH, due, key=lambda pod: pod.write_from):
            if self._unschedulable.get(pod.wanted.uid) is pod:  # not placed or deleted meanwhile
                await self._write(pod)

    async def _due(self, now: float) -> list[UnschedulablePod]:
        due = []
        for number, pod in enumerate(self._unschedulable, start=1):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if pod.write_from > now or pod.written is pod.note:
                continue
            if pod.written is None or _was_compared(pod):
                due.append(pod)
            elif _is_equal(pod.written, pod.note):
                pod.written = pod.note  # quicker the next time
            else:
                # A long note is cut when written, so the written forms are compared.
                if _without_time(pod.written) == _without_time(pod.note):
                    pod.written = pod.note
                else:
                    pod.compared = (pod.written, pod.note)
                    due.append(pod)
                await asyncio.sleep(0)
        return due

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


def _was_compared(pod: UnschedulablePod) -> bool:
    """Return whether the note is known to differ from what is written."""
    if pod.compared is None:
        return False
    written, note = pod.compared
    return written is pod.written and note is pod.note


def _is_equal(one: Note, other: Note) -> bool:
    """Return whether two notes are equal but for their time; quick."""
    return (
        one.summary == other.summary
        and one.fitting == other.fitting
        and one.reasons == other.reasons
        and one.near == other.near
        and one.v == other.v
    )


def _without_time(note: Note) -> str:
    # As long as a real time: where a note is cut depends on the length.
    return explanation_note.encode(msgspec.structs.replace(note, at=_SOME_TIME))
