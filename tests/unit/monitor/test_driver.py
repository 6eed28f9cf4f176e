"""Samples of the driver, also of one that does not answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pynvml  # type: ignore[import-untyped]
import pytest

from hami.monitor.driver import Sampler
from hami.node.nvml import GpuProcess, NvmlError, ProcessUtilization
from hami.node.nvml_cards import Card, MigDevice, Problem
from hami.node.nvml_library import DriverReplacedError
from hami.node.released_cards import ReleasedCards

LOST = NvmlError("GPU 1", "is lost", "reboot")

T = TypeVar("T")


def reported(value: T | None) -> T:
    if value is None:
        raise NvmlError("GPU 0", "is not reported", "", code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def card(index: int, *mig: MigDevice) -> Card:
    return Card(
        uuid=f"GPU-{index}",
        index=index,
        minor=700 + index,  # no other test has such a device file open
        name="NVIDIA A10",
        memory=8,
        numa=0,
        bus_id="",
        mig_enabled=bool(mig),
        mig=mig,
    )


class Driver:
    """Answers from its fields; a card in `lost` answers nothing."""

    def __init__(self, *cards: Card) -> None:
        self.there = cards
        self.lost: set[str] = set()
        self.dead = False
        self.busy: tuple[ProcessUtilization, ...] | None = ()
        self.asked_since: list[int] = []
        self.asked_until: list[int] = []
        self.held: int | None = 3
        #: None: the driver does not report it.
        self.rates: tuple[int, int] | None = (50, 25)
        self.memory: int | None = 7
        self.reopened = 0
        self.closed = False

    def cards(self) -> tuple[tuple[Card, ...], tuple[Problem, ...]]:
        if self.dead:
            raise LOST
        found = tuple(card for card in self.there if card.uuid not in self.lost)
        problems = tuple(Problem(subject=uuid, rule="x", remedy="y") for uuid in sorted(self.lost))
        return found, problems

    def memory_used(self, uuid: str) -> int:
        self._answer(uuid)
        return reported(self.memory)

    def utilization(self, uuid: str) -> tuple[int, int]:
        self._answer(uuid)
        return reported(self.rates)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        self._answer(uuid)
        return (GpuProcess(pid=9, memory=self.held),)

    def process_utilization(
        self, uuid: str, since_us: int, now_us: int
    ) -> tuple[ProcessUtilization, ...] | None:
        self._answer(uuid)
        self.asked_since.append(since_us)
        self.asked_until.append(now_us)
        return self.busy

    def reopen(self) -> None:
        self.reopened += 1

    def close(self) -> None:
        self.closed = True

    def _answer(self, uuid: str) -> None:
        if self.dead or uuid in self.lost:
            raise LOST


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sampler(driver: Driver, clock: Callable[[], float] | None = None) -> Sampler:
    return Sampler("", open_driver=lambda _root: driver, clock=clock or Clock())


def test_cards_and_processes() -> None:
    driver = Driver(card(0), card(1))
    driver.busy = (ProcessUtilization(pid=9, at_us=100, compute=30, memory=1),)
    sample = sampler(driver).take()
    assert [(each.memory_used, each.utilization) for each in sample.cards] == [(7, (50, 25))] * 2
    assert [(each.uuid, each.index, each.mig) for each in sample.processes] == [
        ("GPU-0", 0, False),
        ("GPU-1", 1, False),
    ]
    assert sample.processes[0].processes == (GpuProcess(pid=9, memory=3),)
    assert sample.processes[0].compute == {9: 30}


def ran(pid: int, compute: int) -> ProcessUtilization:
    return ProcessUtilization(pid=pid, at_us=100, compute=compute, memory=1)


@pytest.mark.parametrize("rates", [None, (0, 0)])
def test_a_card_is_as_busy_as_its_processes_where_the_driver_shows_nothing(
    rates: tuple[int, int] | None,
) -> None:
    driver = Driver(card(0))
    driver.rates, driver.busy = rates, (ran(9, 60), ran(8, 55))
    (sample,) = sampler(driver).take().cards
    assert sample.utilization == (100, None if rates is None else 0)
    assert sample.missing == (
        {"memory_controller_utilization": "not_supported"} if rates is None else {}
    )


def test_an_idle_card_whose_driver_reports_nothing_is_not_shown_as_idle() -> None:
    driver = Driver(card(0))
    driver.rates, driver.busy, driver.memory = None, None, None
    sample = sampler(driver).take()
    (found,) = sample.cards
    assert (found.utilization, found.memory_used) == (None, None)
    assert found.missing == {
        "memory_used": "not_supported",
        "utilization": "not_supported",
        "memory_controller_utilization": "not_supported",
        "process_utilization": "not_supported",
    }
    assert sample.processes[0].compute is None


def test_processes_without_samples_on_a_busy_card_are_not_idle() -> None:
    driver = Driver(card(0))
    driver.busy = ()
    sample = sampler(driver).take()
    assert sample.processes[0].compute is None
    assert sample.cards[0].utilization == (50, 25)
    assert sample.cards[0].missing == {"process_utilization": "no_samples"}
    driver.rates = (0, 0)
    sample = sampler(driver).take()
    assert sample.processes[0].compute == {}
    assert sample.cards[0].missing == {}


def test_a_card_that_does_not_answer_has_a_reason_for_every_figure() -> None:
    driver = Driver(card(0))
    taking = sampler(driver)
    taking.take()
    driver.lost.add("GPU-0")
    (found,) = taking.take().cards
    assert set(found.missing.values()) == {"no_answer"}
    assert len(found.missing) == 4


def test_each_sample_of_a_process_counts_once() -> None:
    driver = Driver(card(0))
    driver.busy = (ProcessUtilization(pid=9, at_us=100, compute=30, memory=1),)
    taking = sampler(driver)
    taking.take()
    driver.busy, driver.rates = (), (0, 0)
    assert taking.take().processes[0].compute == {}
    assert driver.asked_since == [0, 100]


def test_a_clock_that_is_set_back_freezes_no_figure() -> None:
    driver, now = Driver(card(0)), Clock()
    now.now = 7200.0
    driver.busy = (ProcessUtilization(pid=9, at_us=7200_000_000, compute=30, memory=1),)
    taking = Sampler("", open_driver=lambda _root: driver, clock=Clock(), now=now)
    taking.take()
    now.now = 3600.0
    driver.busy = ()
    taking.take()
    now.now = 3605.0
    driver.busy = (ProcessUtilization(pid=9, at_us=3604_000_000, compute=40, memory=1),)
    assert taking.take().processes[0].compute == {9: 40}
    assert driver.asked_since == [0, 3600_000_000, 3600_000_000]
    assert driver.asked_until == [7200_000_000, 3600_000_000, 3605_000_000]


def test_a_driver_that_hangs_is_not_open() -> None:
    clock, open_while_asked = Clock(), []

    class Hanging(Driver):
        def memory_used(self, uuid: str) -> int:
            for clock.now in (4.0, 6.0):
                open_while_asked.append(taking.is_open())
            return super().memory_used(uuid)

    taking = sampler(Hanging(card(0)), clock)
    taking.take()
    assert open_while_asked == [True, False]
    assert taking.is_open()


def mismatch() -> NvmlError:
    return NvmlError("NVML", "x", "y", code=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)


def test_a_driver_that_was_replaced_ends_the_process() -> None:
    clock, driver = Clock(), Driver(card(0))
    answers = iter((driver, LOST, mismatch()))

    def open_driver(_root: str) -> Driver:
        found = next(answers)
        if isinstance(found, NvmlError):
            raise found
        return found

    taking = Sampler("", open_driver=open_driver, clock=clock)
    taking.take()
    driver.dead = True
    clock.now = 61
    assert taking.take().cards == ()  # the old driver's module is unloaded
    clock.now = 92
    assert taking.take().cards == ()
    clock.now = 123
    with pytest.raises(DriverReplacedError, match="kubelet starts it again"):
        taking.take()


def test_a_library_of_another_version_is_waited_for_at_the_start() -> None:
    clock, fits, tried = Clock(), False, []

    def open_driver(_root: str) -> Driver:
        raise mismatch()

    def opens(root: str) -> bool:
        tried.append((clock.now, root))
        return fits

    taking = Sampler("/driver", open_driver=open_driver, opens=opens, clock=clock)
    for clock.now in (0.0, 30.0, 60.0, 3600.0):
        # A new process would have the same library: to end would gain nothing.
        assert taking.take().cards == ()
        assert not taking.is_open()
    assert tried == [(30.0, "/driver"), (60.0, "/driver"), (3600.0, "/driver")]
    clock.now, fits = 3630.0, True
    with pytest.raises(DriverReplacedError):
        taking.take()


def test_compute_that_is_not_reported_is_not_zero() -> None:
    driver = Driver(card(0))
    driver.busy = None
    assert sampler(driver).take().processes[0].compute is None


def test_a_card_that_is_lost_leaves_the_others_as_they_are() -> None:
    driver, clock = Driver(card(0), card(1)), Clock()
    taking = sampler(driver, clock)
    taking.take()
    driver.lost = {"GPU-1"}
    sample = taking.take()
    assert [each.memory_used for each in sample.cards] == [7, None]
    # Not sampled, which is not the same as without processes.
    assert [(each.uuid, each.processes) for each in sample.processes] == [
        ("GPU-0", (GpuProcess(pid=9, memory=3),))
    ]
    clock.now = 61
    assert [each.card.index for each in taking.take().cards] == [0]
    assert driver.reopened == 1
    driver.lost = set()
    clock.now = 122
    assert [each.card.index for each in taking.take().cards] == [0, 1]


@pytest.mark.parametrize(("reported", "memory"), [(8, 8), (9, None), (2**63, None), (None, None)])
def test_more_memory_than_the_card_has_is_none_that_is_known(
    reported: int | None, memory: int | None
) -> None:
    """A driver's garbage is no proof against a pod."""
    driver = Driver(card(0))
    driver.held = reported
    assert sampler(driver).take().processes[0].processes == (GpuProcess(pid=9, memory=memory),)


