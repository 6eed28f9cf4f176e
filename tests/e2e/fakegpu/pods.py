"""Pods that drive a card: commands for the probe, answers in its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.e2e import pods
from tests.e2e.auditor import pod_annotations
from tests.e2e.fakegpu import image
from tests.e2e.fakegpu.nodes import FOLDER, GpuNode
from tests.e2e.fakegpu.plugin import VISIBLE
from tests.e2e.install import nodes as registering
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path

# Nobody's: whoever creates the pod knows its UID before it is bound, and binds it.
SCHEDULER = "by-hand.hami.test"
# Then it stays, with all that it has: only its end gives that back.
SCRIPT = "{ printf '%s\\n' \"$@\"; exec sleep 100000; } | probe"
ANSWERED_S = 60


def container(name: str, *commands: str, node: GpuNode, memory: int) -> Object:
    """Describe a container that is granted `memory` MiB of the node's card."""
    return probing(name, *commands, node=node) | registering.limits(1, memory=memory)


def blind_container(name: str, *commands: str, node: GpuNode) -> Object:
    """Describe one that has the driver but is shown no card."""
    made = probing(name, *commands, node=node)
    return made | {"env": [*made.get("env", []), {"name": VISIBLE, "value": "void"}]}


def probing(name: str, *commands: str, node: GpuNode) -> Object:
    """Describe a container that drives whatever card it has."""
    made: Object = {
        "name": name,
        "image": image.NAME,
        "command": ["sh", "-c", SCRIPT, "sh", *commands],
    }
    if not node.cdi:
        made["env"] = [{"name": "LD_LIBRARY_PATH", "value": image.LIBRARIES}]
        made["volumeMounts"] = [{"name": "driver", "mountPath": FOLDER}]
    return made


def pod(name: str, *containers: Object, node: GpuNode) -> Object:
    return pods.pod(name, schedulerName=SCHEDULER, containers=list(containers), **volumes(node))


def volumes(node: GpuNode) -> dict[str, Any]:
    """Give what of a pod's spec brings the driver where CDI does not."""
    if node.cdi:
        return {}
    return {"volumes": [{"name": "driver", "hostPath": {"path": FOLDER, "type": "Directory"}}]}


def bind(client: Client, pod: Object, node: GpuNode) -> None:
    """Bind a created pod, with the grants that its containers ask for, as hami does."""
    slots = [
        f"{node.card.uuid},NVIDIA,{memory},0:" if memory else ""
        for memory in map(_memory, pod["spec"]["containers"])
    ]
    bind_with(
        client,
        pod,
        node.name,
        {
            pod_annotations.NODE: node.name,
            pod_annotations.ALLOCATED: "".join(f"{slot};" for slot in slots),
        },
    )


def bind_with(client: Client, pod: Object, node: str, annotations: Mapping[str, str]) -> None:
    """Bind a created pod, whatever the annotations say."""
    meta = pod["metadata"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": meta["name"], "uid": meta["uid"], "annotations": dict(annotations)},
        "target": {"kind": "Node", "name": node},
    }
    client.create(pods_path(meta["namespace"], meta["name"], "binding"), binding)


def answers(client: Client, pod: Object, container: str, count: int) -> list[str]:
    """Wait until the probe has answered so many commands; give the answers."""
    meta = pod["metadata"]
    pods.await_phase(client, meta["namespace"], meta["name"])
    path = pods_path(meta["namespace"], meta["name"], "log")

    def look() -> list[str] | None:
        lines = client.request("GET", path, query={"container": container}).body.decode()
        said = lines.splitlines()
        return said if len(said) >= count else None

    return wait_for(f"{count} answers of {meta['name']}/{container}", look, ANSWERED_S)


def remove(client: Client, pod: Object) -> None:
    """Kill it and wait until it is gone."""
    meta = pod["metadata"]
    path = pods_path(meta["namespace"], meta["name"])
    client.delete(path)
    wait_for(f"{meta['name']} to be gone", lambda: client.find(path) is None, pods.GONE_S)


def _memory(container: Object) -> int:
    limits = container.get("resources", {}).get("limits", {})
    return int(limits.get(registering.MEMORY, 0))
