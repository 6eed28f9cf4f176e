"""Attempts at a pod's containers, and the crash backoff.

What the runtime knows of a pod's containers: each try at one, and its outcome.

How long a container that ended waits before it is started again, as kubelet has it.
The first restart comes at once. Then the wait doubles each time, up to a limit, and begins anew
for a container that ran long enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from hami_sandbox.runtime.spec import ContainerState, Phase


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
    #: A container that ran so long after its last restart is judged as if it had never crashed.
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
        """Take note that a container which had ended is started again."""
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
