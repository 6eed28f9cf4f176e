"""Deleted pods whose processes still run, and the cards that they keep.

`kubectl delete --force` removes a pod's object at once, and kubelet ends its containers later. A
container under the limiter holds a lock on its state file until its last process ends. One with
whole cards, or one that is exempt, has no limiter: there the kernel's control groups show that the
pod has processes. As long as it has, its record stays in the ledger, and the cards that it may use
without a limit are closed for new pods. Both survive a restart: the ledger is on disk, and what is
closed is written on the Node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hami.agent.containers.state_files import StateFiles
from hami.node import proc
from hami.node.layout import NodeLayout
from hami.node.ledger_record import LedgerRecord


class LeftoverPods:
    """Pods that have ended by the API server, and not on the node."""

    def __init__(self, layout: NodeLayout, states: StateFiles, *, proc_dir: Path) -> None:
        self._layout = layout
        self._states = states
        self._proc = proc_dir
        self._living: frozenset[str] = frozenset()
        self._handlers: list[Callable[[], None]] = []
        #: By UID; None until the ended pods have been checked once.
        self.records: dict[str, LedgerRecord] | None = None

    def add_handler(self, handler: Callable[[], None]) -> None:
        """Call the handler after every change of the leftover pods."""
        self._handlers.append(handler)

    async def check(self, deleted: Sequence[LedgerRecord]) -> None:
        """Find out which of the deleted pods have processes that no limiter would show."""
        uids = [record.uid for record in deleted if self._unlimited(record)]
        self._living = frozenset()
        if uids:
            self._living = await asyncio.to_thread(proc.living, self._proc, uids)

    def is_busy(self, record: LedgerRecord) -> bool:
        """Return whether a process of an ended pod runs; OSError: that is not certain."""
        return record.uid in self._living or any(
            self._states.busy(each.allocation_id) for each in record.allocations
        )

    def keep(self, records: Iterable[LedgerRecord]) -> None:
        """Take note of the ended pods that keep their cards."""
        before, self.records = self.records, {record.uid: record for record in records}
        if before is None or before.keys() != self.records.keys():
            for handler in self._handlers:
                handler()

    def cards(self) -> dict[str, list[str]]:
        """Return the cards that leftover pods may use without a limit, and the pods' names."""
        found: dict[str, list[str]] = {}
        for record in (self.records or {}).values():
            for index in self._unlimited(record):
                for share in record.shares_of(index):
                    names = found.setdefault(share.card, [])
                    if (name := f"{record.namespace}/{record.name}") not in names:
                        names.append(name)
        return found

    def _unlimited(self, record: LedgerRecord) -> list[int]:
        """Return the indexes of its containers that were prepared without a limit."""
        return [
            each.container_index
            for each in record.allocations
            if not self._layout.policy(each.allocation_id).exists()
        ]
