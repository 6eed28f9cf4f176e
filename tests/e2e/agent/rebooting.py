"""A node that is switched off and on, as far as one can without a kernel of its own.

Every process of the node ends without a word, what lies in memory is gone, and its disk stays. Then
the runtime starts, after it kubelet, and kubelet starts the agent as it starts any other pod.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from hami_sandbox import gpus
from tests.e2e.agent.installation import CARDS, Agents
from tests.e2e.cluster import cgroups, node
from tests.e2e.cluster.machines import Machine
from tests.e2e.cluster.processes import Process
from tests.e2e.fakegpu import nodes as gpu_nodes

IN_MEMORY = ("/run/", "/var/lib/kubelet/pods/")
STAYS = {"settings"}
"""The harness's own: it lies over settings of this machine."""
DIES_S = 60
STOPPED = ("kubelet", "containerd")


def reboot(agents: Agents, name: str) -> None:
    """Switch a node off and on again; it is not waited for."""
    machine = agents.nodes[name].machine
    for program in STOPPED:
        machine.daemon(program).stop(signal.SIGKILL)
    _kill_all(machine)
    _forget_groups(machine)
    _forget_memory(machine)
    gpus.write_node(agents.nodes[name].path(gpu_nodes.FOLDER), CARDS, name=name)
    (found,) = (each for each in agents.cluster.layout.nodes if each.name == name)
    machine.start_again("containerd")
    node.await_runtime(machine, found)
    machine.start_again("kubelet")


def _kill_all(machine: Machine) -> None:
    """Kill containers and shims; the machine's first process and its network's stay."""
    top = cgroups.tracker() / machine.cluster.group / machine.name
    kept = {machine.init.pid, _parent(machine.init.pid)}
    for daemon in machine.daemons():
        if daemon.alive():
            kept |= {daemon.process.pid, _parent(daemon.process.pid)}
    deadline = time.monotonic() + DIES_S
    while dying := _members(top) - kept:
        assert time.monotonic() < deadline, f"{sorted(dying)} of {machine.name} do not die"
        for pid in dying:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _members(top: Path) -> set[int]:
    found: set[int] = set()
    for group in (top, *(path for path in top.rglob("*") if path.is_dir())):
        with contextlib.suppress(OSError):
            found |= {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
    return {pid for pid in found if pid and _lives(pid)}


def _lives(pid: int) -> bool:
    try:
        return Process.of(pid).alive()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _forget_groups(machine: Machine) -> None:
    """Remove the control groups of pods: kubelet would look into each of them for seconds."""
    for hierarchy in cgroups.hierarchies():
        top = hierarchy / machine.cluster.group / machine.name / "kubepods"
        for group in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()


def _forget_memory(machine: Machine) -> None:
    mounts = Path(f"/proc/{machine.init.pid}/mounts").read_text().splitlines()
    places = [line.split()[1] for line in mounts]
    for place in sorted((p for p in places if p.startswith(IN_MEMORY)), reverse=True):
        machine.run("umount", "--lazy", place)
    for path in (machine.root / "run").iterdir():
        if path.name in STAYS:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
