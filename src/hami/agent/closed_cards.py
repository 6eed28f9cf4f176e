"""Cards that take no new pod: cordoned, released, or used by deleted pods.

An administrator who wants to reset a card, unload the driver or replace it names the card in the
Node's annotation `hami.io/device-cordon` (or `all`). No scheduler gives it to a new pod then. When
its last pod has ended, agent and monitor let it go (`hami.node.released_cards`), and the Node's
annotation `hami.io/node-nvidia-closed` says for each closed card who still uses it, or `released`:
then no process of the node has its device file open. When the card is removed from the list, both
open it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from hami.agent.allocator import Allocator
from hami.agent.cards.node_cards import NodeCards
from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import CheckpointError
from hami.agent.leftover_pods import LeftoverPods
from hami.agent.node_status import NodeStatus
from hami.agent.pods import NodePods
from hami.node import proc
from hami.node.layout import NodeLayout
from hami.node.nvml_cards import Card
from hami.node.proc import Opener
from hami.wire import annotation_keys, node_marks, objects, shares, text_values

_log = logging.getLogger(__name__)

#: Seconds between two looks at the processes that have a cordoned card open.
_EVERY = 2.0
#: Pods or processes that are named for a card.
_NAMED = 10

RELEASED = "released"


class ClosedCards:
    """Decides which cards are released, and what the Node says of each closed card."""

    def __init__(
        self,
        layout: NodeLayout,
        *,
        node: NodeStatus,
        cards: NodeCards,
        allocator: Allocator,
        pods: NodePods,
        leftovers: LeftoverPods,
        proc_dir: Path,
    ) -> None:
        self._checkpoint = layout.checkpoint
        self._node = node
        self._cards = cards
        self._ledger = allocator.ledger
        self._active = allocator.active
        self._pods = pods
        self._leftovers = leftovers
        self._proc = proc_dir
        self._requested = asyncio.Event()
        self._handlers: list[Callable[[], None]] = []
        #: By UUID of a cordoned card; None until they have been checked once.
        self._cordoned: dict[str, str] | None = None
        node.add_handler(lambda _old, _new: self._requested.set())
        pods.add_handler(lambda _old, _new: self._requested.set())
        allocator.add_handler(self._requested.set)
        cards.add_handler(self._requested.set)
        leftovers.add_handler(self._notify)

    def add_handler(self, handler: Callable[[], None]) -> None:
        """Call the handler after every change of what is closed."""
        self._handlers.append(handler)

    def request(self) -> None:
        """Check soon."""
        self._requested.set()

    def mark(self) -> str | None:
        """Return the value of the Node's annotation; None: no card is closed."""
        states = {
            card: f"processes of deleted {_pods(names)} still run on it"
            for card, names in self._leftovers.cards().items()
        }
        for card in self._cards.known_cards():
            if state := (self._cordoned or {}).get(card.uuid):
                states |= dict.fromkeys(_ids(card), state)
        return node_marks.encode_closed(states)

    @property
    def settled(self) -> bool:
        """Whether it is known which cards are closed; before, an earlier agent's mark counts."""
        return self._cordoned is not None and self._leftovers.records is not None

    async def run(self) -> NoReturn:
        """Follow Node, pods and processes, for ever."""
        await self._node.wait_synced()
        await self._pods.informer.wait_synced()
        await self._cards.known.wait()
        while True:
            self._requested.clear()
            await self.check()
            with contextlib.suppress(TimeoutError):
                waits = self._cordoned or self._cards.released
                async with asyncio.timeout(_EVERY if waits else None):
                    await self._requested.wait()

    async def check(self) -> None:
        """Release the cordoned cards that no pod has, and find out who uses the others."""
        node = self._node.node()
        if node is None:
            return
        wanted = frozenset(text_values.comma_list(node.annotation(self._node.keys.cordon)))
        cordoned = [card for card in self._cards.known_cards() if _is_cordoned(card, wanted)]
        pods = {card.uuid: self._pods_on(card) for card in cordoned}
        # A card that was released is not opened again for a pod that a scheduler bound too late.
        pods |= {uuid: [] for uuid in pods.keys() & self._cards.released}
        free = frozenset(uuid for uuid, names in pods.items() if not names)
        self._cards.cordon(frozenset(pods), free, writes=self._active.is_set())
        released = self._cards.let_go
        minors = {c.minor for c in cordoned if c.uuid in released and c.minor is not None}
        openers = await asyncio.to_thread(proc.openers, self._proc, minors) if minors else {}
        self._show(
            {
                card.uuid: _state(
                    pods[card.uuid],
                    self._holders(card, openers) if card.uuid in released else ["the agent"],
                )
                for card in cordoned
            }
        )

    def _holders(self, card: Card, openers: dict[int, list[Opener]]) -> list[str]:
        found = openers.get(card.minor, []) if card.minor is not None else []
        return [self._called(each) for each in found]

    def _show(self, states: dict[str, str]) -> None:
        before, self._cordoned = self._cordoned, states
        if before == states:
            return
        known = before or {}
        for uuid in sorted({*states, *known}):
            was, now = known.get(uuid, ""), states.get(uuid, "")
            if now == was:
                continue
            _log.info("a card's cordon has changed", extra={"uuid": uuid, "state": now or "none"})
            if now == RELEASED:
                self._node.report(
                    "GPUReleased",
                    f"card {uuid} is released: no process of this node has it open. Reset it, or "
                    "replace the driver, then remove it from hami.io/device-cordon",
                )
            elif now and not was:
                self._node.report("GPUCordoned", f"card {uuid} takes no new pods: {now}")
        self._notify()

    def _notify(self) -> None:
        for handler in self._handlers:
            handler()

    def _pods_on(self, card: Card) -> list[str]:
        """Return the names of the pods that have a card or a part of it, or were granted it."""
        ids = set(_ids(card))
        found = {
            f"{record.namespace}/{record.name}"
            for record in self._ledger.records()
            if any(share.card in ids for granted in record.held for share in granted)
        }
        for pod in self._pods.all():
            if not pod.finished and not ids.isdisjoint(_granted(pod)):
                found.add(f"{pod.namespace}/{pod.name}")
        if card.mig:
            found |= self._pods_on_parts(ids)
        return sorted(found)

    def _pods_on_parts(self, ids: set[str]) -> set[str]:
        """Return the pods that kubelet gave MIG devices by itself."""
        try:
            entries = checkpoint.read(self._checkpoint).entries
        except CheckpointError as error:
            if error.kind is checkpoint.Kind.MISSING:
                return set()
            return {"unknown (kubelet's checkpoint cannot be read)"}
        pods = (self._pods.find(each.pod_uid) for each in entries if ids & each.device_ids)
        return {f"{pod.namespace}/{pod.name}" for pod in pods if pod and not pod.finished}

    def _called(self, opener: Opener) -> str:
        text = f"process {opener.pid} ({opener.name})"
        for each in opener.pods:
            if (pod := self._pods.find(each.uid)) is not None:
                return f"{text} of pod {pod.namespace}/{pod.name}"
        return text


def _state(pods: list[str], processes: list[str]) -> str:
    if pods:
        return f"cordoned; still used by {_pods(pods)}"
    if processes:
        return f"cordoned; still open in {_listed(processes)}"
    return RELEASED


def _pods(names: Iterable[str]) -> str:
    listed = sorted(names)
    return f"{'pod' if len(listed) == 1 else 'pods'} {_listed(listed)}"


def _listed(names: list[str]) -> str:
    """Name the first ones: all annotations of a Node together have 256 KiB."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _ids(card: Card) -> tuple[str, ...]:
    return card.uuid, *(part.uuid for part in card.mig)


def _is_cordoned(card: Card, wanted: frozenset[str]) -> bool:
    """Return whether a card is cordoned: by its own UUID, or by those of all its MIG devices."""
    parts = {part.uuid for part in card.mig}
    return (
        card.uuid in wanted or node_marks.CORDON_ALL in wanted or (bool(parts) and parts <= wanted)
    )


def _granted(pod: objects.Pod) -> Iterable[str]:
    granted, unreadable = shares.salvage(pod.annotation(annotation_keys.SIGNED_DEVICES))
    return {*unreadable, *(share.card for each in granted for share in each)}