def test_processes_on_mig_devices_are_sampled_by_device() -> None:
    devices = tuple(
        MigDevice(
            uuid=f"MIG-{number}",
            profile="1g.5gb",
            memory=1,
            gpu_instance_id=number,
            compute_instance_id=0,
            parent="GPU-0",
        )
        for number in range(2)
    )
    sample = sampler(Driver(card(0, *devices))).take()
    assert [(each.uuid, each.index, each.mig) for each in sample.processes] == [
        ("MIG-0", 0, True),
        ("MIG-1", 0, True),
    ]
    assert sample.processes[0].compute is None


def test_without_a_driver_there_is_nothing_and_it_is_tried_again() -> None:
    clock, driver, tries = Clock(), Driver(card(0)), 0

    def open_driver(_root: str) -> Driver:
        nonlocal tries
        tries += 1
        if tries < 2:
            raise NvmlError("NVML", "is not there", "install it")
        return driver

    taking = Sampler("", open_driver=open_driver, clock=clock)
    assert taking.take().cards == ()
    assert not taking.is_open()
    assert taking.take().cards == ()
    assert tries == 1
    clock.now = 31
    assert len(taking.take().cards) == 1
    assert taking.is_open()


def test_a_driver_that_goes_away_is_opened_again() -> None:
    clock, driver = Clock(), Driver(card(0))
    taking = sampler(driver, clock)
    taking.take()
    driver.dead = True
    clock.now = 61
    assert taking.take().cards == ()
    assert driver.closed
    assert not taking.is_open()
    driver.dead = False
    clock.now = 95
    assert len(taking.take().cards) == 1


