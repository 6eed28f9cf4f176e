"""Feeds `Health` from the driver: XIDs as they come, and a question to every card now and then.

NVML blocks, and where the driver hangs it does so for ever. So two threads of our own ask it, and
only tell the event loop what they heard; both end soon after the watch is cancelled, and one that
hangs does not keep the process. If XIDs cannot be waited for, probes alone must do: that is said
once, and marks no card.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from hami.agent.cards import xids
from hami.agent.cards.health import Health
from hami.node.nvml import NvmlError, Xid

_log = logging.getLogger(__name__)

_WAIT_MS = 500
_PAUSE = 1.0
_JOIN = 3.0


class XidSource(Protocol):
    @property
    def unsupported(self) -> dict[str, str]: ...
    def wait(self, timeout_ms: int) -> Xid | None: ...
    def close(self) -> None: ...


class Driver(Protocol):
    """What of `hami.node.nvml.Nvml` is needed here."""

    def probe(self, uuid: str) -> str: ...
    def recovery_action(self, uuid: str) -> int | None: ...
    def watch_xids(self, uuids: Iterable[str]) -> XidSource: ...
    def reopen(self) -> None: ...


async def watch(
    health: Health,
    driver: Driver,
    uuids: Callable[[], Iterable[str]],
    *,
    probe_every: float = 2.0,
    stuck_after: float = 30.0,
    reopen_every: float = 60.0,
) -> None:
    """Keep `health` true for these cards until cancelled.

    A question that is not answered within `stuck_after` seconds counts as a failed probe of that
    card. While a card does not answer, NVML is closed and opened again every `reopen_every`
    seconds: one that came back is seen only so.
    """
    watcher = _Watcher(health, driver, probe_every=probe_every, reopen_every=reopen_every)
    watcher.uuids = tuple(uuids())
    jobs: list[Callable[[], None]] = []
    if health.ignored.probing:
        jobs.append(watcher.probe)
    if not health.ignored.everything:
        jobs.append(watcher.listen)
    if not jobs:
        _log.info("health checks of cards are turned off", extra={"setting": xids.DISABLE})
    threads = [watcher.start(job) for job in jobs]
    try:
        while not watcher.failed.done():
            await asyncio.wait([watcher.failed], timeout=min(probe_every, _PAUSE))
            watcher.uuids = tuple(uuids())
            watcher.notice_stuck(stuck_after)
            health.tick()
        watcher.failed.result()
    finally:
        watcher.stop.set()
        watcher.probe_now.set()
        await asyncio.to_thread(_join, threads)


def _join(threads: list[threading.Thread]) -> None:
    until = time.monotonic() + _JOIN
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))


class _Watcher:
    def __init__(
        self, health: Health, driver: Driver, *, probe_every: float, reopen_every: float
    ) -> None:
        self.uuids: tuple[str, ...] = ()
        self.stop = threading.Event()
        self.probe_now = threading.Event()
        self._loop = asyncio.get_running_loop()
        #: Gets the exception of a thread that should not have ended.
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._health = health
        self._driver = driver
        self._probe_every = probe_every
        self._reopen_every = reopen_every
        self._reopened = time.monotonic()
        #: The card that is asked at this moment, and since when.
        self._asking: tuple[str, float] | None = None
        #: Cards that did not answer when last asked.
        self._silent: frozenset[str] = frozenset()
        self._mute: frozenset[str] = frozenset()
        self._deaf = ""

    def start(self, job: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - whoever awaits the watch gets it
                self._tell(self._fail, error)

        thread = threading.Thread(target=run, name=f"gpu-{job.__name__}", daemon=True)
        thread.start()
        return thread

    def notice_stuck(self, stuck_after: float) -> None:
        if (asking := self._asking) is None:
            return
        uuid, since = asking
        if time.monotonic() - since > stuck_after:
            self._health.probed(
                uuid,
                f"the driver has not answered a question about it for {stuck_after:g} s; look for "
                "hung tasks in the node's kernel log, reboot the node",
            )

    def probe(self) -> None:
        """Run in a thread: ask every card, again and again."""
        while not self.stop.is_set():
            silent = set()
            for uuid in self.uuids:
                if self.stop.is_set():
                    return
                self._asking = (uuid, time.monotonic())
                # One question may fail by chance: a card gets a second one.
                why = self._driver.probe(uuid) and self._driver.probe(uuid)
                action = None if why else self._driver.recovery_action(uuid)
                self._asking = None
                if why:
                    silent.add(uuid)
                self._tell(self._health.probed, uuid, why, action)
            self._silent = frozenset(silent)
            self.probe_now.wait(self._probe_every)
            self.probe_now.clear()

    def listen(self) -> None:
        """Run in a thread: wait for XIDs of the cards that answer."""
        source: XidSource | None = None
        heard: frozenset[str] = frozenset()
        failures = 0
        try:
            while not self.stop.is_set():
                wanted = frozenset(self.uuids) - self._silent
                try:
                    if self._is_time_to_reopen():
                        self._close(source)
                        source = None
                        self._reopen()
                    if source is None or wanted != heard:
                        source = self._renewed(source, wanted)
                        heard = wanted
                    self._pass_on(source.wait(_WAIT_MS))
                except NvmlError as error:
                    self._close(source)
                    source = None
                    self._say_deaf(error)
                    self._find_silent()
                    self.stop.wait(_PAUSE if failures else 0.0)
                    failures += 1
                else:
                    self._say_hearing()
                    failures = 0
        finally:
            self._close(source)

    def _renewed(self, old: XidSource | None, wanted: frozenset[str]) -> XidSource:
        """Wait for other cards: the new set is there before the old one ends, so none is missed."""
        new = self._driver.watch_xids(sorted(wanted))
        with contextlib.suppress(NvmlError):
            while old is not None and (last := old.wait(0)) is not None:
                self._pass_on(last)
        self._close(old)
        for uuid in new.unsupported.keys() - self._mute:
            _log.warning(
                "a card reports no critical errors, it is only probed",
                extra={"uuid": uuid, "error": new.unsupported[uuid]},
            )
        self._mute = frozenset(new.unsupported)
        return new

    def _pass_on(self, found: Xid | None) -> None:
        if found is None:
            return
        self.probe_now.set()
        self._tell(self._heard, found)

    def _heard(self, found: Xid) -> None:
        counts = self._health.xid(found.uuid, found.code)
        extra = {"uuid": found.uuid, "xid": found.code, "meaning": xids.describe(found.code)}
        if not found.uuid:
            _log.warning("a card that is not known reported an error, all are probed", extra=extra)
        elif counts:
            _log.error("a card reported a critical error", extra=extra)
        else:
            _log.info("a card reported an error that says nothing about it", extra=extra)

    def _find_silent(self) -> None:
        """Find the card that spoils the wait for all others, at once: theirs would be missed."""
        self._silent = frozenset(uuid for uuid in self.uuids if self._driver.probe(uuid))
        self.probe_now.set()

    def _is_time_to_reopen(self) -> bool:
        silent = self._silent & frozenset(self.uuids)
        return bool(silent) and time.monotonic() - self._reopened >= self._reopen_every

    def _reopen(self) -> None:
        self._reopened = time.monotonic()
        self._driver.reopen()
        self.probe_now.set()

    def _say_deaf(self, error: NvmlError) -> None:
        if not self._deaf:
            _log.warning(
                "critical errors of cards cannot be waited for, cards are probed meanwhile",
                extra={"error": str(error), "seconds": self._probe_every},
            )
        self._deaf = str(error)

    def _say_hearing(self) -> None:
        if self._deaf:
            _log.info("critical errors of cards are waited for again")
        self._deaf = ""

    def _close(self, source: XidSource | None) -> None:
        if source is not None:
            source.close()

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before us
            self._loop.call_soon_threadsafe(function, *arguments)
