"""Resize a running pod's shares, as a signed annotation asks for.

This is the only way in which a frozen grant changes. A signed `hami.io/vgpu-resize` is checked
against the ledger like a new grant; then the generation of the policy file rises, and the processes
in the container apply the new limits. A container that has a whole card runs without the limiter,
so it cannot become a share, nor the other way round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import NoReturn

import msgspec

from hami.agent.allocator import Allocator
from hami.agent.containers.prepare import Preparer
from hami.agent.errors import AgentError, RefusalError
from hami.agent.grants import Grants, with_order
from hami.agent.pods import NodePods
from hami.agent.reconciler import Reconciler
from hami.kube.events import EventRecorder
from hami.node.ledger_record import LedgerRecord
from hami.wire import annotation_keys
from hami.wire.grant import Resize
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

RESIZED, REFUSED = "GPUShareResized", "GPUResizeRefused"


class Resizer:
    """Applies resizes one after the other, and reports each in an event of its pod."""

    def __init__(
        self,
        *,
        pods: NodePods,
        grants: Grants,
        allocator: Allocator,
        reconciler: Reconciler,
        preparer: Preparer,
        events: EventRecorder,
    ) -> None:
        self._pods = pods
        self._grants = grants
        self._allocator = allocator
        self._reconciler = reconciler
        self._preparer = preparer
        self._events = events
        #: UIDs of pods to check.
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        #: By pod UID, what was refused last (shares and signature): reported once.
        self._refused: dict[str, tuple[str, str]] = {}
        pods.add_handler(self._pod_changed)
        reconciler.add_handler(self._pod_recovered)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._refused.pop(old.uid, None)
        elif new.annotation(annotation_keys.RESIZE):
            self._queue.put_nowait(new.uid)

    def _pod_recovered(self, record: LedgerRecord) -> None:
        self._queue.put_nowait(record.uid)

    async def run(self) -> NoReturn:
        """Once the cards are known, apply resizes for ever."""
        await self._allocator.wait_cards()
        while True:
            uid = await self._queue.get()
            await self._allocator.active.wait()
            await self.apply(uid)

    async def apply(self, uid: str) -> None:
        """Apply the resize that a pod asks for, if it asks for one and the resize is allowed."""
        pod, record = self._pods.find(uid), self._allocator.ledger.get(uid)
        if pod is None or record is None:
            return
        wanted = (
            pod.annotation(annotation_keys.RESIZE),
            pod.annotation(annotation_keys.RESIZE_MAC),
        )
        if self._refused.get(uid) == wanted:
            return
        try:
            order = self._grants.resize_of(pod, record)
            if order is None:
                return
            resized = await self._reconciler.admit(uid, lambda now: self._resized(now, order))
            await self._write_limits(resized, before=record)
        except AgentError as error:
            self._refused[uid] = wanted
            _log.warning("refused a resize", extra={"uid": uid, "error": str(error)})
            self._report(pod, REFUSED, str(error), type="Warning")
        else:
            self._refused.pop(uid, None)
            _log.info(
                "resized a share", extra={"uid": uid, "seq": order.seq, "devices": order.devices}
            )
            self._report(pod, RESIZED, f"generation {resized.generation}: {order.devices}")

    async def _write_limits(self, record: LedgerRecord, *, before: LedgerRecord) -> None:
        """Write the new limits; if that fails, the ledger gets the old shares again."""
        try:
            for allocation in record.allocations:
                self._allocator.prepare(record, allocation)
        except RefusalError:
            await self._allocator.change(
                record.uid,
                lambda now: msgspec.structs.replace(
                    now,
                    resize=before.resize,
                    resize_seq=before.resize_seq,
                    unreleased=before.unreleased,
                    generation=now.generation + 1,
                ),
            )
            for allocation in record.allocations:
                with contextlib.suppress(RefusalError):
                    self._allocator.prepare(record, allocation)
            raise

    def _resized(self, record: LedgerRecord | None, order: Resize) -> LedgerRecord:
        if record is None:
            raise RefusalError("resize", "the pod has ended and released its cards meanwhile")
        resized = with_order(record, order)
        limited = self._preparer.is_limited
        for index, container in enumerate(record.containers):
            old, new = record.shares_of(index), resized.shares_of(index)
            if old and not container.exempt and limited(old) != limited(new):
                raise RefusalError(
                    f"container {container.name} of pod {record.namespace}/{record.name}",
                    "would change between a share and a whole card, which needs a new start",
                    "create a new pod with the amounts that you want",
                )
        return resized

    def _report(self, pod: Pod, reason: str, message: str, *, type: str = "Normal") -> None:  # noqa: A002 - the event's field
        self._events.record(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            type=type,
            reason=reason,
            message=message,
        )
