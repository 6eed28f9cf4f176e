"""Health of cards over time, from XIDs and probes, and the watch that feeds it.

A card that reported a critical XID or did not answer is unhealthy until the quarantine has passed
without another error, the card has answered since, and the driver asks for no recovery any more.
Then it becomes healthy by itself. `Health` asks no driver and waits for nothing; `watch` does.

NVML blocks, and for ever where the driver hangs. So two threads of our own call it and only pass
results to the event loop. Both end soon after the watch is cancelled, and a thread that hangs does
not keep the process. If XIDs cannot be waited for, cards are only probed: this is logged once, and
makes no card unhealthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from hami.agent.cards import xids
from hami.agent.cards.xids import Ignored
from hami.node.nvml import NvmlError, XidEvent

_log = logging.getLogger(__name__)

#: Milliseconds of one wait for XIDs.
_WAIT_MS = 500
#: Seconds between two tries after a failure, and between two checks of the threads.
_PAUSE = 1.0
#: Seconds that the threads have to end.
_JOIN = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class HealthChange:
    """A card became healthy or unhealthy."""

    #: UUID.
    card: str
    healthy: bool
    #: Why it is unhealthy; empty: it is healthy.
    why: str = ""


Changed = Callable[[HealthChange], None]

#: NVML's recovery actions.
_ACTIONS = {
    1: "reset it (`nvidia-smi --gpu-reset`)",
    2: "reboot the node",
    3: "stop what talks over its NVLinks, then reset it",
    4: "let its work end, then reset it",
    5: "restore the IMEX domain",
    6: "reset its bus",
    7: "power-cycle the machine",
}


@dataclasses.dataclass(slots=True)
class _State:
    healthy: bool = True
    #: When the quarantine ends, by our clock.
    until: float = 0.0
    #: Why it is in quarantine.
    trouble: str = ""
    #: Why it does not answer; empty: it answers.
    silent: str = ""
    #: The recovery that the driver asks for; empty: none.
    pending: str = ""
    #: Whether it has not answered yet since its trouble.
    unproven: bool = False


class Health:
    """The health of a node's cards. A card without a report is healthy."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        quarantine: float,
        ignored: Ignored | None = None,
        changed: Changed = lambda change: None,  # noqa: ARG005 - the name of the contract
    ) -> None:
        self.ignored = Ignored() if ignored is None else ignored
        self._clock = clock
        self._quarantine = quarantine
        self._changed = changed
        self._states: dict[str, _State] = {}

    def xid(self, uuid: str, code: int) -> bool:
        """Record an error; return whether it counts."""
        if not uuid or code in self.ignored:
            return False
        state = self._states.setdefault(uuid, _State())
        state.until = self._clock() + self._quarantine
        state.trouble = xids.describe(code)
        state.unproven = self.ignored.probing
        self._update(uuid, state)
        return True

    def probed(self, uuid: str, why: str, recovery_action: int | None = None) -> None:
        """Record a probe: why the card did not answer, and the recovery that NVML asks for."""
        if not why and not recovery_action and uuid not in self._states:
            return
        state = self._states.setdefault(uuid, _State())
        state.silent = why
        if why:
            state.until = self._clock() + self._quarantine
            state.trouble = f"it did not answer: {why}"
            state.unproven = True
        else:
            state.unproven = False
            state.pending = _pending(recovery_action) if recovery_action else ""
        self._update(uuid, state)

    def tick(self) -> None:
        """Make cards healthy whose quarantine has ended."""
        for uuid, state in self._states.items():
            self._update(uuid, state)

    def is_healthy(self, uuid: str) -> bool:
        state = self._states.get(uuid)
        return state is None or state.healthy

    def why(self, uuid: str) -> str:
        """Return why a card is unhealthy; empty: it is healthy."""
        state = self._states.get(uuid)
        if state is None or state.healthy:
            return ""
        reasons = []
        if state.silent:
            reasons.append(f"it does not answer: {state.silent}")
        if state.pending:
            reasons.append(state.pending)
        if not state.silent and (state.unproven or self._clock() < state.until):
            reasons.append(
                f"{state.trouble} (unhealthy until {self._quarantine:g} s after the last one)"
            )
        return "; ".join(reasons)

    def _update(self, uuid: str, state: _State) -> None:
        healthy = not (
            state.silent or state.pending or state.unproven or self._clock() < state.until
        )
        if healthy != state.healthy:
            state.healthy = healthy
            self._changed(HealthChange(uuid, healthy, self.why(uuid)))


def _pending(action: int) -> str:
    wanted = _ACTIONS.get(action, f"recovery action {action} of NVML")
    return f"the driver asks for a recovery before it is healthy again: {wanted}"


class XidSource(Protocol):
    @property
    def unsupported(self) -> dict[str, str]: ...
    def wait(self, timeout_ms: int) -> XidEvent | None: ...
    def close(self) -> None: ...


