"""Attempts at a pod's containers, and the crash backoff.

ContainersView reads them from the runtime whenever a container changes. As with kubelet the first
restart comes at once; then the wait doubles, up to a limit, and starts again for a container that
ran long enough.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import msgspec

from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.spec import ContainerState, Phase
from hami_sandbox.runtime.states import UnknownContainerError


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One container of the runtime: the n-th try at a container of a pod."""

    id: str
    name: str
    attempt: int
    phase: Phase
    started_at: float = 0.0
    finished_at: float = 0.0
    exit_code: int = 0
    #: Why it ended, where the exit code is not the program's own.
    reason: str = ""
    message: str = ""
    log: str = ""

    @property
    def running(self) -> bool:
        return self.phase is Phase.RUNNING

    @property
    def exited(self) -> bool:
        return self.phase is Phase.EXITED


def of(state: ContainerState) -> Attempt:
    return Attempt(
        id=state.spec.id,
        name=state.spec.name,
        attempt=state.spec.attempt,
        phase=state.phase,
        started_at=state.started_at,
        finished_at=state.finished_at,
        exit_code=state.exit_code,
        reason=state.reason,
        message=state.message,
        log=state.spec.log,
    )


class History(msgspec.Struct, frozen=True):
    """The attempts at one container that the runtime still has, the oldest first."""

    attempts: tuple[Attempt, ...] = ()

    @property
    def latest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def previous(self) -> Attempt | None:
        """The one before the latest, if it has ended."""
        ended = [attempt for attempt in self.attempts[:-1] if attempt.exited]
        return ended[-1] if ended else None


Histories = Mapping[str, History]
NOTHING = History()


def histories(attempts: Iterable[Attempt]) -> dict[str, History]:
    """Group attempts by the container that they are of."""
    by_name: dict[str, list[Attempt]] = {}
    for attempt in sorted(attempts, key=lambda each: each.attempt):
        by_name.setdefault(attempt.name, []).append(attempt)
    return {name: History(tuple(found)) for name, found in by_name.items()}


def latest(found: Histories, name: str) -> Attempt | None:
    return found.get(name, NOTHING).latest


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    first: float = 10.0
    longest: float = 300.0
    #: After so long a run a container's wait starts again.
    forgiven_after: float = 600.0


class _Entry(msgspec.Struct):
    wait: float
    restarted_at: float


class CrashBackoff:
    def __init__(self, waits: Waits, *, now: Callable[[], float]) -> None:
        self._waits = waits
        self._now = now
        self._entries: dict[str, _Entry] = {}

    def wait(self, key: str, ended_at: float) -> float:
        """Return the length of the present wait of a container that ended; 0: start it now."""
        entry = self._entries.get(key)
        if entry is None or self._forgiven(entry, ended_at):
            return 0.0
        return entry.wait if self._now() - ended_at < entry.wait else 0.0

    def restarted(self, key: str, ended_at: float) -> None:
        """Record that a container is started again."""
        entry = self._entries.get(key)
        if entry is None or self._forgiven(entry, ended_at):
            self._entries[key] = _Entry(self._waits.first, self._now())
            return
        entry.wait = min(entry.wait * 2, self._waits.longest)
        entry.restarted_at = self._now()

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)

    def _forgiven(self, entry: _Entry, ended_at: float) -> bool:
        return ended_at - entry.restarted_at > self._waits.forgiven_after


_LOOK_EVERY_S = 2.0
#: Seconds to wait for further changes: many containers change at once.
_GATHER_S = 0.02


class ContainersView:
    def __init__(self, runtime: Runtime, *, on_change: Callable[[str], None]) -> None:
        self._runtime = runtime
        #: Called with the UID of each pod whose containers have changed.
        self._on_change = on_change
        #: By pod UID and the runtime's id.
        self._attempts: dict[str, dict[str, Attempt]] = {}
        self._pods: dict[str, dict[str, History]] = {}

    def of(self, uid: str) -> dict[str, History]:
        return self._pods.get(uid, {})

    def uids(self) -> frozenset[str]:
        """Return the pods of which the runtime has containers."""
        return frozenset(self._pods)

    def refresh(self) -> None:
        """Read all containers."""
        found: dict[str, dict[str, Attempt]] = {}
        for state in self._runtime.list():
            found.setdefault(state.spec.pod_uid, {})[state.spec.id] = of(state)
        before, self._attempts = self._attempts, found
        self._report(uid for uid in before.keys() | found if before.get(uid) != found.get(uid))

    def look_at(self, uid: str, container: str) -> None:
        """Read one container of a pod, by the runtime's id."""
        held = self._attempts.setdefault(uid, {})
        before = held.get(container)
        try:
            now = of(self._runtime.state(container))
        except UnknownContainerError:
            held.pop(container, None)
        else:
            held[container] = now
        if held.get(container) != before:
            self._report([uid])
        if not held:
            del self._attempts[uid]

    async def run(self) -> NoReturn:
        """Follow the runtime for ever."""
        while True:
            # Also at intervals: the end of a container that was not followed is not reported.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._runtime.wait_change()
            await asyncio.sleep(_GATHER_S)
            self.refresh()

    def _report(self, uids: Iterable[str]) -> None:
        for uid in list(uids):
            if held := self._attempts.get(uid):
                self._pods[uid] = histories(held.values())
            else:
                self._pods.pop(uid, None)
            self._on_change(uid)
