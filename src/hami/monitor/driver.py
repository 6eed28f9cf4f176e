"""Sample the driver: memory, utilization and processes of the node's cards.

Each call may take milliseconds, or hang with the driver: `Sampler.take` belongs into a thread of
its own. Without a driver the sample is empty, which is logged once; the numbers of containers do
not need it. A value that one card does not report is missing from that card only, with the reason.
Cards that the agent has released for a reset or another driver are left closed, and have no sample.

Some drivers show a card as idle while it works, or take no samples of its processes. Each figure is
checked by the other: a card is at least as busy as its processes, and processes without a sample on
a busy card are not known to be idle.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from hami.node import proc, released_cards
from hami.node.nvml import (
    GpuProcess,
    Nvml,
    NvmlError,
    ProcessUtilization,
    Replacement,
    opens_in_new_process,
)
from hami.node.nvml_cards import Card, Problem
from hami.node.released_cards import ReleasedCards

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two lists of the cards, and between two tries to open the driver.
_RELIST = 60.0
_REOPEN = 30.0
#: Seconds after which a driver that has not answered counts as hung; audits begin every 5 s.
HUNG = 5.0
_WHOLE = 100


class Driver(Protocol):
    """The calls of `hami.node.nvml.Nvml` that a sample needs."""

    def cards(self) -> tuple[tuple[Card, ...], tuple[Problem, ...]]: ...
    def memory_used(self, uuid: str) -> int: ...
    def utilization(self, uuid: str) -> tuple[int, int]: ...
    def processes(self, uuid: str) -> tuple[GpuProcess, ...]: ...
    def process_utilization(
        self, uuid: str, since_us: int, now_us: int
    ) -> tuple[ProcessUtilization, ...] | None: ...
    def reopen(self) -> None: ...
    def close(self) -> None: ...


#: Figures that a card may lack, and why: the driver has no such call for it, the call failed, the
#: card works and none of its processes has a sample, its processes run on MIG devices.
MEMORY, COMPUTE, BANDWIDTH, BY_PROCESS = (
    *("memory_used", "utilization"),
    *("memory_controller_utilization", "process_utilization"),
)
_NOT_SUPPORTED, _NO_ANSWER, _NO_SAMPLES, _MIG = "not_supported", "no_answer", "no_samples", "mig"


class CardSample(msgspec.Struct, frozen=True, kw_only=True):
    """One card; None: the driver does not report it."""

    card: Card
    #: Bytes.
    memory_used: int | None = None
    #: Percent, of compute and of the memory's bandwidth.
    utilization: tuple[int, int | None] | None = None
    #: By figure that is not known, the reason.
    missing: Mapping[str, str] = {}


class CardProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """Processes on a card, or on one MIG device of it."""

    uuid: str
    index: int
    mig: bool = False
    processes: tuple[GpuProcess, ...] = ()
    #: Percent of the card's compute by pid, without idle processes. None: not known.
    compute: Mapping[int, int] | None = None


class DriverSample(msgspec.Struct, frozen=True, kw_only=True):
    """All cards of the node at one time."""

    #: Seconds of the sampler's clock.
    taken: float
    cards: tuple[CardSample, ...] = ()
    processes: tuple[CardProcesses, ...] = ()


class Sampler:
    """Opens the driver and asks it, and opens it again after it failed."""

    def __init__(
        self,
        driver_root: str = "",
        *,
        open_driver: Callable[..., Driver] = Nvml.open,
        opens: Callable[[str], bool] = opens_in_new_process,
        released: Callable[[], ReleasedCards] = lambda: released_cards.NONE,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._driver_root = driver_root
        self._open_driver = open_driver
        self._read_released = released
        self._released = released_cards.NONE
        #: Cards without which the driver cannot be opened: it opens all of them.
        self._inseparable: frozenset[str] = frozenset()
        self._clock = clock
        self._now = now
        self._replaced = Replacement(clock, driver_root, opens)
        #: When the question that is not answered yet was asked; None: no question is open.
        self._asked_at: float | None = None
        self._driver: Driver | None = None
        self._next_open = 0.0
        self._next_list = 0.0
        self._cards: tuple[Card, ...] = ()
        #: By card, when the last sample of its processes was taken, in the driver's time.
        self._sampled: dict[str, int] = {}
        self._reported: set[str] = set()

    def is_open(self) -> bool:
        """Return True while the driver answers; not while a question has hung for long."""
        asked_at = self._asked_at
        hangs = asked_at is not None and self._clock() - asked_at > HUNG
        return self._driver is not None and not hangs

    def take(self) -> DriverSample:
        """Ask the driver for all cards.

        Of errors of the driver only DriverReplacedError is raised: this process must end.
        """
        self._asked_at = self._clock()
        try:
            return self._sample(self._asked_at)
        finally:
            self._asked_at = None

    def _sample(self, taken: float) -> DriverSample:
        self._release()
        driver = self._opened()
        if driver is None:
            return DriverSample(taken=taken)
        try:
            self._list(driver)
        except NvmlError as error:
            self._failed(error)
            self._end()
            return DriverSample(taken=taken)
        if proc.opens([card.minor for card in self._released.released if card.minor is not None]):
            self._report("this driver opens all cards together, also those that are released")
            self._inseparable = self._released.uuids
            self._end()
            return DriverSample(taken=taken)
        found = [self._card(driver, card) for card in self._cards]
        return DriverSample(
            taken=taken,
            cards=tuple(card for card, _ in found),
            processes=tuple(each for _, on_card in found for each in on_card),
        )

    def still_there(self, uuids: Sequence[str]) -> dict[str, frozenset[int]]:
        """Return the pids that are now on these cards and MIG devices, of those that answer."""
        driver = self._driver
        if driver is None:
            return {}
        self._asked_at = self._clock()
        found = {}
        for uuid in uuids:
            processes = _asked(driver.processes, uuid)
            if processes is not None:
                found[uuid] = frozenset(process.pid for process in processes)
        self._asked_at = None
        return found

    def close(self) -> None:
        self._end()

    def _release(self) -> None:
        """Close the driver where other cards are released than it was opened without."""
        released = self._read_released()
        if released != self._released:
            self._released = released
            self._next_open = 0.0
            self._end()

    def _opened(self) -> Driver | None:
        released = self._released
        if released.openable == () or (released.uuids and released.uuids <= self._inseparable):
            return None
        if self._driver is None and self._clock() >= self._next_open:
            self._next_open = self._clock() + _REOPEN
            try:
                some = {"only": released.kept} if released.released else {}
                self._driver = self._open_driver(self._driver_root, **some)
            except NvmlError as error:
                self._failed(error)
            else:
                self._replaced.opened()
                self._next_list = 0.0
                _log.info("opened the driver")
        return self._driver

    def _list(self, driver: Driver) -> None:
        if self._clock() < self._next_list:
            return
        cards, problems = driver.cards()
        if problems:
            # NVML shows a card that came back only after it was opened again.
            driver.reopen()
            cards, problems = driver.cards()
        for problem in problems:
            self._report(str(problem))
        self._cards = cards
        self._next_list = self._clock() + _RELIST

    def _card(self, driver: Driver, card: Card) -> tuple[CardSample, tuple[CardProcesses, ...]]:
        """Ask for a card and for its processes; one that does not answer shows none."""
        missing: dict[str, str] = {}
        memory = _asked(driver.memory_used, card.uuid, missing, MEMORY)
        rates = _asked(driver.utilization, card.uuid, missing, COMPUTE, BANDWIDTH)
        compute, bandwidth = rates or (0, None)
        if card.mig_enabled:
            # Processes run on its MIG devices; NVML does not report how busy those are.
            missing[BY_PROCESS] = _MIG
            parts = [(mig.uuid, True) for mig in card.mig]
            by_process = None
        else:
            parts = [(card.uuid, False)]
            by_process = self._by_process(driver, card, missing)
        processes = [
            CardProcesses(uuid=uuid, index=card.index, mig=mig, processes=on, compute=by_process)
            for uuid, mig in parts
            if (on := _on(driver, uuid, card)) is not None
        ]
        if by_process and not compute and (compute := min(sum(by_process.values()), _WHOLE)):
            missing.pop(COMPUTE, None)
        if compute and by_process == {} and any(each.processes for each in processes):
            missing[BY_PROCESS] = _NO_SAMPLES
            processes = [msgspec.structs.replace(each, compute=None) for each in processes]
        sample = CardSample(
            card=card,
            memory_used=memory,
            utilization=None if COMPUTE in missing else (compute, bandwidth),
            missing=missing,
        )
        return sample, tuple(processes)

    def _by_process(
        self, driver: Driver, card: Card, missing: dict[str, str]
    ) -> dict[int, int] | None:
        now = int(self._now() * 1e6)
        # After the clock was set back, no sample would be newer than the last one for a long time.
        since = min(self._sampled.get(card.uuid, 0), now)
        try:
            samples = driver.process_utilization(card.uuid, since, now)
        except NvmlError:
            missing[BY_PROCESS] = _NO_ANSWER
            return None
        if samples is None:
            missing[BY_PROCESS] = _NOT_SUPPORTED
            return None
        self._sampled[card.uuid] = max((each.at_us for each in samples), default=since)
        return {each.pid: each.compute for each in samples}

    def _end(self) -> None:
        driver, self._driver, self._cards = self._driver, None, ()
        if driver is not None:
            driver.close()

    def _failed(self, error: NvmlError) -> None:
        self._report(str(error))
        self._replaced.check(error)

    def _report(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            _log.warning("cannot read all of the driver's numbers", extra={"error": text})


def _on(driver: Driver, uuid: str, card: Card) -> tuple[GpuProcess, ...] | None:
    """Ask for processes; None: no answer. More memory than the card has is not known."""
    found = _asked(driver.processes, uuid)
    if found is None or not card.memory:
        return found
    return tuple(
        GpuProcess(pid=each.pid, memory=None) if (each.memory or 0) > card.memory else each
        for each in found
    )


def _asked(
    question: Callable[[str], T],
    uuid: str,
    missing: dict[str, str] | None = None,
    *figures: str,
) -> T | None:
    """Call the driver; None: it does not answer this for this card; `missing` gets the reason."""
    try:
        return question(uuid)
    except NvmlError as error:
        if missing is not None:
            reason = _NOT_SUPPORTED if error.is_unsupported else _NO_ANSWER
            missing.update(dict.fromkeys(figures, reason))
        return None
