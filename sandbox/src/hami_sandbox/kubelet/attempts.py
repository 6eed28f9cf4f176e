"""What the runtime knows of a pod's containers: each try at one, and its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
