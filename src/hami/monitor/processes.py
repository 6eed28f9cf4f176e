"""Map processes to containers.

Where a process of the node belongs, as the kernel tells it in /proc.
The mounts of a process name the token whose policy its container was given; its control group names
pod and container, as kubelet and the runtime wrote them, with the cgroupfs driver and with
systemd's. Neither can be forged from within the container without leaving the other as it is. A
process that has ended, or is about to, belongs to nobody.

Whose a process is: a container of ours, another pod's, or nobody's.
The control group decides about the pod: the kernel keeps it, and no tenant leaves it. The token
among the mounts decides about the container, where it belongs to that pod; else the runtime's id of
the container does, which the API server translates.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

import msgspec

from hami.monitor.containers import Container, Containers, Key
from hami.monitor.pods import WatchedPod
from hami.node import files

_MOST = 1 << 20  # a tenant can make mounts by the thousand
_START_TIME = 19  # fields of stat behind the name
_TOKEN = re.compile(rb"^\d+ \d+ \d+:\d+ \S*/tokens/([0-9a-f]{32})(?://deleted)? ", re.MULTILINE)
_UID = rb"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(
    rb"[/-]pod(" + _UID + rb")(?:\.slice)?(?:[/:](?:[a-z][a-z-]*[-:])?([0-9a-f]{64}))?"
)
_NS_PIDS = re.compile(rb"^NSpid:((?:\s+\d+)+)\s*$", re.MULTILINE)
_HAS_MEMORY = re.compile(rb"^VmSize:", re.MULTILINE)


class Place(msgspec.Struct, frozen=True):
    """A pod, and the runtime's id of the container where the path has one."""

    uid: str
    container_id: str


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A process, and what says whose it is."""

    pid: int
    #: Clock ticks since boot: another process of the same pid has another.
    start: int
    #: The pid as the process itself sees it.
    inner_pid: int
    tokens: tuple[str, ...]
    #: From the outermost control group inwards.
    places: tuple[Place, ...]


class Processes:
    """The node's processes; what does not change about one is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self._kept: dict[int, Trace] = {}

    def trace(self, pid: int) -> Trace | None:
        """Look at a process; None: it has ended, is ending, or is not for us to see."""
        try:
            stat, status = self._read(pid, "stat"), self._read(pid, "status")
            start = int(stat.rpartition(b")")[2].split()[_START_TIME])
            if not _HAS_MEMORY.search(status):
                return None  # its memory is gone already, and what it has of a card is about to go
            had = self._kept.get(pid)
            if had is None or had.start != start:
                had = self._kept[pid] = Trace(
                    pid=pid,
                    start=start,
                    inner_pid=_inner_pid(status, pid),
                    tokens=_tokens(self._read(pid, "mountinfo")),
                    places=places(self._read(pid, "cgroup")),
                )
        except (OSError, ValueError, IndexError):
            self._kept.pop(pid, None)
            return None
        return had

    def retain(self, pids: set[int]) -> None:
        self._kept = {pid: trace for pid, trace in self._kept.items() if pid in pids}

    def _read(self, pid: int, name: str) -> bytes:
        handle = os.open(f"{self._folder}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return files.read_at(handle, _MOST, 0)
        finally:
            os.close(handle)


def places(cgroup: bytes) -> tuple[Place, ...]:
    """Read pods and containers out of /proc/<pid>/cgroup."""
    found = (
        Place(uid.decode().replace("_", "-"), container.decode())
        for uid, container in _POD.findall(cgroup)
    )
    return tuple(dict.fromkeys(found))


def _tokens(mountinfo: bytes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(token.decode() for token in _TOKEN.findall(mountinfo)))


def _inner_pid(status: bytes, pid: int) -> int:
    found = _NS_PIDS.search(status)
    return int(found[1].split()[-1]) if found else pid


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Empty names: not known, or of no pod at all."""

    key: Key = Key("", "")
    namespace: str = ""
    pod: str = ""
    #: What the agent gave it; None: nothing.
    container: Container | None = None


NOBODY = Owner()


class PodsByUid(Protocol):
    def get(self, uid: str) -> WatchedPod | None: ...


def owner_of(trace: Trace, containers: Containers, pods: PodsByUid) -> Owner:
    place = _place(trace, containers, pods)
    for token in trace.tokens:
        container = containers.by_token.get(token)
        if container is not None and place.uid in ("", container.key.uid):
            return _ours(container)
    if not place.uid:
        return NOBODY
    pod = pods.get(place.uid)
    name = pod.ids.get(place.container_id, "") if pod is not None else ""
    candidates = [
        container
        for container in containers.by_uid.get(place.uid, ())
        if not name or container.key.container == name
    ]
    if len(candidates) == 1:
        return _ours(candidates[0])
    named = candidates[0] if candidates else None
    return Owner(
        key=Key(place.uid, name),
        namespace=pod.namespace if pod else named.namespace if named else "",
        pod=pod.name if pod else named.pod if named else "",
    )


def _place(trace: Trace, containers: Containers, pods: PodsByUid) -> Place:
    """Choose the pod that is known here: a cluster may itself run in a pod of another."""
    for place in trace.places:
        if place.uid in containers.by_uid or pods.get(place.uid) is not None:
            return place
    return trace.places[0] if trace.places else Place("", "")


def _ours(container: Container) -> Owner:
    return Owner(
        key=container.key, namespace=container.namespace, pod=container.pod, container=container
    )
