"""Report to pods that a card of theirs is unhealthy or missing.

A card may fall off the bus, or be replaced by another one in the same slot: then the driver lists a
new UUID, and the old one is withdrawn from the register. The pods that hold shares of it keep their
records, and each gets an event once: only its owner can move it. What the node's cards are is known
only while the driver answers; without a driver nothing is reported here.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from hami.agent.allocator import Allocator
from hami.agent.cards.node_cards import NodeCards
from hami.agent.node_status import NodeStatus
from hami.agent.pods import NodePods
from hami.kube.events import EventRecorder
from hami.node.ledger_record import LedgerRecord

_log = logging.getLogger(__name__)

UNHEALTHY, MISSING = "GPUUnhealthy", "GPUMissing"


class _Loss(NamedTuple):
    """A card that a pod holds and cannot use."""

    uid: str
    card: str
    reason: str


class LostCards:
    """Compares the cards that pods hold with those that the node has, after every change."""

    def __init__(
        self,
        *,
        cards: NodeCards,
        allocator: Allocator,
        pods: NodePods,
        events: EventRecorder,
        node: NodeStatus,
    ) -> None:
        self._cards = cards
        self._allocator = allocator
        self._pods = pods
        self._events = events
        self._node = node
        #: What the pods' events have.
        self._reported: frozenset[_Loss] = frozenset()
        cards.add_handler(self.update)
        allocator.add_handler(self.update)

    def update(self) -> None:
        """Report new losses; one that ends is forgotten, and reported again if it comes back."""
        if self._cards.missing or not self._allocator.active.is_set():
            return
        losses: dict[_Loss, LedgerRecord] = {}
        for record in self._allocator.ledger.records():
            pod = self._pods.find(record.uid)
            if pod is not None and pod.finished:
                continue
            for card in record.cards:
                if reason := self._reason(card):
                    losses[_Loss(record.uid, card, reason)] = record
        new = {loss: record for loss, record in losses.items() if loss not in self._reported}
        self._reported = frozenset(losses)
        for loss, record in new.items():
            self._report(loss, record)
        self._report_missing(new)

    def _reason(self, card: str) -> str:
        """Return the reason of the event; empty: the card can be used, or is merely not offered."""
        if not self._cards.is_listed(card):
            return MISSING
        return UNHEALTHY if self._cards.why_unhealthy(card) else ""

    def _report(self, loss: _Loss, record: LedgerRecord) -> None:
        if loss.reason == MISSING:
            what = self._cards.why_not_listed()
        else:
            what = f"is unhealthy: {self._cards.why_unhealthy(loss.card)}"
        self._events.record(
            namespace=record.namespace,
            name=record.name,
            uid=record.uid,
            type="Warning",
            reason=loss.reason,
            message=f"card {loss.card} of this pod, on node {self._node.name}, {what}; what runs "
            "on it fails: delete the pod to reschedule it",
        )

    def _report_missing(self, new: dict[_Loss, LedgerRecord]) -> None:
        """Name the pods of each missing card in the log and in an event of the Node."""
        pods: dict[str, list[str]] = {}
        for loss, record in new.items():
            if loss.reason == MISSING:
                pods.setdefault(loss.card, []).append(f"{record.namespace}/{record.name}")
        for card, names in pods.items():
            names.sort()
            _log.error("a card that pods hold is missing", extra={"card": card, "pods": names})
            self._node.warn(
                MISSING,
                f"card {card} {self._cards.why_not_listed()}; delete the pods that hold shares of "
                f"it: {', '.join(names)}",
            )
