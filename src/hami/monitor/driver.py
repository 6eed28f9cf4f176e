"""What the driver says of the node's cards now: memory, how busy they are, and who is on them.

Every question may take milliseconds, or hang with the driver: `Sampler.take` belongs into a thread
of its own. Without a driver there is nothing to sample, which is said once; containers' own numbers
do not need it. What one card does not answer is missing from that card only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from hami.node.nvml import GpuProcess, Nvml, NvmlError, ProcessUtilization
from hami.node.nvml_cards import Card, Problem

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two looks at which cards there are, and between two tries to open the driver.
_RELIST = 60.0
_REOPEN = 30.0


class Driver(Protocol):
    """What we ask of `hami.node.nvml.Nvml`."""

    def cards(self) -> tuple[tuple[Card, ...], tuple[Problem, ...]]: ...
    def memory_used(self, uuid: str) -> int: ...
    def utilization(self, uuid: str) -> tuple[int, int]: ...
    def processes(self, uuid: str) -> tuple[GpuProcess, ...]: ...
    def process_utilization(
        self, uuid: str, since_us: int = 0
    ) -> tuple[ProcessUtilization, ...] | None: ...
    def reopen(self) -> None: ...
    def close(self) -> None: ...


class CardNow(msgspec.Struct, frozen=True, kw_only=True):
    """None: the driver does not tell."""

    card: Card
    memory_used: int | None = None
    #: Percent, of compute and of the memory's bandwidth.
    utilization: tuple[int, int] | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What processes run on: a card, or a MIG device of one."""

    uuid: str
    index: int
    mig: bool = False
    processes: tuple[GpuProcess, ...] = ()
    #: Percent of the card's compute by pid; who is missing did nothing. None: not told.
    compute: Mapping[int, int] | None = None


class DriverSample(msgspec.Struct, frozen=True, kw_only=True):
    #: By the sampler's clock.
    taken: float
    cards: tuple[CardNow, ...] = ()
    parts: tuple[Part, ...] = ()


class Sampler:
    def __init__(
        self,
        driver_root: str = "",
        *,
        open_driver: Callable[[str], Driver] = Nvml.open,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver_root = driver_root
        self._open_driver = open_driver
        self._clock = clock
        self._driver: Driver | None = None
        self._next_open = 0.0
        self._next_list = 0.0
        self._cards: tuple[Card, ...] = ()
        #: By card, when the last sample of its processes was taken, in the driver's time.
        self._sampled: dict[str, int] = {}
        self._told: set[str] = set()

    @property
    def open(self) -> bool:
        return self._driver is not None

    def take(self) -> DriverSample:
        """Ask the driver; never raises for what the driver says."""
        taken = self._clock()
        driver = self._opened()
        if driver is None:
            return DriverSample(taken=taken)
        try:
            self._list(driver)
        except NvmlError as error:
            self._tell(str(error))
            self._end()
            return DriverSample(taken=taken)
        return DriverSample(
            taken=taken,
            cards=tuple(_card_now(driver, card) for card in self._cards),
            parts=tuple(part for card in self._cards for part in self._parts(driver, card)),
        )

    def still_there(self, uuids: Sequence[str]) -> dict[str, frozenset[int]]:
        """Ask again who is on these cards and MIG devices."""
        driver = self._driver
        if driver is None:
            return {}
        found = {}
        for uuid in uuids:
            processes = _asked(driver.processes, uuid)
            found[uuid] = frozenset(process.pid for process in processes or ())
        return found

    def close(self) -> None:
        self._end()

    def _opened(self) -> Driver | None:
        if self._driver is None and self._clock() >= self._next_open:
            self._next_open = self._clock() + _REOPEN
            try:
                self._driver = self._open_driver(self._driver_root)
            except NvmlError as error:
                self._tell(str(error))
            else:
                self._next_list = 0.0
                _log.info("the driver answers")
        return self._driver

    def _list(self, driver: Driver) -> None:
        if self._clock() < self._next_list:
            return
        cards, problems = driver.cards()
        if problems:
            # A card that came back is seen only by whoever looks anew.
            driver.reopen()
            cards, problems = driver.cards()
        for problem in problems:
            self._tell(str(problem))
        self._cards = cards
        self._next_list = self._clock() + _RELIST

    def _parts(self, driver: Driver, card: Card) -> list[Part]:
        if card.mig_enabled:
            # All runs on its parts, and nobody tells how busy those are.
            return [
                Part(
                    uuid=mig.uuid,
                    index=card.index,
                    mig=True,
                    processes=_asked(driver.processes, mig.uuid) or (),
                )
                for mig in card.mig
            ]
        processes = _asked(driver.processes, card.uuid)
        return [
            Part(
                uuid=card.uuid,
                index=card.index,
                processes=processes or (),
                compute=self._compute(driver, card) if processes is not None else None,
            )
        ]

    def _compute(self, driver: Driver, card: Card) -> dict[int, int] | None:
        since = self._sampled.get(card.uuid, 0)
        samples = _asked(driver.process_utilization, card.uuid, since)
        if samples is None:
            return None
        self._sampled[card.uuid] = max((each.at_us for each in samples), default=since)
        return {each.pid: each.compute for each in samples}

    def _end(self) -> None:
        driver, self._driver, self._cards = self._driver, None, ()
        if driver is not None:
            driver.close()

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning("the driver does not answer as it should", extra={"error": text})


def _card_now(driver: Driver, card: Card) -> CardNow:
    return CardNow(
        card=card,
        memory_used=_asked(driver.memory_used, card.uuid),
        utilization=_asked(driver.utilization, card.uuid),
    )


def _asked(question: Callable[..., T], *about: object) -> T | None:
    try:
        return question(*about)
    except NvmlError:
        return None
