"""A container's state, read from its folder and the kernel.

For a shim that died the end is written here. No process is signalled that has taken over the
number of another. Errors have containerd's words: kubelet passes them on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from hami_sandbox import processes
from hami_sandbox.runtime import records
from hami_sandbox.runtime.records import MARK
from hami_sandbox.runtime.spec import ContainerSpec, ContainerState, Phase


class ContainerError(Exception):
    """The runtime cannot do what was asked of it."""


class UnknownContainerError(ContainerError):
    """There is no container of this id."""

    def __init__(self, container: str) -> None:
        super().__init__(f'container "{container}": not found')


class UnresolvableError(ContainerError):
    """CDI devices that no spec describes now."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        super().__init__(
            f"failed to inject CDI devices: unresolvable CDI devices {', '.join(self.names)}"
        )


class StartError(ContainerError):
    """The container was made, but its first process could not be started."""

    #: The reason in its state.
    REASON = records.START_ERROR


DEAD_SHIM = "the shim of the container has died, and the container with it"

_T = TypeVar("_T")


class Started(msgspec.Struct, frozen=True):
    pid: int
    shim: int
    started_at: float


class Exited(msgspec.Struct, frozen=True):
    exit_code: int
    signal: int
    finished_at: float
    reason: str = ""
    message: str = ""


def read(place: Path, known: ContainerState | None) -> ContainerState:
    """Return a container's state; `known` is what was last read of it.

    Raises UnknownContainerError if there is no such folder.
    """
    if known is None or not place.exists():
        known = _read_created(place)
    return known if known.phase is Phase.EXITED else _brought_up(place, known)


def started(place: Path) -> Started | None:
    return _read(place / records.STARTED, Started)


def is_starting(place: Path) -> bool:
    """Return whether a shim lives that has not reported yet."""
    reports = (place / records.STARTED, place / records.EXITED)
    return _is_locked(place / records.LOCK) and not any(path.exists() for path in reports)


def living(folder: Path) -> tuple[str, ...]:
    """Name the containers of a runtime's folder whose shims live."""
    locks = folder.glob(f"containers/*/{records.LOCK}")
    return tuple(sorted(lock.parent.name for lock in locks if _is_locked(lock)))


def _read_created(place: Path) -> ContainerState:
    try:
        spec = msgspec.json.decode((place / records.SPEC).read_bytes(), type=ContainerSpec)
        created_at = (place / records.SPEC).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        raise UnknownContainerError(place.name) from None
    return ContainerState(spec=spec, phase=Phase.CREATED, created_at=created_at)


def _brought_up(place: Path, known: ContainerState) -> ContainerState:
    alive = _is_locked(place / records.LOCK)  # before the files: they are its last reports
    if known.phase is Phase.CREATED and (begun := started(place)):
        known = msgspec.structs.replace(
            known, phase=Phase.RUNNING, pid=begun.pid, started_at=begun.started_at
        )
    exited = _read(place / records.EXITED, Exited)
    if exited is None and not alive and (place / records.SHIM_LOG).exists():
        exited = _record_dead_shim(place)
    if exited is None:
        return known
    fields = msgspec.structs.asdict(exited)
    return msgspec.structs.replace(known, phase=Phase.EXITED, pid=0, **fields)


def _record_dead_shim(place: Path) -> Exited:
    kill_marked(place.name)
    records.remove_aside(str(place))
    exited = Exited(
        exit_code=128 + records.KILL,
        signal=records.KILL,
        finished_at=time.time(),
        message=": ".join([DEAD_SHIM, *_last_words(place)]),
    )
    records.write_record(str(place / records.EXITED), **msgspec.structs.asdict(exited))
    return exited


def _last_words(place: Path) -> list[str]:
    """Return the last line of the shim's own errors, if there is any."""
    return (place / records.SHIM_LOG).read_text(errors="replace").splitlines()[-1:]


def _is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None


#: Each round finds processes that were forked meanwhile; a bound for fork bombs.
_MOST_ROUNDS = 20


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor of a process, readable when it has ended; None: there is none."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def kill_marked(container: str) -> None:
    """Kill every process that has a container's mark: its shim is dead and cannot."""
    mark = f"{MARK}={container}".encode()
    for _ in range(_MOST_ROUNDS):
        found = [int(each.name) for each in processes.folders() if mark in processes.environ(each)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
