"""A process's life: start, memory, tasks, stop.

How a process of ours lives: until it is told to stop, with tasks that must not end before.
A background task that ends by itself ends the process: kubelet starts it anew, and everything it
needs to know is in the API server.

What a process keeps of the memory that it does not use: little.
glibc keeps what was freed for the next time. A process that reads a large list every quarter of an
hour, and otherwise little, would hold the room for that list for ever: twice what it needs. Here
its limits are fixed (by themselves they grow with the largest buffer that was ever freed), and what
lies free between things in use is given back from time to time.

Another C library has other habits and none of these functions; nothing is done then.

The one error of starting to serve.
It is raised for what an operator must change: an address, a certificate, a missing package. The
message names the value, the rule it breaks and the remedy. What goes wrong later is an answer to
the caller or a line in the log, never this.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, NoReturn, Protocol

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


#: Names of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: Bytes from which a buffer is the system's as soon as it is freed. Python reads from a TLS
#: connection into one of 256 KiB each time: those must stay, or every request pays for new pages.
_LARGE = 512 * 1024
#: Bytes that may lie free at the end of the heap.
_SPARE = 1024 * 1024
#: Seconds. Where there is nothing to give back, a look costs some microseconds.
_INTERVAL = 10.0

_library = ctypes.CDLL(None)


def bound() -> None:
    """Let no freed buffer stay ours because an even larger one was freed before."""
    set_option = getattr(_library, "mallopt", None)
    if set_option is None:
        return
    set_option(_MMAP_THRESHOLD, _LARGE)
    set_option(_TRIM_THRESHOLD, _SPARE)
    # Threads would each get a heap of their own, and ours have little to do.
    set_option(_ARENA_MAX, 1)


def give_back() -> None:
    trim = getattr(_library, "malloc_trim", None)
    if trim is not None:
        trim(0)


async def keep_giving_back() -> NoReturn:
    while True:
        give_back()
        await asyncio.sleep(_INTERVAL)


class ServingError(Exception):
    """Serving cannot begin as configured."""
