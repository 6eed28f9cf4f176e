"""A process's life: start, memory, tasks, stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NoReturn, Protocol, TypeVar, cast

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class ServingError(Exception):
    """Serving cannot begin as configured.

    Raised at start for what an operator must change: an address, a certificate, a missing package.
    The message names the value, the rule and the remedy. Later failures are responses or log lines.
    """


class MustRestartError(Exception):
    """The process cannot go on, and the next one can. The message gives the reason."""


def raise_file_limit() -> None:
    """Allow this process as many open files as it may allow itself.

    A common soft limit is 1,024: so many silent connections of any pod in the cluster would keep
    kube-scheduler and the API server from being answered until they expire.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def stop_asked() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def start(
    group: asyncio.TaskGroup, works: Mapping[str, Coroutine[Any, Any, None]]
) -> list[asyncio.Task[None]]:
    """Start tasks that run as long as the process, by name.

    A task that ends by itself ends the process: kubelet restarts it, and all its state is in the
    API server.
    """
    return [group.create_task(_endless(name, work), name=name) for name, work in works.items()]


async def _endless(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Run a task that must not end; the error that ends it is logged with the task's name."""
    await logged(name, work)
    raise _ended(name, "ended by itself")


async def logged(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Run a task; an error that ends it, and so the process, is logged with the task's name."""
    try:
        await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # A task group takes a task that was cancelled from inside for one that ended well.
        raise _ended(name, "was cancelled from inside") from None
    except Exception:
        # Only here the task's name is known.
        _log.exception("background task failed", extra={"task": name})
        raise


def _ended(name: str, how: str) -> RuntimeError:
    _log.error("background task ended", extra={"task": name, "how": how})
    return RuntimeError(f"background task {name!r} {how}")


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log the unexpected error of a task that no other waits for; for `add_done_callback`."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task failed", extra={"task": task.get_name()}, exc_info=error)


async def in_thread(function: Callable[..., _T], *arguments: object) -> _T:
    """Call a function that may hang in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if answer.done():
            return  # the caller was cancelled
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(cast("_T", result))

    def call() -> None:
        result, failure = None, None
        try:
            result = function(*arguments)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=call, name="may hang", daemon=True).start()
    return await answer


class Synced(Protocol):
    """An informer, which is synced after its first list."""

    async def wait_synced(self) -> None: ...


async def freeze_when_synced(caches: Iterable[Synced]) -> None:
    """Exclude what the informers hold after their first list from garbage collection.

    Nothing is collected before: over a large cluster that would take 100 ms, just when requests
    begin. The little garbage that is kept is what the last automatic collection left.
    """
    for cache in caches:
        await cache.wait_synced()
    gc.freeze()


class Stopping:
    """The time between SIGTERM and the end, in which clients learn of the stop."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._stopping = False

    def why_not_ready(self) -> str:
        return "the process is stopping" if self._stopping else ""

    async def announce(self) -> None:
        """Be not ready from now on, and wait until clients have noticed."""
        self._stopping = True
        _log.info("stopping", extra={"still_answering_s": self._delay})
        await asyncio.sleep(self._delay)


#: Names of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: Bytes from which a freed buffer returns to the system at once. Python reads from TLS connections
#: into buffers of 256 KiB: those must stay, or every request pays for new pages.
_LARGE = 512 * 1024
#: Bytes that may stay free at the end of the heap.
_SPARE = 1024 * 1024
#: Seconds. A call with nothing to give back takes some microseconds.
_INTERVAL = 10.0

_library = ctypes.CDLL(None)


def bound() -> None:
    """Fix glibc's limits for freed memory, which otherwise grow with the largest buffer.

    glibc keeps freed memory for reuse. A process that reads a large list every 15 minutes would
    hold the memory for that list all the time, twice what it needs. Other C libraries have none of
    these functions; then nothing is done.
    """
    set_option = getattr(_library, "mallopt", None)
    if set_option is None:
        return
    set_option(_MMAP_THRESHOLD, _LARGE)
    set_option(_TRIM_THRESHOLD, _SPARE)
    # Each thread would get a heap of its own, and ours have little to do.
    set_option(_ARENA_MAX, 1)


def give_back() -> None:
    """Return free memory between used blocks to the system."""
    trim = getattr(_library, "malloc_trim", None)
    if trim is not None:
        trim(0)


async def keep_giving_back() -> NoReturn:
    """Return free memory to the system periodically."""
    while True:
        give_back()
        await asyncio.sleep(_INTERVAL)


async def end_in_order(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run work; where only a new process can go on, this one ends as after SIGTERM."""
    try:
        await work
    except MustRestartError:
        stop.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise


async def then_wait(work: Coroutine[Any, Any, None]) -> NoReturn:
    """Wait on after the end: a part that is stopped before the others."""
    await work
    await asyncio.Event().wait()
    raise AssertionError
