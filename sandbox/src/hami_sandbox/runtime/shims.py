"""Start shims, and follow them until they end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

from hami_sandbox.runtime import isolation, records, states
from hami_sandbox.runtime.states import StartError


def spawn(place: Path, lifeline: int | None) -> tuple[int, int]:
    """Start a shim; return a pipe that ends when the container runs or cannot, and its pid."""
    lock = os.open(place / records.LOCK, os.O_RDWR | os.O_CLOEXEC)
    status, status_end = os.pipe()
    given = [lock, status_end] + ([] if lifeline is None else [lifeline])
    # Copies that the shim inherits; no other process is started before they are closed.
    copies = [os.dup(handle) for handle in given]
    try:
        # Before the start, so that the shim is never taken for dead.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for copy in copies:
            os.set_inheritable(copy, True)  # noqa: FBT003 - its only form
        words = [str(copy) for copy in copies] + ["-1"]
        command = isolation.shim_command("main", str(place), *words[:3])
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        shim = os.posix_spawn(
            command[0],
            command,
            isolation.shim_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(place / records.SHIM_LOG), log_flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
        )
    except OSError as error:
        os.close(status)
        raise StartError(f"cannot start the shim: {error}") from error
    finally:
        for handle in (lock, status_end, *copies):
            os.close(handle)
    return status, shim


async def end_of(pipe: int) -> None:
    """Wait until all who hold the other end of a pipe have closed it; then close ours."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pipe, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)


class Followed:
    """Shims whose end is reported, by container."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._handles: dict[str, int] = {}
        self._ends: dict[str, asyncio.Event] = {}

    def __contains__(self, container: str) -> bool:
        return container in self._handles

    def add(self, container: str, shim: int) -> None:
        """Follow a shim; the end of one that has ended already is reported at once."""
        if container in self._handles:
            return
        handle = states.open_pidfd(shim)
        if handle is None:
            self._on_end()
            return
        self._handles[container] = handle
        self._ends[container] = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, self._ended, container, shim)

    async def end_of(self, container: str) -> None:
        """Wait for the end of a shim; one that is not followed is not waited for."""
        if end := self._ends.get(container):
            await end.wait()

    def close(self) -> None:
        for container in tuple(self._handles):
            self._drop(container)

    def _ended(self, container: str, shim: int) -> None:
        self._drop(container).set()
        with contextlib.suppress(ChildProcessError):  # an earlier kubelet's shim
            os.waitpid(shim, os.WNOHANG)
        self._on_end()

    def _drop(self, container: str) -> asyncio.Event:
        handle = self._handles.pop(container)
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
        return self._ends.pop(container)
