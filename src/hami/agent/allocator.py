"""What pods hold of this node's cards: admitted, recorded on disk, then prepared (D13).

Every way to a container ends here, whoever asks. A grant is taken in only if it fits beside all
others, whatever the annotations say; it is on disk before anything of it exists; and all changes of
the ledger go through one door, one after the other, each made from what is there at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from hami.agent import ledger
from hami.agent.containers.prepare import ContainerShare, Edits, PrepareError, Preparer
from hami.agent.errors import RefusalError
from hami.agent.ledger import Ledger, LedgerError
from hami.node.ledger_record import AllocationRecord, LedgerRecord
from hami.wire.node_register import RegisteredCard

_log = logging.getLogger(__name__)

#: Seconds that a grant waits for pods that are gone but whose processes still end.
_LEAVING = 10.0
_LOOK_EVERY = 0.25
#: Seconds that a container's start waits for the driver to tell its cards.
_DRIVER = 15.0

Devices = Mapping[str, RegisteredCard]
"""The cards of the node as they are registered, by id."""
Sweep = Callable[[], Awaitable[bool]]
"""Forgets pods that are gone; tells whether some of them still have processes."""
Change = Callable[[LedgerRecord | None], LedgerRecord]
"""Makes a pod's record from what the ledger has of it; may raise a RefusalError. Pure."""


class Allocator:
    def __init__(
        self,
        ledger: Ledger,
        preparer: Preparer,
        *,
        devices: Callable[[], Devices | None],
        known: asyncio.Event,
        sweep: Sweep,
        init_done: Callable[[], frozenset[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger = ledger
        self._preparer = preparer
        #: None as long as the driver has not told; `known` is set then.
        self._devices = devices
        self._known = known
        self._sweep = sweep
        #: UIDs of pods whose init containers have ended: the scheduler gives that to others.
        self._init_done = init_done
        self._clock = clock
        self._writing = asyncio.Lock()
        #: Called after every change of what is held.
        self.on_change: Callable[[], None] = lambda: None

    @property
    def ready(self) -> bool:
        """Whether the driver has told its cards."""
        return self._devices() is not None

    async def admit(self, uid: str, change: Change, *, patience: float = _LEAVING) -> LedgerRecord:
        """Take in a pod, or change what it has; a RefusalError if that does not fit.

        `patience`: seconds that pods which are gone get to end their processes.
        """
        if self.ledger.get(uid) is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRIVER):
                    await self._known.wait()
        deadline = self._clock() + patience
        last = False
        while True:
            async with self._writing:
                known = self.ledger.get(uid)
                record = change(known)
                reason = self._why_not(record, known)
                if not reason:
                    if record != known:
                        await self._put(record)
                    return record
            if last:
                raise RefusalError(
                    f"grant of pod {record.namespace}/{record.name}",
                    reason,
                    "the node's own ledger refuses what a card does not have; "
                    "delete the pod to have it placed anew",
                )
            leaving = await self._sweep()
            last = not leaving or self._clock() >= deadline
            if not last:
                await asyncio.sleep(_LOOK_EVERY)

    def _why_not(self, record: LedgerRecord, known: LedgerRecord | None) -> str:
        if known is not None and known.slots == record.slots:
            return ""  # it has what it has, whatever became of the cards
        devices = self._devices()
        if devices is None:
            return "the node's cards are not known yet"
        return ledger.check(self.ledger.records(), record, devices, init_done=self._init_done())

    async def change(
        self, uid: str, change: Callable[[LedgerRecord], LedgerRecord], *, durable: bool = True
    ) -> LedgerRecord | None:
        """Change a pod's record without asking whether it fits; None: the pod is not known."""
        async with self._writing:
            known = self.ledger.get(uid)
            if known is None:
                return None
            changed = change(known)
            if changed != known:
                await self._put(changed, durable=durable)
            return changed

    async def told(self, uid: str) -> None:
        """Note that the pod knows; if that is lost, it is told once more."""
        try:
            await self.change(
                uid, lambda record: msgspec.structs.replace(record, told=True), durable=False
            )
        except RefusalError as error:
            _log.warning("it is not noted that a pod was told", extra={"error": str(error)})

    async def _put(self, record: LedgerRecord, *, durable: bool = True) -> None:
        try:
            await _to_the_end(functools.partial(self.ledger.put, record, durable=durable))
        except LedgerError as error:
            raise RefusalError(error.what, error.rule, error.remedy) from error
        finally:
            self.on_change()

    async def remove(self, uid: str) -> None:
        """Forget a pod: its files first, so that no file is ever nobody's."""
        async with self._writing:
            known = self.ledger.get(uid)
            if known is None:
                return
            for token in known.tokens:
                self._preparer.forget(token.token)
            try:
                await _to_the_end(functools.partial(self.ledger.remove, uid))
            finally:
                self.on_change()

    def held(self) -> tuple[Mapping[str, frozenset[str]], Mapping[str, int]]:
        """Return the cards behind each device id that is held, and each card's taken shares."""
        return self.ledger.held(), self.ledger.used_slots(init_done=self._init_done())

    def prepare(self, record: LedgerRecord, token: AllocationRecord) -> Edits:
        """Lay out everything that a container needs to start; the same again changes nothing."""
        # A resize may have come between: what was read before that must not undo it.
        record = self.ledger.get(record.uid) or record
        share = ContainerShare(
            uid=record.uid,
            namespace=record.namespace,
            name=record.name,
            container=token.container,
            token=token.token,
            grants=record.grants_of(token.slot),
            priority=record.containers[token.slot].priority,
            generation=record.generation,
            exempt=record.containers[token.slot].exempt,
        )
        try:
            return self._preparer.prepare(share, cdi=token.cdi)
        except PrepareError as error:
            raise RefusalError(error.what, error.rule, error.remedy) from error

    async def start(self, record: LedgerRecord, token: AllocationRecord) -> None:
        """Have a container that starts prepared, also before the driver has told its cards."""
        if self._devices() is None:
            if self._preparer.is_ready(token.token, cdi=token.cdi):
                return
            try:
                async with asyncio.timeout(_DRIVER):
                    await self._known.wait()
            except TimeoutError:
                raise RefusalError(
                    f"container {token.container} of pod {record.namespace}/{record.name}",
                    "the node's cards are not known: the driver has not told them",
                    "kubelet tries again; see the agent's log",
                ) from None
        self.prepare(record, token)

    def restore(self) -> None:
        """Lay out again what a reboot took, for all who may be started before we are asked."""
        for record in self.ledger.records():
            for token in record.tokens:
                try:
                    self.prepare(record, token)
                except RefusalError as error:
                    _log.warning(
                        "a container's files cannot be restored",
                        extra={"pod": f"{record.namespace}/{record.name}", "error": str(error)},
                    )


async def _to_the_end(work: Callable[[], None]) -> None:
    """Do it in a thread, and have it done when this returns, also when we are cancelled.

    kubelet may hang up in the middle of a write. Whoever comes through the door next must find it
    in the ledger, or a card's last share would be given twice.
    """
    running = asyncio.create_task(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()  # whoever asked has gone
        raise cancelled
    running.result()