class Driver(Protocol):
    """The part of `hami.node.nvml.Nvml` that is used here."""

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
    """Keep `health` up to date for these cards until cancelled.

    A probe that is not answered within `stuck_after` seconds counts as failed. While a card does
    not answer, NVML is closed and opened again every `reopen_every` seconds: only then does a card
    that came back answer.
    """
    watcher = _Watcher(health, driver, probe_every=probe_every, reopen_every=reopen_every)
    watcher.uuids = tuple(uuids())
    jobs: list[Callable[[], None]] = []
    if health.ignored.probing:
        jobs.append(watcher.probe)
    if not health.ignored.everything:
        jobs.append(watcher.listen)
    if not jobs:
        _log.info("health checks of cards are disabled", extra={"setting": xids.DISABLE})
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
        #: Gets the exception of a thread that ended.
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._health = health
        self._driver = driver
        self._probe_every = probe_every
        self._reopen_every = reopen_every
        self._reopened = time.monotonic()
        #: The card that is being probed, and since when.
        self._asking: tuple[str, float] | None = None
        #: Cards that did not answer their last probe.
        self._silent: frozenset[str] = frozenset()
        #: Cards that report no XIDs.
        self._unsupported: frozenset[str] = frozenset()
        #: Why XIDs cannot be waited for; empty: they can.
        self._xid_problem = ""

    def start(self, job: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - the caller that awaits the watch gets it
                self._call(self._fail, error)

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
                f"the driver has not answered a probe of it for {stuck_after:g} s; check the "
                "node's kernel log for hung tasks, reboot the node",
            )

    def probe(self) -> None:
        """Run in a thread: probe every card, for ever."""
        while not self.stop.is_set():
            silent = set()
            for uuid in self.uuids:
                if self.stop.is_set():
                    return
                self._asking = (uuid, time.monotonic())
                # One probe may fail by chance: a card gets a second one.
                why = self._driver.probe(uuid) and self._driver.probe(uuid)
                action = None if why else self._driver.recovery_action(uuid)
                self._asking = None
                if why:
                    silent.add(uuid)
                self._call(self._health.probed, uuid, why, action)
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
                    if error.wants_new_library:
                        raise
                    self._xids_failed(error)
                    self._find_silent()
                    self.stop.wait(_PAUSE if failures else 0.0)
                    failures += 1
                else:
                    self._xids_work()
                    failures = 0
        finally:
            self._close(source)

    def _renewed(self, old: XidSource | None, wanted: frozenset[str]) -> XidSource:
        """Wait for other cards: the new set exists before the old one ends, so no XID is missed."""
        new = self._driver.watch_xids(sorted(wanted))
        with contextlib.suppress(NvmlError):
            while old is not None and (last := old.wait(0)) is not None:
                self._pass_on(last)
        self._close(old)
        for uuid in new.unsupported.keys() - self._unsupported:
            _log.warning(
                "a card reports no XIDs, it is only probed",
                extra={"uuid": uuid, "error": new.unsupported[uuid]},
            )
        self._unsupported = frozenset(new.unsupported)
        return new

    def _pass_on(self, found: XidEvent | None) -> None:
        if found is None:
            return
        self.probe_now.set()
        self._call(self._heard, found)

    def _heard(self, found: XidEvent) -> None:
        counts = self._health.xid(found.uuid, found.code)
        extra = {"uuid": found.uuid, "xid": found.code, "meaning": xids.describe(found.code)}
        if not found.uuid:
            _log.warning("an unknown card reported an XID, probing all cards", extra=extra)
        elif counts:
            _log.error("a card reported a critical XID", extra=extra)
        else:
            _log.info("a card reported an XID that does not affect its health", extra=extra)

    def _find_silent(self) -> None:
        """Find the card that makes the wait fail for all, at once: other XIDs are missed."""
        self._silent = frozenset(uuid for uuid in self.uuids if self._driver.probe(uuid))
        self.probe_now.set()

    def _is_time_to_reopen(self) -> bool:
        silent = self._silent & frozenset(self.uuids)
        return bool(silent) and time.monotonic() - self._reopened >= self._reopen_every

    def _reopen(self) -> None:
        self._reopened = time.monotonic()
        self._driver.reopen()
        self.probe_now.set()

    def _xids_failed(self, error: NvmlError) -> None:
        if not self._xid_problem:
            _log.warning(
                "cannot wait for XIDs, cards are only probed",
                extra={"error": str(error), "seconds": self._probe_every},
            )
        self._xid_problem = str(error)

    def _xids_work(self) -> None:
        if self._xid_problem:
            _log.info("waiting for XIDs again")
        self._xid_problem = ""

    def _close(self, source: XidSource | None) -> None:
        if source is not None:
            source.close()

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(function, *arguments)
