"""A job in the cluster: client, clock, log, retries, errors.

The one error of installing, beside those of the API server.
It is for the person who installs: which object, what it is, the rule it breaks, what to do.

What every step of a job has: the API server, time, somebody to tell, and patience.
Jobs run right at an install, when the API server may be busy or its network not there yet. A step
reads before it writes, so it can be done again as a whole: after a conflict, and also after an
answer that was lost, whatever became of the write.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hami.kube import errors as kube_errors
from hami.kube import transport
from hami.kube.client import Client


class InstallationError(Exception):
    """Something in the cluster is in the way, and only a person can decide."""

    def __init__(self, what: str, rule: str, remedy: str) -> None:
        super().__init__(f"{what}: {rule}; {remedy}")
        self.what = what
        self.rule = rule
        self.remedy = remedy


class NotThereYet(InstallationError):  # noqa: N818 - the name says what happened
    """An object that another makes is missing; it may come."""


T = TypeVar("T")

PATIENCE_S = 60.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 5.0


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    client: Client
    #: Told line by line what is done.
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], dt.datetime] = _now
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def persist(self, step: Callable[[], Awaitable[T]], *, patience: float = PATIENCE_S) -> T:
        """Do a step until it succeeds, cannot succeed, or has been tried for so many seconds."""
        ends = self.clock() + patience
        waits = transport.Backoff(first=_FIRST_WAIT_S, longest=_LONGEST_WAIT_S)
        while True:
            try:
                return await step()
            except (kube_errors.KubeError, NotThereYet) as error:
                wait = waits.next(getattr(error, "retry_after", None))
                if not _may_pass(error) or self.clock() + wait > ends:
                    raise
                self.say(f"{error}; trying again")
            await self.sleep(wait)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, kube_errors.KubeError):
        return error.retry is not kube_errors.Retry.NEVER
    return True
