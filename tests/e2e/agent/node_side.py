"""A node's kubelet and agent, seen from outside while the agent runs.

Paths and formats are the auditor's, not the product's: what is wrong there must show here.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from hami_sandbox import gpus
from tests.e2e.agent import workloads
from tests.e2e.agent.installation import AGENT, COMPONENT, PORTS, Agents
from tests.e2e.auditor import layouts, node_annotations
from tests.e2e.fakegpu.nodes import FOLDER, GpuNode
from tests.e2e.install import nodes as registering
from tests.e2e.kubelet_api import checkpoint
from tests.e2e.kubelet_api.checkpoint import Entry
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core, pods
from tests.kubeapi.paths import nodes as nodes_path

FALLEN_OFF_THE_BUS = 79
RENEWED_S = 60


# kubelet's checkpoint.


def registered(node: GpuNode) -> frozenset[str]:
    """Give the ids that kubelet takes for healthy."""
    found = checkpoint.read(node.path(str(checkpoint.PATH))).registered
    return frozenset(found.get(registering.GPU, ()))


def held(node: GpuNode, pod: Object, container: str = "main") -> frozenset[str]:
    """Give the ids that kubelet gave a container."""
    return _entry(node, pod, container).device_ids


def allocation_id(node: GpuNode, pod: Object, container: str = "main") -> str:
    assert layouts.HAMI.token_annotation is not None
    return _entry(node, pod, container).allocation().annotations[layouts.HAMI.token_annotation]


def _entry(node: GpuNode, pod: Object, container: str) -> Entry:
    uid = pod["metadata"]["uid"]
    kept = checkpoint.read(node.path(str(checkpoint.PATH))).of_resource(registering.GPU)
    (one,) = (each for each in kept if (each.pod_uid, each.container) == (uid, container))
    return one


# The agent's files.


def state_file(node: GpuNode, pod: Object, container: str = "main") -> Path:
    return node.path(f"{layouts.HAMI.states}/{allocation_id(node, pod, container)}/state")


def ledger(node: GpuNode) -> Path:
    assert layouts.HAMI.ledger is not None
    return node.path(layouts.HAMI.ledger)


def record_file(node: GpuNode, pod: Object) -> Path:
    return ledger(node) / f"{pod['metadata']['uid']}.json"


# What the API has of the node.


def card_health(client: Client, node: str) -> dict[str, bool]:
    """Read which cards a node has registered, and which of them as healthy; none: nothing."""
    kept = client.get(nodes_path(node))["metadata"].get("annotations", {})
    written = json.loads(kept.get(node_annotations.NVIDIA_REGISTER, "[]"))
    return {card["id"]: card.get("health", False) for card in written}


def event_messages(client: Client, node: str, reason: str, since: float = 0) -> list[str]:
    """List the messages of events of a kind about a node since a time."""
    query = {"fieldSelector": f"involvedObject.name={node},reason={reason}"}
    return [
        event["message"]
        for event in client.get(core("events"), **query)["items"]
        if dt.datetime.fromisoformat(event["lastTimestamp"]).timestamp() >= int(since)
    ]


# The agent itself.


def why_not_ready(agents: Agents, node: str) -> str:
    """Ask the agent whether it is ready; give its words if it is not."""
    server = f"http://{agents.pod(node)['status']['podIP']}:{PORTS[AGENT]}"
    with Client(server) as client:
        answer = client.request("GET", "/readyz", accept="text/plain")
    return "" if answer.status == HTTPStatus.OK else answer.body.decode()


def log_lines(agents: Agents, node: str, message: str) -> list[str]:
    """Give the agent's log lines with a message, each with all that it carries."""
    return [json.dumps(line) for line in agents.log(node) if line["message"] == message]


def renew(agents: Agents, *nodes: str) -> None:
    """Have other pods of the agent, as an update of the chart would; wait until they answer."""
    old = {node: agents.pod(node)["metadata"] for node in nodes}
    for meta in old.values():
        agents.client.delete(pods(meta["namespace"], meta["name"]))

    def runs(node: str) -> bool:
        new = [pod for pod in agents.release.pods(COMPONENT) if pod["spec"].get("nodeName") == node]
        return [pod["metadata"]["uid"] for pod in new] not in ([], [old[node]["uid"]]) and all(
            status.get("started") for status in new[0]["status"].get("containerStatuses", [{}])
        )

    wait_for(f"the new agents of {nodes}", lambda: all(map(runs, nodes)), RENEWED_S)


# Its containers.


def within(agents: Agents, pod: Object, script: str, container: str = "main") -> str:
    """Run a script in a container; give what it prints."""
    meta = pod["metadata"]
    return agents.cluster.kubectl(
        *("-n", meta["namespace"], "exec", meta["name"], "-c", container, "--", "sh", "-c", script)
    )


def crash(agents: Agents, pod: Object, container: str = "main") -> None:
    """Kill a container's processes."""
    (status,) = (
        each
        for each in agents.client.get(_path(pod))["status"]["containerStatuses"]
        if each["name"] == container
    )
    _, _, number = status["containerID"].rpartition("/")
    for running in workloads.containers(agents, pod):
        if running.id == number:
            for pid in running.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def restarts(client: Client, pod: Object) -> int:
    """Tell how often a pod's first container was started again, if it runs now; else -1."""
    status = client.get(_path(pod))["status"]["containerStatuses"][0]
    return int(status["restartCount"]) if "running" in status["state"] else -1


def _path(pod: Object) -> str:
    return pods(pod["metadata"]["namespace"], pod["metadata"]["name"])


# The driver.


@contextlib.contextmanager
def lost(node: GpuNode, card: str) -> Iterator[None]:
    """Let a card fall off the bus for as long as the block runs."""
    folder = node.path(FOLDER)
    gpus.set_faults(folder, [f"card {card} lost"])
    try:
        gpus.inject_xid(folder, card, FALLEN_OFF_THE_BUS)
        yield
    finally:
        gpus.set_faults(folder, [])
