"""Map processes to containers.

The kernel's files in /proc name them: the mounts of a process have the allocation id whose policy
its container was given, and its control group has pod and container, as kubelet and the runtime
wrote them, with the cgroupfs driver and with systemd's. A process can change its mounts but cannot
leave its control group. So the control group decides about the pod, and the allocation id about the
container, if it belongs to that pod; else the runtime's id of the container does, which the API
server translates. A process that has ended, or is ending, has no owner.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

import msgspec

from hami.monitor.containers import Container, Containers, Key
from hami.monitor.pods import WatchedPod
from hami.node import proc
from hami.node.proc import CgroupPod

#: Index among the fields of stat behind the name.
_START_TIME = 19
_ALLOCATION = re.compile(
    rb"^\d+ \d+ \d+:\d+ \S*/tokens/([0-9a-f]{32})(?://deleted)? ", re.MULTILINE
)
_NS_PIDS = re.compile(rb"^NSpid:((?:\s+\d+)+)\s*$", re.MULTILINE)
_HAS_MEMORY = re.compile(rb"^VmSize:", re.MULTILINE)


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A process, and what leads to its container."""

    pid: int
    #: Clock ticks since boot: another process of the same pid has another.
    start: int
    #: The pid as the process itself sees it.
    inner_pid: int
    allocation_ids: tuple[str, ...]
    #: From the outermost control group inwards.
    pods: tuple[CgroupPod, ...]


class Processes:
    """Reads /proc; of one process, the parts that do not change are read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self._kept: dict[int, Trace] = {}

    def trace(self, pid: int) -> Trace | None:
        """Return the trace of a process; None: it has ended, is ending, or cannot be seen."""
        try:
            stat = proc.read(self._folder, pid, "stat")
            status = proc.read(self._folder, pid, "status")
            start = int(stat.rpartition(b")")[2].split()[_START_TIME])
            if not _HAS_MEMORY.search(status):
                return None  # its memory is freed already, and its part of a card is about to be
            trace = self._kept.get(pid)
            if trace is None or trace.start != start:
                trace = self._kept[pid] = Trace(
                    pid=pid,
                    start=start,
                    inner_pid=_inner_pid(status, pid),
                    allocation_ids=_allocation_ids(proc.read(self._folder, pid, "mountinfo")),
                    pods=proc.cgroup_pods(proc.read(self._folder, pid, "cgroup")),
                )
        except (OSError, ValueError, IndexError):
            self._kept.pop(pid, None)
            return None
        return trace

    def retain(self, pids: set[int]) -> None:
        """Forget all other processes."""
        self._kept = {pid: trace for pid, trace in self._kept.items() if pid in pids}


def _allocation_ids(mountinfo: bytes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.decode() for each in _ALLOCATION.findall(mountinfo)))


def _inner_pid(status: bytes, pid: int) -> int:
    found = _NS_PIDS.search(status)
    return int(found[1].split()[-1]) if found else pid


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The container that a process runs in. Empty names: not known, or in no pod."""

    key: Key = Key("", "")
    namespace: str = ""
    pod: str = ""
    #: None: the agent gave it no share.
    container: Container | None = None


NO_OWNER = Owner()


class PodsByUid(Protocol):
    def get(self, uid: str) -> WatchedPod | None: ...


def owner_of(trace: Trace, containers: Containers, pods: PodsByUid) -> Owner:
    """Return the container that a process runs in, as far as it is known."""
    inside = _known_pod(trace, containers, pods)
    for allocation_id in trace.allocation_ids:
        container = containers.by_allocation.get(allocation_id)
        if container is not None and inside.uid in ("", container.key.uid):
            return _ours(container)
    if not inside.uid:
        return NO_OWNER
    pod = pods.get(inside.uid)
    name = pod.ids.get(inside.container_id, "") if pod is not None else ""
    candidates = [
        container
        for container in containers.by_uid.get(inside.uid, ())
        if not name or container.key.container == name
    ]
    if len(candidates) == 1 and not (pod and not name and _others_ask(pod, candidates[0])):
        return _ours(candidates[0])
    named = candidates[0] if candidates else None
    return Owner(
        key=Key(inside.uid, name),
        namespace=pod.namespace if pod else named.namespace if named else "",
        pod=pod.name if pod else named.pod if named else "",
    )


def _others_ask(pod: WatchedPod, container: Container) -> bool:
    """Return whether a pod's other containers have devices, too, perhaps of another plugin."""
    return bool(pod.asking - {container.key.container})


def _known_pod(trace: Trace, containers: Containers, pods: PodsByUid) -> CgroupPod:
    """Choose the pod that is known here: a cluster may itself run in a pod of another."""
    for pod in trace.pods:
        if pod.uid in containers.by_uid or pods.get(pod.uid) is not None:
            return pod
    return trace.pods[0] if trace.pods else CgroupPod("", "")


def _ours(container: Container) -> Owner:
    return Owner(
        key=container.key, namespace=container.namespace, pod=container.pod, container=container
    )
