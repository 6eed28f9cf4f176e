"""One node of a sandbox: folders, stand-in cards, commands of its programs.

Every path of the agent is a flag, so a node's root can be any folder: several nodes fit on one
machine, and none needs root.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hami.simulation import description
from hami.simulation import main as simulation
from hami.vendors import table
from hami_sandbox import api_objects, gpus, programs
from hami_sandbox.plan import NodePlan

#: Short, because people watch a demo.
_BACK_OFF_S = 1
#: Begin of the names under which NVIDIA's cards and their MIG devices are offered.
NVIDIA = "nvidia.com/"


class NodeFolders:
    """Folders of a node: as on a real one, below a root that is a plain folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kubelet = root / "var/lib/kubelet"
        self.state = root / "var/lib/hami"
        self.containers = root / "var/lib/containers"
        self.cdi = root / "var/run/cdi"
        self.nvidia_cdi = root / "etc/cdi"
        self.hook = root / "usr/local"
        self.run = root / "run/hami"
        self.gpus = root / "run/fakegpu"
        self.cri_socket = root / "run/cri.sock"
        self.proc = root / "proc"
        self.driver = root / "driver"
        self.simulated = root / "simulated-devices.yaml"

    def make(self, plan: NodePlan) -> list[gpus.Card]:
        """Create folders, cards, driver libraries and NVIDIA's CDI spec."""
        for folder in (self.kubelet, self.containers, self.cdi, self.nvidia_cdi, self.hook):
            folder.mkdir(parents=True, exist_ok=True)
        devices = [{"model": model, "cards": count} for model, count in plan.others]
        self.simulated.write_text(json.dumps({"nodes": [{"devices": devices}]}))
        if not plan.cards:
            return []
        cards = gpus.write_node(self.gpus, plan.cards, name=plan.name, mig=plan.mig)
        built = gpus.driver_folder()
        place = self.driver / f"usr/lib/{platform.machine()}-linux-gnu"
        place.mkdir(parents=True, exist_ok=True)
        for name in gpus.LIBRARIES:
            shutil.copyfile(built / name, place / name)  # links are followed below the root only
        spec = json.dumps(gpus.cdi_spec(self.gpus, built))
        (self.nvidia_cdi / "nvidia.json").write_text(spec)
        return cards


class SandboxNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that runs."""

    name: str
    plan: NodePlan
    folders: NodeFolders
    cards: tuple[gpus.Card, ...]
    agent_url: str
    monitor_url: str

    @property
    def gpus(self) -> Path:
        """The folder of the stand-in driver: cards, their users, faults, peaks."""
        return self.folders.gpus

    def resources(self) -> frozenset[str]:
        """Return the resources that kubelet offers; MIG devices have names of their own."""
        offered = {NVIDIA} if self.cards else set()
        if self.plan.others:
            vendors = table.built_in()
            described = description.load(self.folders.simulated, vendors)
            found = simulation.cards_of(self.name, described.of_node(self.name), vendors)
            offered.update(name for each in found for name in each.offered())
        return frozenset(offered)


def make(root: Path, plan: NodePlan, *, agent_port: int, monitor_port: int) -> SandboxNode:
    folders = NodeFolders(root)
    cards = folders.make(plan)
    return SandboxNode(
        name=plan.name,
        plan=plan,
        folders=folders,
        cards=tuple(cards),
        agent_url=f"http://127.0.0.1:{agent_port}",
        monitor_url=f"http://127.0.0.1:{monitor_port}",
    )


def kubelet(node: SandboxNode, kubeconfig: Path, log_token: Path) -> list[str]:
    folders = node.folders
    labels = ",".join(f"{key}={value}" for key, value in node.plan.labels.items())
    return programs.python(
        *("-m", "hami_sandbox.kubelet"),
        f"--node-name={node.name}",
        f"--kubeconfig={kubeconfig}",
        f"--folder={folders.kubelet}",
        f"--cdi-dirs={folders.nvidia_cdi},{folders.cdi}",
        f"--cri-socket={folders.cri_socket}",
        f"--runtime-dir={folders.containers}",
        f"--log-token-file={log_token}",
        f"--version={api_objects.KUBERNETES}",
        f"--backoff-initial={_BACK_OFF_S}",
        *([f"--labels={labels}"] if labels else []),
    )


def agent(node: SandboxNode, kubeconfig: Path, grant_keys: Path) -> list[str]:
    folders = node.folders
    return programs.python(
        *("-m", "hami", "agent"),
        f"--node-name={node.name}",
        f"--kubeconfig={kubeconfig}",
        f"--kubelet-dir={folders.kubelet}",
        f"--cdi-dir={folders.cdi}",
        f"--nvidia-cdi-dirs={folders.nvidia_cdi}",
        f"--hook-path={folders.hook}",
        f"--state-dir={folders.state}",
        f"--run-dir={folders.run}",
        f"--proc-dir={folders.proc}",
        f"--driver-root={folders.driver}",
        f"--runtime-endpoint=unix://{folders.cri_socket}",
        f"--grant-key-dir={grant_keys}",
        f"--mig-strategy={node.plan.mig_strategy}",
        f"--metrics-bind-address={_address(node.agent_url)}",
        "--driver-injection=cdi",
        "--drain-timeout=0",  # it ends with its whole cluster
    )


def monitor(node: SandboxNode, kubeconfig: Path) -> list[str]:
    folders = node.folders
    return programs.python(
        *("-m", "hami", "monitor"),
        f"--node-name={node.name}",
        f"--kubeconfig={kubeconfig}",
        f"--hook-path={folders.hook}",
        f"--state-dir={folders.state}",
        f"--run-dir={folders.run}",
        f"--proc-dir={folders.proc}",
        f"--driver-root={folders.driver}",
        f"--metrics-bind-address={_address(node.monitor_url)}",
    )


def simulate_devices(node: SandboxNode, kubeconfig: Path) -> list[str]:
    return programs.python(
        *("-m", "hami", "simulate-devices"),
        f"--node-name={node.name}",
        f"--kubeconfig={kubeconfig}",
        f"--kubelet-dir={node.folders.kubelet}",
        f"--devices-file={node.folders.simulated}",
        "--metrics-bind-address=",
    )


def driver_environment(node: SandboxNode) -> Mapping[str, str]:
    """Return the environment of a program that loads the node's driver."""
    return programs.environment(FAKEGPU_DIR=os.fspath(node.gpus))


def _address(url: str) -> str:
    return url.removeprefix("http://")
