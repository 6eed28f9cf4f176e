"""The node's cards as we know them now: what the driver lists, what we offer of it, how they are.

Without a driver nothing is offered, and it is said why; it is looked for again and again. A card
that was there and does not answer any more stays in the list, unhealthy: whoever has a share of it
must be seen. Listing takes the driver's time, so it runs beside the loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NoReturn

from hami.agent.cards import health, inventory, xids
from hami.agent.cards.health import Health
from hami.agent.cards.inventory import CardInventory
from hami.agent.cards.node_config import NodeConfig
from hami.agent.settings import Settings
from hami.node.nvml import Nvml, NvmlError
from hami.node.nvml_cards import Card, Problem
from hami.wire import node_register
from hami.wire.node_register import RegisteredCard

_log = logging.getLogger(__name__)

#: Seconds between two lists of the cards, and before a driver that is missing is looked for again.
_LIST_EVERY = 30.0
_RETRY_AFTER = 5.0


class NodeCards:
    def __init__(
        self,
        settings: Settings,
        config: NodeConfig,
        *,
        on_change: Callable[[], None],
        warn: Callable[[str, str], None],
    ) -> None:
        self._driver_root = settings.driver_root
        self.config = config
        self._on_change = on_change
        #: Tells whoever describes the node: reason and message.
        self._warn = warn
        self.health = Health(
            clock=time.monotonic,
            quarantine=settings.quarantine,
            ignored=xids.ignored(settings.disable_health_checks, settings.enable_health_checks),
            changed=self._health_changed,
        )
        #: Set once the driver has listed its cards.
        self.known = asyncio.Event()
        #: Whether anything is known yet, good or bad.
        self.asked = False
        #: Why nothing is offered; empty: see the inventory.
        self.missing = "the driver has not been asked yet"
        self._inventory: CardInventory | None = None
        self._scores = ""
        #: By UUID, every card that was seen since the start.
        self._known: dict[str, Card] = {}
        self._problems: tuple[Problem, ...] = ()
        self._said: set[str] = set()

    @property
    def inventory(self) -> CardInventory:
        return self._inventory or CardInventory()

    @property
    def scores(self) -> str:
        """How the cards are linked, as the node's annotation; empty: there are not two."""
        return self._scores

    def devices(self) -> dict[str, RegisteredCard] | None:
        """Return the offered cards by id; None as long as the driver has not told."""
        if self._inventory is None:
            return None
        return {device.id: device for device in self._inventory.devices}

    def device(self, uuid: str) -> RegisteredCard | None:
        return (self.devices() or {}).get(uuid)

    def why_unhealthy(self, uuid: str) -> str:
        """Tell why an offered card is left out; empty: it is not. A MIG device is as its card."""
        device = self.device(uuid)
        if device is None or device.health:
            return ""
        return self.health.why(uuid) or "the card that it is a part of is not"

    async def run(self) -> NoReturn:
        """Ask the driver for ever."""
        while True:
            try:
                nvml = await asyncio.to_thread(Nvml.open, self._driver_root)
            except NvmlError as error:
                self.lack("GPUDriverMissing", str(error))
                await asyncio.sleep(_RETRY_AFTER)
                continue
            try:
                await self._follow(nvml)
            except* NvmlError as errors:
                self.lack("GPUDriverMissing", "; ".join(map(str, errors.exceptions)))
            finally:
                await asyncio.to_thread(nvml.close)
            await asyncio.sleep(_RETRY_AFTER)

    async def _follow(self, nvml: Nvml) -> None:
        await self._list(nvml)
        async with asyncio.TaskGroup() as group:
            group.create_task(health.watch(self.health, nvml, lambda: list(self._known)))
            group.create_task(self._keep_listing(nvml))

    async def _keep_listing(self, nvml: Nvml) -> None:
        while True:
            await asyncio.sleep(_LIST_EVERY)
            try:
                await self._list(nvml)
            except NvmlError as error:
                # Cards that do not answer are the health watch's to judge, one by one.
                _log.warning("the cards cannot be listed", extra={"error": str(error)})

    async def _list(self, nvml: Nvml) -> None:
        cards, problems = await asyncio.to_thread(nvml.cards)
        links, of_links = await asyncio.to_thread(nvml.links, cards)
        self._known.update((card.uuid, card) for card in cards)
        self._problems = (*problems, *of_links)
        pairs, notes = inventory.pair_scores(links)
        self._scores = node_register.encode_scores(pairs) if len(pairs) > 1 else ""
        for note in notes:
            self._say("AsymmetricGPUP2PLink", note)
        returned = bool(self.missing)
        if returned:
            _log.info("the driver answers", extra={"cards": len(cards)})
        self.missing = ""
        self.asked = True
        self._build(changed=returned)

    def _build(self, *, changed: bool = False) -> None:
        before = self._inventory
        self._inventory = inventory.build(
            self._known.values(), self._problems, self.config, self._is_healthy
        )
        for note in self._inventory.notes:
            self._say("GPUNotOffered", note)
        self.known.set()
        if self._inventory != before or changed:
            self._on_change()

    def _is_healthy(self, uuid: str) -> bool:
        return self.health.is_healthy(uuid)

    def _health_changed(self, uuid: str, healthy: bool, why: str) -> None:  # noqa: FBT001 - health's
        if healthy:
            _log.info("a card is healthy again", extra={"uuid": uuid})
        else:
            _log.error("a card is left out", extra={"uuid": uuid, "why": why})
            self._warn("GPUUnhealthy", f"card {uuid} is left out: {why}")
        if self._inventory is not None:
            self._build(changed=True)  # MIG devices have no health of their own in the inventory

    def lack(self, reason: str, why: str) -> None:
        """Offer nothing, and say why."""
        if why != self.missing:
            _log.error("no card is offered", extra={"why": why})
            self._warn(reason, f"no card is offered: {why}")
        self.missing = why
        self.asked = True
        self._on_change()

    def _say(self, reason: str, note: str) -> None:
        if note not in self._said:
            self._said.add(note)
            _log.warning("cards of this node", extra={"note": note})
            self._warn(reason, note)
