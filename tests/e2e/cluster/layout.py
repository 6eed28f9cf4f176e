"""Layout of a test cluster: machines, addresses and folders, as plain data.

Addresses mean something only inside the cluster's own network namespaces, so every cluster uses the
same ones, and several can run side by side.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
CONTROL_PLANE = "control-plane"
CONTROL_PLANE_ADDRESS = "10.240.0.1"
API_SERVER = f"https://{CONTROL_PLANE_ADDRESS}:6443"
MACHINE_PREFIX = 24
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
NAME_SERVICE_ADDRESS = "10.96.0.10"
MOST_NODES = 200


class Runtime(enum.StrEnum):
    """What starts a node's containers. The newer resolves CDI names, the older ignores them."""

    CONTAINERD_2 = "containerd-2.4"
    CONTAINERD_1 = "containerd-1.6"


class Scheduler(enum.StrEnum):
    """The newest and the oldest kube-scheduler whose extender calls we answer."""

    NEWEST = "1.36"
    OLDEST = "1.30"


@dataclass(frozen=True)
class Node:
    number: int
    runtime: Runtime

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        return f"10.240.0.{self.number + 10}"

    @property
    def pod_range(self) -> str:
        return f"10.244.{self.number}.0/24"


def nodes(count: int) -> tuple[Node, ...]:
    """Make the nodes: the second is the one without CDI, all others have it."""
    if not 1 <= count <= MOST_NODES:
        raise ValueError(
            f"{count} nodes: a cluster has 1 to {MOST_NODES} real ones on one machine; "
            "for more, add nodes that exist only in the API (`fleet`)"
        )
    return tuple(
        Node(number, Runtime.CONTAINERD_1 if number == 2 else Runtime.CONTAINERD_2)
        for number in range(1, count + 1)
    )


@dataclass(frozen=True)
class Layout:
    name: str
    nodes: tuple[Node, ...] = field(default_factory=lambda: nodes(2))
    scheduler: Scheduler = Scheduler.NEWEST

    @property
    def folder(self) -> Path:
        return CHECKOUT / ".cache" / "e2e" / self.name

    @property
    def group(self) -> str:
        """The control group; the checkout is part of it, so that two never touch each other."""
        return f"hami-e2e-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:10]}"

    @property
    def kept_logs(self) -> Path:
        return self.folder.with_name(f"{self.name}-logs")

    def machine_folder(self, machine: str) -> Path:
        return self.folder / machine

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.machine_folder(CONTROL_PLANE) / "root/var/log/kubernetes/audit.log"
