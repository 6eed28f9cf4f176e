"""A job in the cluster: client, clock, output, retries, errors.

Jobs run during an install, when the API server may be busy or not reachable yet. A step reads
before it writes, so it can be repeated as a whole: after a conflict, and also after a lost
response, whether the write succeeded or not.
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
    """Something in the cluster prevents the job, and a person must decide."""

    def __init__(self, what: str, rule: str, remedy: str) -> None:
        super().__init__(f"{what}: {rule}; {remedy}")
        self.what = what
        self.rule = rule
        self.remedy = remedy


class NotThereYet(InstallationError):  # noqa: N818 - a state, not a failure
    """An object that another component creates is missing; the job retries."""


T = TypeVar("T")

PATIENCE_S = 60.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 5.0


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What each step of a job needs."""

    client: Client
    #: Prints one line of progress.
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], dt.datetime] = _now
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def persist(self, step: Callable[[], Awaitable[T]], *, patience: float = PATIENCE_S) -> T:
        """Repeat a step until it succeeds, cannot succeed, or `patience` seconds have passed."""
        ends = self.clock() + patience
        waits = transport.Backoff(first=_FIRST_WAIT_S, longest=_LONGEST_WAIT_S)
        while True:
            try:
                return await step()
            except (kube_errors.KubeError, NotThereYet) as error:
                wait = waits.next(getattr(error, "retry_after", None))
                if not _may_pass(error) or self.clock() + wait > ends:
                    raise
                self.say(f"{error}; retrying")
            await self.sleep(wait)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, kube_errors.KubeError):
        return error.retry is not kube_errors.Retry.NEVER
    return True
