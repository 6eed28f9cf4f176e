"""A control group per cluster: kubelet roots, and the list of its processes.

Two kubelets under one root take each other's pods for orphans and destroy them, so every node has a
root of its own in every hierarchy. All daemons of a machine join a group beside it. Membership is
inherited and cannot be lost, so whatever is in our groups is ours, and nothing else is.
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

from tests.e2e.cluster.processes import Process

MOUNT = Path("/sys/fs/cgroup")
DAEMONS = "daemons"
V2_CONTROLLERS = ("cpu", "memory", "pids", "cpuset", "io")
KILL_ROUNDS = 600


def is_v2(mount: Path = MOUNT) -> bool:
    return (mount / "cgroup.controllers").exists()


def hierarchies(mount: Path = MOUNT) -> tuple[Path, ...]:
    if is_v2(mount):
        return (mount,)
    links = {path for path in mount.iterdir() if path.is_symlink()}
    return tuple(sorted(p for p in mount.iterdir() if p.is_dir() and p not in links))


def tracker(mount: Path = MOUNT) -> Path:
    """Choose the hierarchy by which we know our processes."""
    if is_v2(mount):
        return mount
    for name in ("pids", "freezer", "devices"):
        if (mount / name / "cgroup.procs").exists():
            return mount / name
    raise RuntimeError(
        f"none of the control groups pids, freezer and devices is mounted under {mount}; "
        "kubelet needs them: mount them, or use a machine with cgroup v2"
    )


def create(cluster: str, machine: str) -> None:
    """Make the group of a machine, and the one of its daemons, everywhere."""
    for hierarchy in hierarchies():
        group = hierarchy
        for step in (cluster, machine):
            _open_to_children(group)
            group /= step
            group.mkdir(exist_ok=True)
            _fill_cpuset(group)
        (group / DAEMONS).mkdir(exist_ok=True)
        _fill_cpuset(group / DAEMONS)
        _open_to_children(group)


def joining(cluster: str, machine: str) -> str:
    """Name the file that a daemon writes itself into before it becomes the daemon."""
    return str(tracker() / cluster / machine / DAEMONS / "cgroup.procs")


def processes(cluster: str) -> set[int]:
    """Every process that we started and that still lives, shims and containers included."""
    found: set[int] = set()
    for hierarchy in hierarchies():
        for file in _groups_below(hierarchy / cluster, "cgroup.procs"):
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in file.read_text().split())
    return found - {0}


def kill(cluster: str) -> None:
    """End whatever is in our groups; new children of the dying are met in the next round.

    A process leaves its group before it is gone: the first one of a namespace waits for all the
    others. So those that were seen are awaited as well.
    """
    seen: set[Process] = set()
    for _ in range(KILL_ROUNDS):
        for pid in processes(cluster):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                seen.add(Process.of(pid))
        seen = {process for process in seen if process.alive()}
        if not seen:
            return
        for process in seen:
            process.signal(signal.SIGKILL)
        time.sleep(0.05)
    raise RuntimeError(f"{sorted(p.pid for p in seen)} of {cluster} do not die")


def remove(cluster: str) -> None:
    """Remove our groups, deepest first. Their members are dead; the kernel needs a moment."""
    for hierarchy in hierarchies():
        for _ in range(KILL_ROUNDS):
            top = hierarchy / cluster
            if not top.exists():
                break
            for group in sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()
            with contextlib.suppress(OSError):
                top.rmdir()
                break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"control group {hierarchy / cluster} cannot be removed")


def _groups_below(top: Path, name: str) -> list[Path]:
    try:
        return [top / name, *(p / name for p in top.rglob("*") if p.is_dir())]
    except FileNotFoundError:  # a group that went away while we looked
        return _groups_below(top, name) if top.exists() else []


def _fill_cpuset(group: Path) -> None:
    """In v1 a new cpuset has no processors and no memory; nothing could start in it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        own, parent = group / name, group.parent / name
        if not is_v2() and own.exists() and not own.read_text().strip():
            own.write_text(parent.read_text())


def _open_to_children(group: Path) -> None:
    if not is_v2():
        return
    offered = (group / "cgroup.controllers").read_text().split()
    for name in V2_CONTROLLERS:
        if name in offered:
            (group / "cgroup.subtree_control").write_text(f"+{name}")
