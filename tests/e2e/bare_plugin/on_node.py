"""The plugin on a node of the test cluster, for as long as somebody needs it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from tests.e2e.bare_plugin.binding import TOKENS
from tests.e2e.cluster.cluster import Cluster
from tests.kubeapi.client import wait_for
from tests.kubeapi.paths import nodes

RESOURCE = "example.com/vgpu"
DEVICES = 128
REGISTERED_S = 60
SWEPT_S = 60


@contextlib.contextmanager
def running(cluster: Cluster, node: str) -> Iterator[str]:
    """Run it, wait until the node has its devices, and give the resource's name."""
    machine = cluster.machine(node)
    machine.start_beside(
        "bare-plugin",
        [
            *(sys.executable, "-m", "tests.e2e.bare_plugin", "--node", node),
            *("--node-root", str(machine.root), "--kubeconfig", str(cluster.layout.kubeconfig)),
            *("--resource", RESOURCE, "--devices", str(DEVICES)),
        ],
    )
    try:
        await_devices(cluster, node)
        yield RESOURCE
        tokens = machine.root / str(TOKENS).lstrip("/")
        wait_for("the tokens to be swept", lambda: not list(tokens.iterdir()), SWEPT_S)
    finally:
        machine.end("bare-plugin")


def await_devices(cluster: Cluster, node: str) -> None:
    def offered() -> bool:
        cluster.require_alive()
        allocatable: dict[str, str] = client.get(nodes(node))["status"]["allocatable"]
        return allocatable.get(RESOURCE) == str(DEVICES)

    with cluster.joined_network(), cluster.client as client:
        wait_for(f"{node} to offer {RESOURCE}", offered, REGISTERED_S)
