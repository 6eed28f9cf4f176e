"""The whole product on the test cluster, on nodes with stand-in GPUs.

Both nodes have the same cards. node-1 binds late; node-2, whose runtime knows no CDI, by the node's
lock. The stand-in driver is found like a real one: its libraries below a driver root, its folder as
a device would be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.auditor import node_annotations
from tests.e2e.chart import release as releases
from tests.e2e.chart.release import Release
from tests.e2e.cluster import cgroups
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.fakegpu import nodes as gpu_nodes
from tests.e2e.fakegpu.nodes import GpuNode
from tests.e2e.install import installing
from tests.e2e.install import nodes as registering
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import nodes as nodes_path

LATE, LOCK = "node-1", "node-2"
COMPONENT = "hami-device-plugin"
AGENT, MONITOR = "device-plugin", "vgpu-monitor"
PORTS = {AGENT: 9396, MONITOR: 9394}
CARDS = (("A10", 4),)
SPLIT = 30
IDS = 4 * SPLIT
LABEL = "gpu"
#: Seconds. Cards come back soon, so that a test can see it.
QUARANTINE_S = 2
OFFERED_S = 90
LOG_LINES = 4000

_DRIVER = {"name": "fakegpu", "mountPath": gpu_nodes.FOLDER}
VALUES: Mapping[str, Any] = {
    "devicePlugin": {
        "deviceSplitCount": SPLIT,
        "quarantine": f"{QUARANTINE_S}s",
        "nvidiaDriverRoot": gpu_nodes.PLACE,
        "extraEnvs": {"FAKEGPU_DIR": gpu_nodes.FOLDER},
        "monitor": {"extraEnvs": {"FAKEGPU_DIR": gpu_nodes.FOLDER}},
        "extraVolumes": [
            {"name": "fakegpu", "hostPath": {"path": gpu_nodes.FOLDER, "type": "Directory"}}
        ],
        "extraVolumeMounts": [_DRIVER],
    },
    "scheduler": {"removeRejected": True},
}


@dataclasses.dataclass(frozen=True)
class Agents:
    """The release, and the pod of its DaemonSet on each node."""

    release: Release
    nodes: Mapping[str, GpuNode]

    @property
    def cluster(self) -> Cluster:
        return self.release.cluster

    @property
    def client(self) -> Client:
        return self.release.client

    def pod(self, node: str) -> Object:
        """Give the pod on a node, as the API has it now; LookupError while there is none."""
        found = [pod for pod in self.release.pods(COMPONENT) if _is_on(pod, node)]
        if len(found) != 1:
            raise LookupError(f"{node} has {len(found)} agents")
        return found[0]

    def restarts(self, node: str) -> dict[str, int]:
        return {
            each["name"]: each["restartCount"]
            for each in self.pod(node)["status"]["containerStatuses"]
        }

    # Its processes.

    def pid(self, node: str, container: str = AGENT) -> int:
        """Give the process of a container, as this machine counts."""
        pod = self.pod(node)
        (status,) = (
            each for each in pod["status"]["containerStatuses"] if each["name"] == container
        )
        _, _, number = status["containerID"].rpartition("/")
        top = cgroups.tracker() / self.cluster.layout.group / node
        (group,) = top.rglob(f"pod{pod['metadata']['uid']}/{number}")
        return min(int(pid) for pid in (group / "cgroup.procs").read_text().split())

    def memory(self, node: str, container: str) -> int:
        """Give the bytes that a container's process has in memory.

        Without what it shares: that is the stand-in driver's own file, which no real one has.
        """
        status = Path(f"/proc/{self.pid(node, container)}/status").read_text()
        kinds = dict(line.split(":", 1) for line in status.splitlines())
        return sum(int(kinds[kind].split()[0]) for kind in ("RssAnon", "RssFile")) * 1024

    def kill(self, node: str, container: str = AGENT) -> None:
        os.kill(self.pid(node, container), signal.SIGKILL)

    def renew(self, node: str) -> None:
        """Have a new pod on the node: kubelet restarts what died in an old one later and later."""
        old = self.pod(node)["metadata"]
        self.client.delete(self._path(node))

        def another() -> bool:
            found = [pod for pod in self.release.ready(COMPONENT) if _is_on(pod, node)]
            return any(pod["metadata"]["uid"] != old["uid"] for pod in found)

        wait_for(f"a new agent on {node}", another, OFFERED_S)

    # What it says.

    def log(self, node: str, container: str = AGENT) -> list[dict[str, Any]]:
        """Read the lines of a container's log; those that are no JSON become a message."""
        path = f"{self._path(node)}/log"
        query = {"container": container, "tailLines": str(LOG_LINES)}
        text = self.client.request("GET", path, query=query).body.decode(errors="replace")
        return [_line(line) for line in text.splitlines()]

    def metrics(self, node: str, container: str = MONITOR) -> str:
        server = f"http://{self.pod(node)['status']['podIP']}:{PORTS[container]}"
        with Client(server) as client:
            return client.request("GET", "/metrics", accept="text/plain").body.decode()

    def metric(self, node: str, name: str, of: str = MONITOR, /, **labels: str) -> float:
        """Add up a metric over all samples that have these labels."""
        return installing._sum(self.metrics(node, of), name, labels)

    def await_ready(self, node: str) -> None:
        def ready() -> bool:
            return any(_is_on(pod, node) for pod in self.release.ready(COMPONENT))

        wait_for(f"the agent of {node} to be ready", ready, OFFERED_S)

    def await_registered(self, node: str) -> None:
        """Wait until the agent itself says that kubelet knows it; the API would be late."""

        def registered() -> bool:
            return bool(self.metric(node, "hami_agent_registered", AGENT, resource=registering.GPU))

        wait_for(f"the agent of {node} to be registered", registered, OFFERED_S)

    def await_offers(self, *names: str, ids: int = IDS) -> None:
        """Wait until nodes have their cards in the API, and as many ids to give as they have."""

        def offered() -> bool:
            found = {each["metadata"]["name"]: each for each in self._nodes()}
            return all(is_offered(found[name], ids) for name in names or self.nodes)

        wait_for("the nodes to offer their cards", offered, OFFERED_S)

    def _nodes(self) -> list[Object]:
        found: list[Object] = self.client.get(nodes_path())["items"]
        return found

    def _path(self, node: str) -> str:
        meta = self.pod(node)["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


def _is_on(pod: Object, node: str) -> bool:
    return bool(pod["spec"].get("nodeName") == node)


def is_offered(node: Object, ids: int) -> bool:
    kept = node["metadata"].get("annotations", {})
    known = node_annotations.NVIDIA_REGISTER in kept
    marked = node_annotations.BINDING_MARK in kept or node_annotations.LOCK_REASON in kept
    return known and marked and node["status"]["allocatable"].get(registering.GPU) == str(ids)


@contextlib.contextmanager
def installed(cluster: Cluster) -> Iterator[Agents]:
    """Install it, wait until both nodes offer their cards, and take everything away at the end."""
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(gpu_nodes.with_driver(cluster, CARDS))
        stack.enter_context(_labelled(cluster, found))
        release = stack.enter_context(releases.installed(cluster, more=VALUES))
        agents = Agents(release, found)
        agents.await_offers()
        yield agents


def find(cluster: Cluster) -> Agents:
    """Find an installation that another process keeps (`python -m tests.e2e.agent`)."""
    release = releases.find(cluster, more=VALUES)
    return Agents(release, gpu_nodes.find(cluster))


@contextlib.contextmanager
def _labelled(cluster: Cluster, found: Mapping[str, GpuNode]) -> Iterator[None]:
    """Label the nodes as having cards; remove the labels at the end."""
    try:
        _label(cluster, found, "on")
        yield
    finally:
        _label(cluster, found, None)
        with cluster.joined_network(), cluster.client as client:
            for name in found:
                registering.forget(client, name)


def _label(cluster: Cluster, found: Mapping[str, GpuNode], value: str | None) -> None:
    with cluster.joined_network(), cluster.client as client:
        for name in found:
            client.patch(nodes_path(name), {"metadata": {"labels": {LABEL: value}}})


def _line(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {"message": line}
    return found if isinstance(found, dict) else {"message": line}
