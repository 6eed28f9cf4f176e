"""Fit a grant, record it on disk, prepare its containers.

Every way to a container leads through the allocator. A grant is recorded only if it fits beside all
others, whatever annotations say, and it is on disk before any file of a container exists. All
changes of the ledger are made one after the other, each from the record as it is at that moment.
While another agent serves the node (an update with maxSurge) nothing is written.

A grant that does not fit raises `CardFull`. The allocator frees nothing itself: the reconciler
releases the cards of deleted pods and tries again (`hami.agent.reconciler`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Mapping

import msgspec

from hami.agent import ledger
from hami.agent.cards.node_cards import NodeCards
from hami.agent.containers.prepare import ContainerShares, Edits, PrepareError, Preparer
from hami.agent.errors import RefusalError
from hami.agent.ledger import Ledger, LedgerError
from hami.agent.pods import NodePods
from hami.node.ledger_record import AllocationRecord, LedgerRecord

_log = logging.getLogger(__name__)

#: Seconds that a container's start waits for the driver to list the cards.
_DRIVER_WAIT = 15.0

Change = Callable[[LedgerRecord | None], LedgerRecord]
"""Makes a pod's new record from its current one; may raise a RefusalError. Pure."""


class CardFull(RefusalError):  # noqa: N818 - named for what happened, as the journey does
    """A grant does not fit beside the pods that the ledger knows."""


