"""Processes on a node, from /proc: the pods they run in, the cards they have open.

A process cannot leave its control group, whose path has the pod's UID as kubelet wrote it, with the
cgroupfs driver and with systemd's. Its open files show the cards that it uses: a card cannot be
reset, nor its driver unloaded, while any process has its device file open. Both need the host's PID
namespace. A process that ends while it is read is left out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from hami.node import files

#: Bytes that are read of a file in /proc; a tenant can make mounts by the thousand.
MOST = 1 << 20

_UID = rb"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(
    rb"[/-]pod(" + _UID + rb")(?:\.slice)?(?:[/:](?:[a-z][a-z-]*[-:])?([0-9a-f]{64}))?"
)
_ENDED = re.compile(rb" [ZX] ")


class CgroupPod(msgspec.Struct, frozen=True):
    """A pod in the path of a control group, and the runtime's id of the container, or empty."""

    uid: str
    container_id: str


class Opener(NamedTuple):
    """A process that has a device file open."""

    pid: int
    #: As the kernel has it: 15 bytes, chosen by the process itself.
    name: str
    #: From the outermost control group inwards; empty: it runs in no pod.
    pods: tuple[CgroupPod, ...]


def read(folder: str | Path, pid: int, name: str) -> bytes:
    """Read a file of a process; OSError: it has ended, or cannot be seen."""
    handle = os.open(f"{folder}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return files.read_at(handle, MOST, 0)
    finally:
        os.close(handle)


def cgroup_pods(cgroup: bytes) -> tuple[CgroupPod, ...]:
    """Read pods and containers from the content of /proc/<pid>/cgroup."""
    found = (
        CgroupPod(uid.decode().replace("_", "-"), container.decode())
        for uid, container in _POD.findall(cgroup)
    )
    return tuple(dict.fromkeys(found))


def living(folder: Path, uids: Collection[str]) -> frozenset[str]:
    """Return those of the pods that have a process, also one that is ending."""
    found: set[str] = set()
    for pid in _pids(folder):
        try:
            pods = cgroup_pods(read(folder, pid, "cgroup"))
            # Of one that has ended its parent has yet to read how: it has nothing open any more.
            if pods and not _ENDED.match(read(folder, pid, "stat").rpartition(b")")[2]):
                found.update(pod.uid for pod in pods)
        except OSError:
            continue
    return frozenset(uid for uid in uids if uid in found)


def openers(folder: Path, minors: Collection[int]) -> dict[int, list[Opener]]:
    """Return the processes that have a card's device file open, by the file's minor number."""
    found: dict[int, list[Opener]] = {minor: [] for minor in minors}
    names = {f"nvidia{minor}": minor for minor in minors}
    for pid in _pids(folder):
        held = {names[name] for name in _open_names(folder, pid) if name in names}
        if not held:
            continue
        try:
            comm = read(folder, pid, "comm").decode(errors="replace").strip()
            pods = cgroup_pods(read(folder, pid, "cgroup"))
        except OSError:
            continue
        for minor in held:
            found[minor].append(Opener(pid, comm, pods))
    return found


def opens(minors: Collection[int]) -> bool:
    """Return whether this process has the device file of one of the cards open."""
    names = {f"nvidia{minor}" for minor in minors}
    return bool(names) and not names.isdisjoint(_open_names(Path("/proc"), os.getpid()))


def _open_names(folder: Path, pid: int) -> Iterator[str]:
    """Yield the names of the files that a process has open, without their folders."""
    try:
        with os.scandir(f"{folder}/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # closed since
                    path = os.readlink(entry.path)  # noqa: PTH115 - many files
                    # A file that was removed, or made again, is open as before.
                    yield path.rpartition("/")[2].removesuffix(" (deleted)")
    except OSError:
        return


def _pids(folder: Path) -> list[int]:
    try:
        with os.scandir(folder) as entries:
            return sorted(int(entry.name) for entry in entries if entry.name.isdecimal())
    except OSError:
        return []
