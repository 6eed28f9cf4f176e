"""How a process of ours lives: until it is told to stop, with tasks that must not end before.

A background task that ends by itself ends the process: kubelet starts it anew, and everything it
needs to know is in the API server.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Protocol

_log = logging.getLogger(__name__)


def stop_asked() -> asyncio.Event:
    """Return what is set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def start(
    group: asyncio.TaskGroup, works: Mapping[str, Coroutine[Any, Any, None]]
) -> list[asyncio.Task[None]]:
    """Start tasks that run for as long as the process does, by name."""
    return [group.create_task(_endless(name, work), name=name) for name, work in works.items()]


async def _endless(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Run a task that must not end; what ends it is said before it takes the process along."""
    try:
        await work
    except Exception:
        # The root of a task: without this line nobody would know which one it was.
        _log.exception("a background task failed", extra={"task": name})
        raise
    raise RuntimeError(f"background task {name!r} ended by itself")


class Synced(Protocol):
    """A cache that is filled at some time."""

    async def wait_synced(self) -> None: ...


async def freeze_when_synced(caches: Iterable[Synced]) -> None:
    """Take what the caches hold after their first list out of the collector's sight."""
    for cache in caches:
        await cache.wait_synced()
    gc.collect()
    gc.freeze()


class Stopping:
    """The time between SIGTERM and the end, in which others learn that we are leaving."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._stopping = False

    def why_not_ready(self) -> str:
        return "told to stop" if self._stopping else ""

    async def announce(self) -> None:
        """Be not ready from now on, and give everybody the time to notice."""
        self._stopping = True
        _log.info("stopping", extra={"still_answering_s": self._delay})
        await asyncio.sleep(self._delay)