class Allocator:
    """The only writer of the ledger and of containers' files."""

    def __init__(
        self, ledger: Ledger, preparer: Preparer, *, cards: NodeCards, pods: NodePods
    ) -> None:
        self.ledger = ledger
        self._preparer = preparer
        self._cards = cards
        self._pods = pods
        self._writing = asyncio.Lock()
        #: Not set while another agent serves this node: then nothing is written.
        self.active = asyncio.Event()
        self.active.set()
        self._handlers: list[Callable[[], None]] = []

    def add_handler(self, handler: Callable[[], None]) -> None:
        """Call the handler after every change of the ledger."""
        self._handlers.append(handler)

    @property
    def ready(self) -> bool:
        """Whether the driver has listed its cards."""
        return self._cards.devices() is not None

    async def wait_cards(self) -> None:
        """Wait until the driver has listed its cards, however long that takes."""
        await self._cards.known.wait()

    async def wait_ready(self) -> None:
        """Wait until the driver has listed its cards, at most as long as a start may wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRIVER_WAIT):
                await self.wait_cards()

    def check_active(self) -> None:
        """Refuse while another agent serves this node: it has its own view of the ledger."""
        if not self.active.is_set():
            raise RefusalError(
                "hami's agent",
                "another agent serves this node",
                "kubelet tries again, and asks the other one",
            )

    async def admit(self, uid: str, change: Change) -> LedgerRecord:
        """Add or update a pod's record; CardFull if its shares do not fit."""
        async with self._writing:
            self.check_active()
            known = self.ledger.get(uid)
            record = change(known)
            if reason := self._why_not(record, known):
                raise CardFull(
                    f"grant of pod {record.namespace}/{record.name}",
                    reason,
                    "the agent starts only what fits by this node's own ledger; "
                    "delete the pod to reschedule it",
                )
            if record != known:
                await self._put(record)
            return record

    def _why_not(self, record: LedgerRecord, known: LedgerRecord | None) -> str:
        if known is not None and known.held == record.held:
            return ""  # the pod keeps what it has, whatever became of the cards
        cards = self._cards.devices()
        if cards is None:
            return "the node's cards are not known yet"
        init_done = self._pods.init_done()
        return ledger.check(self.ledger.records(), record, cards, init_done=init_done)

    async def change(
        self, uid: str, change: Callable[[LedgerRecord], LedgerRecord], *, durable: bool = True
    ) -> LedgerRecord | None:
        """Change a pod's record without checking that it fits; None: the pod is not known."""
        async with self._writing:
            self.check_active()
            known = self.ledger.get(uid)
            if known is None:
                return None
            changed = change(known)
            if changed != known:
                await self._put(changed, durable=durable)
            return changed

    async def mark_reported(self, uid: str) -> None:
        """Record that the pod's status was written; if this is lost, it is written again."""
        try:
            await self.change(uid, _reported, durable=False)
        except RefusalError as error:
            _log.warning(
                "cannot record that a pod's status was written",
                extra={"uid": uid, "error": str(error)},
            )

    async def _put(self, record: LedgerRecord, *, durable: bool = True) -> None:
        try:
            await _finish(functools.partial(self.ledger.put, record, durable=durable))
        except LedgerError as error:
            raise RefusalError(error.what, error.rule, error.remedy) from error
        finally:
            self._notify()

    async def remove(self, uid: str) -> None:
        """Remove a pod: its files first, so that every file on disk has a record."""
        async with self._writing:
            self.check_active()
            known = self.ledger.get(uid)
            if known is None:
                return
            for allocation in known.allocations:
                self._preparer.forget(allocation.allocation_id)
            try:
                await _finish(functools.partial(self.ledger.remove, uid))
            finally:
                self._notify()

    def _notify(self) -> None:
        for handler in self._handlers:
            handler()

    def held(self) -> tuple[Mapping[str, frozenset[str]], Mapping[str, int]]:
        """Return the cards behind each held device id, and the number of taken shares per card."""
        return self.ledger.held(), self.ledger.used_shares(init_done=self._pods.init_done())

    def prepare(self, record: LedgerRecord, allocation: AllocationRecord) -> Edits:
        """Write everything that a container needs to start; repeating it changes nothing."""
        self.check_active()
        # A resize may have come between: an older record must not undo it.
        record = self.ledger.get(record.uid) or record
        container = record.containers[allocation.container_index]
        wanted = ContainerShares(
            uid=record.uid,
            namespace=record.namespace,
            name=record.name,
            container=allocation.container,
            allocation_id=allocation.allocation_id,
            shares=record.shares_of(allocation.container_index),
            priority=container.priority,
            generation=record.generation,
            exempt=container.exempt,
        )
        try:
            return self._preparer.prepare(wanted, cdi=allocation.cdi)
        except PrepareError as error:
            raise RefusalError(error.what, error.rule, error.remedy) from error

    async def start(self, record: LedgerRecord, allocation: AllocationRecord) -> None:
        """Prepare a container that is about to start, also before the driver has listed cards."""
        if not self.ready:
            if self._preparer.is_ready(allocation.allocation_id, cdi=allocation.cdi):
                return
            await self.wait_ready()
            if not self._cards.known.is_set():
                raise RefusalError(
                    f"container {allocation.container} of pod {record.namespace}/{record.name}",
                    "the node's cards are not known: the driver has not listed them",
                    "kubelet tries again; see the log of hami's agent on this node",
                )
        for share in record.shares_of(allocation.container_index):
            if not self._cards.is_listed(share.card):
                raise RefusalError(
                    f"card {share.card}",
                    self._cards.why_not_listed(),
                    "delete the pod to reschedule it",
                )
        self.prepare(record, allocation)

    def restore(self) -> None:
        """Write again what a reboot removed, for containers that kubelet restarts by itself."""
        for record in self.ledger.records():
            for allocation in record.allocations:
                try:
                    self.prepare(record, allocation)
                except RefusalError as error:
                    _log.warning(
                        "cannot restore a container's files",
                        extra={"pod": f"{record.namespace}/{record.name}", "error": str(error)},
                    )


def container_index(record: LedgerRecord, container: str) -> int:
    """Return the index of a container among those of its pod; RefusalError: there is none."""
    for index, known in enumerate(record.containers):
        if known.name == container:
            return index
    raise RefusalError(
        f"container {container}",
        f"pod {record.namespace}/{record.name} has no container of that name",
        "delete the pod to reschedule it",
    )


def check_health(record: LedgerRecord, cards: NodeCards) -> None:
    """Refuse a pod that would start on an unhealthy card."""
    for granted in record.shares:
        for share in granted:
            if why := cards.why_unhealthy(share.card):
                raise RefusalError(
                    f"card {share.card}",
                    f"is not healthy: {why}",
                    "kubelet tries again; delete the pod to reschedule it on another card",
                )


def _reported(record: LedgerRecord) -> LedgerRecord:
    return msgspec.structs.replace(record, reported=True)


async def _finish(work: Callable[[], None]) -> None:
    """Run work in a thread; it has ended when this returns, also when the caller is cancelled.

    kubelet may disconnect in the middle of a write. The next change must find that write in the
    ledger, or a card's last share would be given twice.
    """
    running = asyncio.create_task(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()  # read, so that asyncio does not warn: the caller has disconnected
        raise cancelled
    running.result()
