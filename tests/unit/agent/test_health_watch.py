"""The driver's events and answers are read, whatever it does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest

from hami.agent.cards import xids
from hami.agent.cards.health import Health, watch
from hami.node.nvml import NvmlError, XidEvent
from hami_sandbox import gpus
from tests.unit.kube.following import PATIENCE_S
from tests.unit.node import stand_in

A, B = "GPU-a", "GPU-b"
CARDS = (A, B)


class Source:
    def __init__(self, driver: ScriptedDriver, uuids: frozenset[str]) -> None:
        self.driver = driver
        self.uuids = uuids
        self.unsupported: dict[str, str] = dict.fromkeys(uuids & driver.mute, "sends none")
        self.closed = False

    def wait(self, timeout_ms: int) -> XidEvent | None:
        assert not self.closed
        if self.driver.deaf.is_set():
            raise NvmlError("waiting for XIDs", "interrupts do not arrive", "reboot")
        with contextlib.suppress(queue.Empty):
            return self.driver.xids.get(timeout=min(timeout_ms, 20) / 1000)
        return None

    def close(self) -> None:
        self.closed = True


class ScriptedDriver:
    """A driver that does what a test says."""

    def __init__(self) -> None:
        self.xids: queue.Queue[XidEvent] = queue.Queue()
        self.deaf = threading.Event()
        self.lost: frozenset[str] = frozenset()
        self.mute: frozenset[str] = frozenset()
        self.actions: dict[str, int] = {}
        self.sources: list[Source] = []
        self.probes = 0
        self.reopened = 0
        self.hangs_on = ""
        self.released = threading.Event()

    def probe(self, uuid: str) -> str:
        self.probes += 1
        if uuid == self.hangs_on:
            self.released.wait()
        return "the GPU is lost" if uuid in self.lost else ""

    def recovery_action(self, uuid: str) -> int | None:
        return self.actions.get(uuid)

    def watch_xids(self, uuids: Iterable[str]) -> Source:
        self.sources.append(Source(self, frozenset(uuids)))
        return self.sources[-1]

    def reopen(self) -> None:
        assert all(source.closed for source in self.sources)
        self.reopened += 1


def make_health(disable: str = "", quarantine: float = 0.0) -> Health:
    return Health(clock=time.monotonic, quarantine=quarantine, ignored=xids.ignored(disable))


@contextlib.asynccontextmanager
async def watching(
    health: Health,
    driver: ScriptedDriver,
    *,
    cards: Callable[[], Iterable[str]] = lambda: CARDS,
    probe_every: float = 0.01,
    stuck_after: float = 60.0,
    reopen_every: float = 60.0,
) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(
        watch(
            health,
            driver,
            cards,
            probe_every=probe_every,
            stuck_after=stuck_after,
            reopen_every=reopen_every,
        )
    )
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not fact():
            await asyncio.sleep(0.005)


def own_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("gpu-")]


async def test_an_error_takes_out_its_card_and_no_other() -> None:
    health, driver = make_health(quarantine=1000.0), ScriptedDriver()
    async with watching(health, driver):
        driver.xids.put(XidEvent(B, 79))
        await until(lambda: not health.is_healthy(B))
        assert health.is_healthy(A)


async def test_an_error_of_an_unknown_card_takes_out_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    health, driver = make_health(quarantine=1000.0), ScriptedDriver()
    async with watching(health, driver):
        driver.xids.put(XidEvent("", 79))
        await until(lambda: "unknown card" in caplog.text)
    assert all(map(health.is_healthy, CARDS))


async def test_a_wait_that_fails_makes_no_card_unhealthy_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    health, driver = make_health(quarantine=1000.0), ScriptedDriver()
    async with watching(health, driver):
        driver.deaf.set()
        await until(lambda: len(driver.sources) >= 3)
        assert all(map(health.is_healthy, CARDS))
        assert caplog.text.count("cannot wait for XIDs") == 1
        driver.deaf.clear()
        await until(lambda: "waiting for XIDs again" in caplog.text)
        driver.xids.put(XidEvent(A, 62))
        await until(lambda: not health.is_healthy(A))


async def test_while_nothing_is_heard_probes_still_find_a_lost_card() -> None:
    health, driver = make_health(quarantine=1000.0), ScriptedDriver()
    driver.deaf.set()
    async with watching(health, driver):
        driver.lost = frozenset({B})
        await until(lambda: not health.is_healthy(B))
        assert health.is_healthy(A)


async def test_a_lost_card_is_not_listened_to_until_it_answers() -> None:
    health, driver = make_health(), ScriptedDriver()
    async with watching(health, driver):
        await until(lambda: bool(driver.sources) and driver.sources[-1].uuids == {A, B})
        driver.lost = frozenset({B})
        await until(lambda: driver.sources[-1].uuids == {A})
        assert not health.is_healthy(B)
        driver.lost = frozenset()
        await until(lambda: driver.sources[-1].uuids == {A, B})
        await until(lambda: health.is_healthy(B))
        assert [source.closed for source in driver.sources[:-1]] == [True] * (
            len(driver.sources) - 1
        )


async def test_what_the_driver_wants_done_is_asked() -> None:
    health, driver = make_health(), ScriptedDriver()
    driver.actions[A] = 2
    async with watching(health, driver):
        await until(lambda: "reboot" in health.why(A))
        del driver.actions[A]
        await until(lambda: health.is_healthy(A))


async def test_the_driver_is_opened_again_while_a_card_is_silent() -> None:
    health, driver = make_health(), ScriptedDriver()
    driver.lost = frozenset({A})
    async with watching(health, driver, reopen_every=0.0):
        await until(lambda: driver.reopened > 0)
        driver.xids.put(XidEvent(B, 79))
        driver.lost = frozenset()
        await until(lambda: health.is_healthy(A))
        await until(lambda: not driver.xids.qsize())


async def test_a_probe_that_hangs_makes_its_card_unhealthy_and_delays_no_other() -> None:
    health, driver = make_health(quarantine=1000.0), ScriptedDriver()
    driver.hangs_on = A
    try:
        async with watching(health, driver, stuck_after=0.01):
            await until(lambda: "has not answered" in health.why(A))
            assert health.is_healthy(B)
        assert driver.sources[-1].closed
    finally:
        driver.released.set()
    await until(lambda: not own_threads())


async def test_a_card_that_reports_nothing_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    health, driver = make_health(), ScriptedDriver()
    driver.mute = frozenset({B})
    async with watching(health, driver):
        await until(lambda: bool(driver.sources))
        driver.lost = frozenset({A})
        await until(lambda: driver.sources[-1].uuids == {B})
    assert [getattr(record, "uuid", "") for record in caplog.records] == [B]


async def test_cancelling_ends_the_threads_and_closes_the_source() -> None:
    health, driver = make_health(), ScriptedDriver()
    async with watching(health, driver):
        await until(lambda: bool(driver.sources) and driver.probes > 2)
        assert len(own_threads()) == 2
    assert own_threads() == []
    assert driver.sources[-1].closed


async def test_health_checks_that_are_turned_off_ask_nothing() -> None:
    health, driver = make_health("all"), ScriptedDriver()
    driver.lost = frozenset({A})
    looks = 0

    def cards() -> tuple[str, ...]:
        nonlocal looks
        looks += 1
        return CARDS

    async with watching(health, driver, cards=cards) as task:
        await until(lambda: looks > 5)
        assert not task.done()
        assert own_threads() == []
    assert driver.probes == 0
    assert driver.sources == []
    assert health.is_healthy(A)


async def test_a_mistake_of_ours_is_not_swallowed() -> None:
    class Broken(ScriptedDriver):
        def probe(self, uuid: str) -> str:
            raise ZeroDivisionError(uuid)

    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(PATIENCE_S):
            await watch(make_health(), Broken(), lambda: CARDS, probe_every=0.01)


def test_on_the_stand_in_driver_a_card_falls_off_and_comes_back(tmp_path: Path) -> None:
    node = tmp_path / "gpus"
    gpus.write_node(node, [("A10", 3)], name="node-h")
    assert stand_in.run(
        """
