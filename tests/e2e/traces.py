"""Traces that a cluster could leave on this machine.

Everything is named exactly while the cluster is up (processes with their start times, namespaces by
number), so that other things on a busy machine never count as ours, and ours never hide among them.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cluster import cgroups
from tests.e2e.cluster.layout import Layout
from tests.e2e.cluster.processes import Process, every_pid

NAMESPACES = ("mnt", "net", "pid", "ipc", "uts")


@dataclass(frozen=True)
class Traces:
    """What a running cluster consists of, as the kernel knows it."""

    processes: frozenset[Process]
    programs: frozenset[str]
    namespaces: frozenset[str]


def traces_of(cluster: Layout) -> Traces:
    own = _namespaces_of(os.getpid())
    processes: set[Process] = set()
    programs: set[str] = set()
    namespaces: set[str] = set()
    for pid in cgroups.processes(cluster.group):
        with contextlib.suppress(OSError):
            processes.add(Process.of(pid))
            programs.add(Path(f"/proc/{pid}/comm").read_text().strip())
            namespaces |= _namespaces_of(pid)
    return Traces(frozenset(processes), frozenset(programs), frozenset(namespaces - own))


def left_of(traces: Traces, cluster: Layout) -> list[str]:
    """Name what is still there of a cluster that should be gone."""
    left = [f"process {process.pid}" for process in traces.processes if process.alive()]
    left += [f"process {pid} in our group" for pid in cgroups.processes(cluster.group)]
    left += [str(path) for path in _control_groups() if path.name == cluster.group]
    for pid in set(every_pid()) - _of_other_clusters(cluster):
        with contextlib.suppress(OSError):
            held = _namespaces_of(pid) | _held_open(pid)
            left += [f"{name}, by process {pid}" for name in sorted(held & traces.namespaces)]
            mounts = Path(f"/proc/{pid}/mountinfo").read_text()
            if str(cluster.folder) in mounts:
                left.append(f"a mount of {cluster.folder.name}, seen by process {pid}")
    sockets = Path("/proc/self/net/unix").read_text()
    if str(cluster.folder) in sockets:
        left.append(f"a socket in {cluster.folder.name}")
    if cluster.folder.exists():
        left.append(f"folder {cluster.folder.name}")
    return left


def state_of_this_machine() -> dict[str, object]:
    """Read what a cluster must not change outside of its namespaces."""
    network = Path("/proc/self/net")
    return {
        "interfaces": sorted(
            line.split(":")[0].strip() for line in (network / "dev").read_text().splitlines()[2:]
        ),
        "routes": (network / "route").read_text().splitlines()[1:],
        "mounts": sorted(
            line.split(" ", 2)[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        ),
        "settings": {
            name: Path("/proc/sys", name).read_text()
            for name in ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
        },
    }


def _namespaces_of(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/ns")
    return {str((folder / kind).readlink()) for kind in NAMESPACES}


def _held_open(pid: int) -> set[str]:
    """List what a process keeps by an open file; a namespace can be kept that way."""
    targets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            targets.add(str(entry.readlink()))
    return targets


def _of_other_clusters(cluster: Layout) -> set[int]:
    """List what other clusters run: the kernel gives them the numbers of our ended namespaces."""
    others = {path.name for path in _control_groups()} - {cluster.group}
    return {pid for group in others for pid in cgroups.processes(group)}


def _control_groups() -> list[Path]:
    return [path for hierarchy in cgroups.hierarchies() for path in hierarchy.glob("hami-e2e-*")]
