"""A stand-in for a node's /proc: its containers' processes and control groups.

hami's agent and monitor find the pod of a process by its control group. An ordinary user cannot
create control groups, so each node of a sandbox has a folder that stands in for /proc
(`--proc-dir`): one folder per process, in which every file is the kernel's except `cgroup`, which
has what kubelet would have created.

A process belongs to the container that its environment names, else to its parent's container.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from hami_sandbox import processes
from hami_sandbox.runtime.records import MARK, SPEC

#: Seconds between two updates; the monitor itself reads every five.
EVERY_S = 1.0

_KERNELS = ("comm", "fd", "mountinfo", "stat", "status")
_CGROUP = "cgroup"
_PREFIX = f"{MARK}=".encode()


class _Spec(msgspec.Struct, frozen=True):
    pod_uid: str


class _Process(msgspec.Struct, frozen=True):
    start: bytes
    #: The container's id; empty: of none.
    container: str


class ProcessViews:
    """The views of all nodes; `nodes` maps each runtime's folder to its view."""

    def __init__(self, nodes: Mapping[Path, Path], *, folder: Path = processes.PROC) -> None:
        self._nodes = dict(nodes)
        self._proc = folder
        self._known: dict[int, _Process] = {}
        #: Where a process is shown.
        self._shown: dict[int, Path] = {}
        for view in self._nodes.values():
            view.mkdir(parents=True, exist_ok=True)

    def update(self) -> None:
        """Read the machine's processes once, and show those of containers."""
        before, self._known = self._known, {}
        for pid in sorted(int(each.name) for each in processes.folders(self._proc)):
            with contextlib.suppress(OSError, ValueError, IndexError):
                self._known[pid] = self._look(pid, before.get(pid))
        for pid in [pid for pid in self._shown if self._known.get(pid) != before.get(pid)]:
            shutil.rmtree(self._shown.pop(pid), ignore_errors=True)
        for pid, process in self._known.items():
            if process.container and pid not in self._shown:
                self._show(pid, process.container)

    def _look(self, pid: int, had: _Process | None) -> _Process:
        stat = processes.stat(self._proc / str(pid))
        start = stat[processes.START]
        # A process without a container may have been read before its exec.
        if had is not None and had.start == start and had.container:
            return had
        container = self._named(pid)
        if not container:
            parent = self._known.get(int(stat[processes.PARENT]))
            container = parent.container if parent else ""
        return _Process(start, container)

    def _named(self, pid: int) -> str:
        for variable in processes.environ(self._proc / str(pid)):
            if variable.startswith(_PREFIX):
                return variable.removeprefix(_PREFIX).decode(errors="replace")
        return ""

    def _show(self, pid: int, container: str) -> None:
        for runtime, view in self._nodes.items():
            try:
                body = (runtime / "containers" / container / SPEC).read_bytes()
                spec = msgspec.json.decode(body, type=_Spec)
            except (OSError, msgspec.DecodeError):
                continue  # another node's, or removed
            place = view / str(pid)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for name in _KERNELS:
                (place / name).symlink_to(self._proc / str(pid) / name)
            (place / _CGROUP).write_text(f"0::/kubepods/pod{spec.pod_uid}/{container}\n")
            self._shown[pid] = place
            return


async def keep(views: ProcessViews, *, every: float = EVERY_S) -> NoReturn:
    """Keep the views up to date; end by cancellation."""
    while True:
        await asyncio.to_thread(views.update)
        await asyncio.sleep(every)
