"""Pods as users write them, whose containers use a card, seen from outside.

No pod names a scheduler, a card or a library. On a node without CDI the driver comes from the image
and a hostPath: there it would be NVIDIA's runtime that brings it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from tests.e2e import pods
from tests.e2e.agent.installation import Agents
from tests.e2e.auditor import layouts, pod_annotations
from tests.e2e.auditor.pod_annotations import Slots
from tests.e2e.auditor.reading import NodeReader
from tests.e2e.auditor.tokens import of_entry
from tests.e2e.cluster import cgroups
from tests.e2e.fakegpu import pods as gpu_pods
from tests.e2e.fakegpu.nodes import GpuNode
from tests.e2e.install import nodes as registering
from tests.kubeapi.client import Client, Object

MIB = 2**20
CONTEXT = 258 * MIB
"""What the driver takes for a process by itself."""
OUT_OF_MEMORY = "error 2 cuMemAlloc_v2"
ASK = 'printf "%s\\n" "$@" | probe'
ONCE = f"{ASK}; true"
"""As an init container: it asks and ends."""


def container(
    name: str, *commands: str, node: GpuNode, memory: int = 0, cores: int = 0, **more: Any
) -> Object:
    """Describe a container with a share of one card."""
    made = gpu_pods.probing(name, *commands, node=node)
    return made | registering.limits(1, memory=memory, cores=cores) | more


def ending(described: Object) -> Object:
    """Let a container end when it has had its answers."""
    shell, option, _, *rest = described["command"]
    return described | {"command": [shell, option, ONCE, *rest]}


def pod(name: str, *containers: Object, node: GpuNode, **spec: Any) -> Object:
    """Describe a pod for one node."""
    where = {"kubernetes.io/hostname": node.name}
    return pods.pod(
        name,
        **{
            "containers": list(containers),
            "nodeSelector": where,
            **gpu_pods.volumes(node),
            **spec,
        },
    )


def slots(pod: Object) -> Slots:
    """Read what each container was granted."""
    written = pod["metadata"]["annotations"][pod_annotations.ALLOCATED]
    return pod_annotations.device_list(pod_annotations.ALLOCATED, written)


def allocation_ids(agents: Agents, pod: Object) -> set[str]:
    """Return the allocation ids of a pod's containers, as kubelet's checkpoint has them."""
    root = agents.nodes[pod["spec"]["nodeName"]].machine.root
    held = NodeReader(root, layouts.ALL, ask_kubelet=False).read().checkpoint
    mine = (entry for entry in held if entry.pod_uid == pod["metadata"]["uid"])
    return {found for entry in mine for found in of_entry(entry, layouts.HAMI)}


def ask(agents: Agents, pod: Object, *commands: str, container: str = "main") -> list[str]:
    """Run a probe of its own in a running container; give its answers."""
    meta = pod["metadata"]
    output = agents.cluster.kubectl(
        *("-n", meta["namespace"], "exec", meta["name"], "-c", container, "--"),
        *("sh", "-c", ASK, "sh", *commands),
    )
    return output.splitlines()


def answers(client: Client, pod: Object, container: str, count: int) -> list[str]:
    return gpu_pods.answers(client, pod, container, count)


def events(client: Client, namespace: str, name: str = "") -> list[Object]:
    """List events of a namespace, or about one object of it."""
    query = {"fieldSelector": f"involvedObject.name={name}"} if name else {}
    found: list[Object] = client.get(f"/api/v1/namespaces/{namespace}/events", **query)["items"]
    return found


@dataclasses.dataclass(frozen=True)
class Running:
    """A container as the node's kernel knows it, without asking another component."""

    id: str
    pids: Sequence[int]


_ID = re.compile(r"[0-9a-f]{64}")


def containers(agents: Agents, pod: Object) -> list[Running]:
    """Find the containers of a pod that have processes; the one that holds its network included."""
    top = cgroups.tracker() / agents.cluster.layout.group / pod["spec"]["nodeName"]
    found = []
    for group in top.rglob(f"pod{pod['metadata']['uid']}/*"):
        if _ID.fullmatch(group.name):
            try:
                pids = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
            except OSError:
                continue  # it ended while we looked
            if pids:
                found.append(Running(group.name, pids))
    return found