def test_processes_that_are_still_there() -> None:
    driver = Driver(card(0), card(1))
    taking = sampler(driver)
    assert taking.still_there(["GPU-0"]) == {}
    taking.take()
    driver.lost = {"GPU-1"}
    assert taking.still_there(["GPU-0", "GPU-1"]) == {"GPU-0": frozenset({9})}


def test_released_cards_are_left_closed_and_opened_again_afterwards() -> None:
    opened: list[Sequence[Card] | None] = []
    drivers: list[Driver] = []

    def open_driver(_root: str, only: Sequence[Card] | None = None) -> Driver:
        opened.append(only)
        drivers.append(Driver(*(only if only is not None else (card(0), card(1)))))
        return drivers[-1]

    now = ReleasedCards()
    taking = Sampler("", open_driver=open_driver, clock=Clock(), released=lambda: now)
    assert [each.card.index for each in taking.take().cards] == [0, 1]
    now = ReleasedCards((card(0),), (card(1),))
    assert [each.card.index for each in taking.take().cards] == [1]
    assert drivers[0].closed
    now = ReleasedCards((card(0), card(1)))
    assert taking.take().cards == ()
    assert drivers[1].closed
    assert not taking.is_open()
    now = ReleasedCards()
    assert [each.card.index for each in taking.take().cards] == [0, 1]
    assert opened == [None, (card(1),), None]


def test_a_driver_that_opens_released_cards_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "nvidia777").open("w"):  # this process has it open, whatever it asked for
        driver = Driver(card(1))
        now = ReleasedCards((card(77),), (card(1),))
        taking = Sampler(
            "", open_driver=lambda _root, only: driver, clock=Clock(), released=lambda: now
        )
        assert taking.take().cards == ()
        assert driver.closed
        driver.closed = False
        assert taking.take().cards == ()
        assert not driver.closed  # it is not tried again
