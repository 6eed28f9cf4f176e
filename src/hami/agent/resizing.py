"""Changing a running pod's share (D14): the only way in which a frozen grant changes.

A signed `hami.io/vgpu-resize` is checked against the ledger like a new grant; then the policy's
generation rises, and the processes in the container take the new limits over. A container that has
a whole card runs without the limiter, so it cannot become a share, nor the other way round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import NoReturn

import msgspec

from hami.agent.errors import AgentError, RefusalError
from hami.agent.grants import Grants
from hami.agent.pods import NodePods
from hami.agent.shares import Shares
from hami.kube.events import EventRecorder
from hami.node.record import Record
from hami.wire import annotation_keys, pod_devices
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

RESIZED, REFUSED = "GPUShareResized", "GPUResizeRefused"

Limited = Callable[[tuple[pod_devices.Grant, ...]], bool]
"""Whether a container with these grants runs under the limiter."""


class Resizing:
    def __init__(
        self,
        pods: NodePods,
        grants: Grants,
        shares: Shares,
        events: EventRecorder,
        *,
        limited: Limited,
    ) -> None:
        self._pods = pods
        self._grants = grants
        self._shares = shares
        self._events = events
        self._limited = limited
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        #: By pod UID, what was refused last (share and code): said once.
        self._refused: dict[str, tuple[str, str]] = {}
        pods.subscribe(self._notice)

    def _notice(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._refused.pop(old.uid, None)
        elif new.annotation(annotation_keys.RESIZE):
            self.remind(new.uid)

    def remind(self, uid: str) -> None:
        """Look at a pod although it has not changed."""
        self._waiting.put_nowait(uid)

    async def run(self) -> NoReturn:
        while True:
            await self.look(await self._waiting.get())

    async def look(self, uid: str) -> None:
        """Take over what the pod asks for, if it asks and may."""
        pod, record = self._pods.find(uid), self._shares.ledger.get(uid)
        if pod is None or record is None:
            return
        wanted = (
            pod.annotation(annotation_keys.RESIZE),
            pod.annotation(annotation_keys.RESIZE_MAC),
        )
        if self._refused.get(uid) == wanted:
            return
        try:
            devices = self._grants.resize_of(pod, record)
            if not devices:
                return
            resized = await self._shares.admit(uid, lambda now: self._resized(now, devices))
            await self._lay_out(resized, before=record.resize)
        except AgentError as error:
            self._refused[uid] = wanted
            _log.warning("a resize is refused", extra={"uid": uid, "error": str(error)})
            self._say(pod, REFUSED, str(error), type="Warning")
        else:
            self._refused.pop(uid, None)
            _log.info("a share was resized", extra={"uid": uid, "devices": devices})
            self._say(pod, RESIZED, f"generation {resized.generation}: {devices}")

    async def _lay_out(self, record: Record, *, before: str) -> None:
        """Write the new limits; if they cannot be written, the ledger has the old ones again."""
        try:
            for token in record.tokens:
                self._shares.prepare(record, token)
        except RefusalError:
            await self._shares.change(
                record.uid,
                lambda now: msgspec.structs.replace(
                    now, resize=before, generation=now.generation + 1
                ),
            )
            for token in record.tokens:
                with contextlib.suppress(RefusalError):
                    self._shares.prepare(record, token)
            raise

    def _resized(self, record: Record | None, devices: str) -> Record:
        if record is None:
            raise RefusalError("resize", "the pod has given its cards back meanwhile")
        resized = msgspec.structs.replace(record, resize=devices, generation=record.generation + 1)
        for slot, container in enumerate(record.containers):
            old, new = record.grants_of(slot), resized.grants_of(slot)
            if old and not container.exempt and self._limited(old) != self._limited(new):
                raise RefusalError(
                    f"container {container.name} of pod {record.namespace}/{record.name}",
                    "would change between a share and a whole card, which needs another start",
                    "make a new pod",
                )
        return resized

    def _say(self, pod: Pod, reason: str, message: str, *, type: str = "Normal") -> None:  # noqa: A002 - the event's word
        self._events.record(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            type=type,
            reason=reason,
            message=message,
        )
