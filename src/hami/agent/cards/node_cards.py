"""The node's cards: the driver's list, the offered part of it, and their health.

Without a driver no card is offered; an event gives the reason, and the driver is tried again every
few seconds. A card that was listed once and does not answer any more stays in the inventory,
unhealthy: the pods that hold shares of it must remain visible. So does a card that is released
(`hami.agent.closed_cards`); the driver is asked for the others only. The driver blocks, and may
hang, so it is asked in threads, which do not keep the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from hami.agent.cards import health, inventory, xids
from hami.agent.cards.context_costs import ContextCosts
from hami.agent.cards.health import Health, HealthChange
from hami.agent.cards.inventory import CardInventory
from hami.agent.cards.node_config import NodeConfigFile
from hami.agent.settings import Settings
from hami.node import proc, released_cards
from hami.node.nvml import GpuProcess, Nvml, NvmlError, Replacement, opens_in_new_process
from hami.node.nvml_cards import Card, Problem
from hami.node.released_cards import ReleasedCards, ReleasedFile
from hami.serving import lifetime
from hami.wire import node_register
from hami.wire.node_register import RegisteredCard

_log = logging.getLogger(__name__)

#: Seconds between two lists of the cards, and before a missing driver is tried again.
_LIST_EVERY = 30.0
_RETRY_AFTER = 5.0
#: Seconds before a driver that seems to have been replaced is opened again, to make sure.
_REOPEN_AFTER = 1.0
#: Seconds that the driver has to let itself be closed.
_CLOSE_WITHIN = 3.0


class NodeEvents(Protocol):
    def warn(self, reason: str, message: str) -> None:
        """Send a warning event of the Node."""


class NodeCards:
    """The cards that the driver has listed, kept up to date."""

    def __init__(
        self,
        settings: Settings,
        config_file: NodeConfigFile,
        events: NodeEvents,
        *,
        context_costs: ContextCosts,
        released: Path,
    ) -> None:
        """Read the cards that are released from that file."""
        self._context_costs = context_costs
        self._released_path = released
        self._released_file = ReleasedFile(released)
        self._driver_root = settings.driver_root
        self.config = config_file.config
        self._config_mistake = config_file.mistake
        self._events = events
        self._handlers: list[Callable[[], None]] = []
        self.health = Health(
            clock=time.monotonic,
            quarantine=settings.quarantine,
            ignored=xids.ignored(settings.disable_health_checks, settings.enable_health_checks),
            changed=self._health_changed,
        )
        #: Set once the driver has listed its cards.
        self.known = asyncio.Event()
        #: Whether the driver was asked at all, with or without success.
        self.asked = False
        #: Why no card is offered; empty: see the inventory.
        self.missing = "the driver has not been asked yet"
        self._nvml: Nvml | None = None
        self._inventory: CardInventory | None = None
        self._scores = ""
        self._released = before = self._released_file()
        self._release_changed = asyncio.Event()
        #: UUIDs of the released cards that NVML is closed for, and stays so.
        self.let_go: frozenset[str] = frozenset()
        #: UUIDs of the cards that are released, or that the driver has not listed since.
        self._away = before.uuids
        #: Cards without which the driver cannot be opened: it opens all of them.
        self._inseparable: frozenset[str] = frozenset()
        #: UUIDs of the cards that take no new pod; those that are released among them.
        self.cordoned = before.uuids
        #: By UUID, every card that was listed since the start.
        self._known = {card.uuid: card for card in (*before.released, *before.kept)}
        self._problems: tuple[Problem, ...] = ()
        self._reported: set[str] = set()

    def add_handler(self, handler: Callable[[], None]) -> None:
        """Call the handler after every change of the offered cards or of their health."""
        self._handlers.append(handler)

    @property
    def inventory(self) -> CardInventory:
        return self._inventory or CardInventory()

    @property
    def scores(self) -> str:
        """Return the link scores as the node's annotation has them; empty: below two cards."""
        return self._scores

    def devices(self) -> dict[str, RegisteredCard] | None:
        """Return the offered cards by id; None until the driver has listed its cards."""
        if self._inventory is None:
            return None
        return {device.id: device for device in self._inventory.devices}

    def device(self, uuid: str) -> RegisteredCard | None:
        return (self.devices() or {}).get(uuid)

    def why_unhealthy(self, uuid: str) -> str:
        """Return why an offered card is unhealthy; empty: it is healthy, or not offered.

        A MIG device has the health of its card.
        """
        device = self.device(uuid)
        if device is None or device.health:
            return ""
        if self._is_among(uuid, self._released.uuids):
            return "it is released for maintenance: hami.io/device-cordon of the node names it"
        if self._is_among(uuid, self._away):
            return "it has not answered since it was released"
        return self.health.why(uuid) or "the card that it is a part of is not healthy"

    def _is_among(self, uuid: str, cards: frozenset[str]) -> bool:
        """Return whether one of the cards has this UUID, or a MIG device that has it."""
        return any(uuid in _ids(card) for card in self._known.values() if card.uuid in cards)

    def is_listed(self, uuid: str) -> bool:
        """Return whether the driver has listed a card or MIG device; True: it was not asked yet."""
        return self._inventory is None or any(uuid in _ids(card) for card in self._known.values())

    def why_not_listed(self) -> str:
        """Return what became of a card that the driver does not list."""
        problems = "".join(f"; the driver reports: {each}" for each in self._problems)
        return (
            "is none of this node's cards any more: it was replaced or removed, or has left the "
            f"bus{problems}"
        )

    async def processes(self, uuid: str) -> tuple[GpuProcess, ...] | None:
        """Ask the driver for the processes on a card or MIG device; None: no answer."""
        if self._nvml is None:
            return None
        try:
            return await lifetime.in_thread(self._nvml.processes, uuid)
        except NvmlError:
            return None

    def known_cards(self) -> tuple[Card, ...]:
        """Return every card that was listed since the start."""
        return tuple(self._known.values())

    @property
    def released(self) -> frozenset[str]:
        """Return the UUIDs of the cards that NVML is not to be opened with."""
        return self._released.uuids

    def cordon(
        self, cordoned: frozenset[str], released: frozenset[str], *, writes: bool = True
    ) -> None:
        """Give no MIG device of cordoned cards out; let the released ones go, take others back.

        `writes`: not while another agent serves this node, which writes the file.
        """
        changed = cordoned != self.cordoned
        self.cordoned = cordoned
        cards = self._known.values()
        wanted = ReleasedCards(
            tuple(card for card in cards if card.uuid in released),
            tuple(card for card in cards if card.uuid not in released),
        )
        if (not writes or self._is_written(wanted)) and released != self._released.uuids:
            self._released = wanted if released else released_cards.NONE
            self._away |= released
            self.let_go &= released
            self._release_changed.set()
            changed = True
        if changed and self._inventory is not None:
            self._build(changed=True)

    def _is_written(self, wanted: ReleasedCards) -> bool:
        """Write the file of released cards where it has others; return False if that fails."""
        if self._released_file().uuids != wanted.uuids:
            try:
                released_cards.write(self._released_path, wanted)
            except OSError as error:
                _log.warning("cannot release cards yet", extra={"error": str(error)})
                return False
        return True

    async def run(self) -> NoReturn:
        """Follow the driver for ever; not while the node's configuration holds a mistake.

        Raises DriverReplacedError if only a new process can talk to the driver. The cards that it
        had are still offered then: the agent takes its node out of service, and ends.
        """
        if self._config_mistake:
            self._offer_nothing("NodeConfigWrong", self._config_mistake)
            await asyncio.Event().wait()
        replaced = Replacement(time.monotonic, self._driver_root, opens_in_new_process)
        while True:
            self._release_changed.clear()
            openable = self._released.openable
            if openable == () or (openable and self._released.uuids <= self._inseparable):
                self.let_go = self._released.uuids
                self._answered(changed=True)
                await self._release_changed.wait()
                continue
            try:
                nvml = await self._open(openable)
            except NvmlError as error:
                await lifetime.in_thread(replaced.check, error)
                self.let_go = self._released.uuids
                self._offer_nothing("GPUDriverMissing", str(error))
                await asyncio.sleep(_RETRY_AFTER)
                continue
            replaced.opened()
            self._nvml = nvml
            doubtful, again = False, False
            try:
                # Cards that were released meanwhile were opened with the others.
                if self._release_changed.is_set() or self._opens_released():
                    continue
                self.let_go = self._released.uuids
                await self._until_released(nvml)
                again = True
            except* NvmlError as errors:
                # Of a replaced driver the pods that are bound here must be taken up first.
                doubtful = errors.subgroup(_wants_new_library) is not None
                if not doubtful:
                    self._offer_nothing("GPUDriverMissing", "; ".join(map(str, errors.exceptions)))
            finally:
                self._nvml = None
                await _close(nvml)
            if not again:
                await asyncio.sleep(_REOPEN_AFTER if doubtful else _RETRY_AFTER)

    def _opens_released(self) -> bool:
        """Find out whether this driver opens cards that it was not asked for."""
        minors = [card.minor for card in self._released.released if card.minor is not None]
        if not proc.opens(minors):
            return False
        self._inseparable = self._released.uuids
        _log.warning(
            "this driver opens all cards together, so none is checked while a card is released",
            extra={"released": sorted(self._released.uuids)},
        )
        return True

    async def _until_released(self, nvml: Nvml) -> None:
        """Follow the driver until other cards are released."""
        following = asyncio.create_task(self._follow(nvml))
        changed = asyncio.create_task(self._release_changed.wait())
        try:
            await asyncio.wait({following, changed}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            following.cancel()
            changed.cancel()
            await asyncio.gather(following, changed, return_exceptions=True)

    async def _open(self, openable: tuple[Card, ...] | None) -> Nvml:
        """Open the driver and list its cards: a replaced one may open and then not answer."""
        nvml = await lifetime.in_thread(Nvml.open, self._driver_root, openable)
        try:
            await self._list(nvml)
        except BaseException:
            await _close(nvml)
            raise
        return nvml

    async def _follow(self, nvml: Nvml) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(health.watch(self.health, nvml, self._followed))
            group.create_task(self._keep_listing(nvml))

    def _followed(self) -> list[str]:
        return [uuid for uuid in self._known if uuid not in self._released.uuids]

    async def _keep_listing(self, nvml: Nvml) -> None:
        while True:
            await asyncio.sleep(_LIST_EVERY)
            try:
                await self._list(nvml)
            except NvmlError as error:
                if error.wants_new_library:
                    raise
                # The health watch finds out which cards do not answer, one by one.
                _log.warning("cannot list the cards", extra={"error": str(error)})

    async def _list(self, nvml: Nvml) -> None:
        cards, problems = await lifetime.in_thread(nvml.cards)
        links, link_problems = await lifetime.in_thread(nvml.links, cards)
        await lifetime.in_thread(self._context_costs.observe, nvml, cards)
        self._withdraw_replaced(cards)
        self._known.update((card.uuid, card) for card in cards)
        away = (self._away - {card.uuid for card in cards}) | self._released.uuids
        back, self._away = away != self._away, away
        self._problems = (*problems, *link_problems)
        pairs, notes = inventory.pair_scores(links)
        self._scores = node_register.encode_scores(pairs) if len(pairs) > 1 else ""
        for note in notes:
            self._report_once("AsymmetricGPUP2PLink", note)
        if self.missing:
            _log.info("the driver answers", extra={"cards": len(cards)})
        self._answered(changed=back)

    def _answered(self, *, changed: bool = False) -> None:
        changed = changed or bool(self.missing)
        self.missing = ""
        self.asked = True
        self._build(changed=changed)

    def _withdraw_replaced(self, listed: Sequence[Card]) -> None:
        """Forget cards in whose slot the driver lists another one: they do not come back."""
        slots = {card.bus_id: card.uuid for card in listed if card.bus_id}
        uuids = {card.uuid for card in listed}
        for old in list(self._known.values()):
            if old.uuid not in uuids and (new := slots.get(old.bus_id)) is not None:
                del self._known[old.uuid]
                self._away -= {old.uuid}
                extra = {"slot": old.bus_id, "old": old.uuid, "new": new}
                _log.warning("a card was replaced, its UUID is withdrawn", extra=extra)

    def _build(self, *, changed: bool = False) -> None:
        before = self._inventory
        self._inventory = inventory.build(
            self._known.values(), self._problems, self.config, self.is_healthy
        )
        for note in self._inventory.notes:
            self._report_once("GPUNotOffered", note)
        self.known.set()
        if self._inventory != before or changed:
            self._notify()

    def is_healthy(self, uuid: str) -> bool:
        """Return whether pods may start on a card, by its UUID."""
        return self.health.is_healthy(uuid) and uuid not in self._away

    def _health_changed(self, change: HealthChange) -> None:
        if change.healthy:
            _log.info("a card is healthy again", extra={"uuid": change.card})
        else:
            _log.error("a card is unhealthy", extra={"uuid": change.card, "why": change.why})
            self._events.warn(
                "GPUUnhealthy",
                f"card {change.card} is unhealthy, no pod is started on it: {change.why}",
            )
        if self._inventory is not None:
            self._build(changed=True)  # MIG devices have no health of their own in the inventory

    def _offer_nothing(self, reason: str, why: str) -> None:
        if why != self.missing:
            _log.error("no card is offered", extra={"why": why})
            self._events.warn(reason, f"no card is offered: {why}")
        self.missing = why
        self.asked = True
        self._notify()

    def _report_once(self, reason: str, note: str) -> None:
        if note not in self._reported:
            self._reported.add(note)
            _log.warning("a card of this node needs attention", extra={"note": note})
            self._events.warn(reason, note)

    def _notify(self) -> None:
        for handler in self._handlers:
            handler()


def _ids(card: Card) -> frozenset[str]:
    return frozenset({card.uuid, *(part.uuid for part in card.mig)})


async def _close(nvml: Nvml) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_WITHIN):
            await lifetime.in_thread(nvml.close)


def _wants_new_library(error: Exception) -> bool:
    return isinstance(error, NvmlError) and error.wants_new_library