import asyncio
from hami.agent.cards.health import Health
from hami.agent.cards.health import watch
uuids = [card(i) for i in range(3)]
changes = []
async def until(fact):
    async with asyncio.timeout(60):
        while not fact():
            await asyncio.sleep(0.02)
async def main():
    nvml = Nvml.open(root)
    nvml.cards()
    opened, reopen = [], nvml.reopen
    nvml.reopen = lambda: (reopen(), opened.append(1))
    health = Health(
        clock=time.monotonic, quarantine=0.5,
        changed=lambda change: changes.append([uuids.index(change.card), change.healthy]),
    )
    task = asyncio.create_task(
        watch(health, nvml, lambda: uuids, probe_every=0.1, reopen_every=0.2)
    )
    await until(lambda: nvml._watches)
    gpus.set_faults(folder, [f"card {uuids[1]} lost"])
    gpus.inject_xid(folder, uuids[1], 79)
    await until(lambda: changes == [[1, False]])
    again = len(opened) + 3
    await until(lambda: len(opened) >= again)  # longer than its quarantine
    gpus.set_faults(folder, [])
    await until(lambda: changes == [[1, False], [1, True]])
    while health.is_healthy(uuids[2]):  # a new watch hears only what comes after it
        gpus.inject_xid(folder, uuids[2], 48)
        await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    left = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    nvml.close()
    return [changes, [name for name in left if name.startswith("gpu-")]]
result = asyncio.run(main())
""",
        node=node,
        root=stand_in.driver_root(tmp_path / "driver"),
    ) == [[[1, False], [1, True], [2, False]], []]
