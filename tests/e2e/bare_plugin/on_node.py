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
    await_no_devices(cluster, node)
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


def await_no_devices(cluster: Cluster, node: str) -> None:
    """Wait until the node's status no longer shows what an earlier plugin offered.

    kubelet writes it every ten seconds. With the old number taken for the new plugin's,
    pods would come for which kubelet has no healthy device yet; it refuses them for good.
    """

    def none() -> bool:
        allocatable: dict[str, str] = client.get(nodes(node))["status"]["allocatable"]
        return allocatable.get(RESOURCE, "0") == "0"

    with cluster.joined_network(), cluster.client as client:
        wait_for(f"{node} to offer no {RESOURCE} any more", none, REGISTERED_S)


def await_devices(cluster: Cluster, node: str) -> None:
    def offered() -> bool:
        cluster.require_alive()
        allocatable: dict[str, str] = client.get(nodes(node))["status"]["allocatable"]
        return allocatable.get(RESOURCE) == str(DEVICES)

    with cluster.joined_network(), cluster.client as client:
        wait_for(f"{node} to offer {RESOURCE}", offered, REGISTERED_S)
