"""kubelet's PodResources API, v1: what kubelet says its running containers hold.

It names pods by namespace and name, never by UID, and leaves out init containers that end before
the others start; the checkpoint has both.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any

import grpc

from tests.e2e.kubelet_api import messages
from tests.e2e.kubelet_api.device_plugin import CHANNEL_OPTIONS

SOCKET = pathlib.PurePosixPath("/var/lib/kubelet/pod-resources/kubelet.sock")

MESSAGES = messages.messages(
    "v1",
    {
        "NUMANode": "ID=1 int64",
        "TopologyInfo": "nodes=1 NUMANode*",
        "CDIDevice": "name=1 string",
        "ClaimResource": (
            "cdi_devices=1 CDIDevice*, driver_name=2 string, pool_name=3 string,"
            "device_name=4 string, share_id=5 string?"
        ),
        "DynamicResource": (
            "claim_name=2 string, claim_namespace=3 string, claim_resources=4 ClaimResource*"
        ),
        "ContainerDevices": "resource_name=1 string, device_ids=2 string*, topology=3 TopologyInfo",
        "ContainerMemory": "memory_type=1 string, size=2 uint64, topology=3 TopologyInfo",
        "ContainerResources": (
            "name=1 string, devices=2 ContainerDevices*, cpu_ids=3 int64*,"
            "memory=4 ContainerMemory*, dynamic_resources=5 DynamicResource*"
        ),
        "PodResources": "name=1 string, namespace=2 string, containers=3 ContainerResources*",
        "ListPodResourcesRequest": "",
        "ListPodResourcesResponse": "pod_resources=1 PodResources*",
        "GetPodResourcesRequest": "pod_name=1 string, pod_namespace=2 string",
        "GetPodResourcesResponse": "pod_resources=1 PodResources",
        "AllocatableResourcesRequest": "",
        "AllocatableResourcesResponse": (
            "devices=1 ContainerDevices*, cpu_ids=2 int64*, memory=3 ContainerMemory*"
        ),
    },
)
LISTER = messages.Service(
    "v1.PodResourcesLister",
    {
        "List": "ListPodResourcesRequest -> ListPodResourcesResponse",
        "Get": "GetPodResourcesRequest -> GetPodResourcesResponse",
        "GetAllocatableResources": "AllocatableResourcesRequest -> AllocatableResourcesResponse",
    },
    MESSAGES,
)


class PodResourcesError(RuntimeError):
    """kubelet did not answer; the message names the socket, the call and grpc's reason."""


@dataclasses.dataclass(frozen=True)
class PodDevices:
    """The devices of one resource that one container holds."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: frozenset[str]
    numa_nodes: frozenset[int] = frozenset()


def list_pod_resources(socket: pathlib.Path, timeout: float = 10) -> tuple[PodDevices, ...]:
    """Return a row for each container and resource; containers without devices have none."""
    answer = _ask(socket, "List", MESSAGES["ListPodResourcesRequest"](), timeout)
    return tuple(row for pod in answer.pod_resources for row in _rows(pod))


def get_pod_resources(
    socket: pathlib.Path, namespace: str, pod: str, timeout: float = 10
) -> tuple[PodDevices, ...]:
    request = MESSAGES["GetPodResourcesRequest"](pod_name=pod, pod_namespace=namespace)
    return tuple(_rows(_ask(socket, "Get", request, timeout).pod_resources))


def allocatable_devices(socket: pathlib.Path, timeout: float = 10) -> dict[str, frozenset[str]]:
    """Return all healthy device ids of the node by resource, taken or not."""
    request = MESSAGES["AllocatableResourcesRequest"]()
    answer = _ask(socket, "GetAllocatableResources", request, timeout)
    return {name: ids for name, (ids, _nodes) in _by_resource(answer.devices).items()}


def _rows(pod: Any) -> Iterable[PodDevices]:
    for container in pod.containers:
        for resource, (ids, nodes) in _by_resource(container.devices).items():
            yield PodDevices(pod.namespace, pod.name, container.name, resource, ids, nodes)


def _by_resource(devices: Iterable[Any]) -> dict[str, tuple[frozenset[str], frozenset[int]]]:
    """Gather what kubelet sends in pieces, often one for each device."""
    gathered: dict[str, tuple[frozenset[str], frozenset[int]]] = {}
    for piece in devices:
        ids, nodes = gathered.get(piece.resource_name, (frozenset(), frozenset()))
        gathered[piece.resource_name] = (
            ids | frozenset(piece.device_ids),
            nodes | frozenset(node.ID for node in piece.topology.nodes),
        )
    return gathered


def _ask(socket: pathlib.Path, call: str, request: Any, timeout: float) -> Any:
    # A node of thousands of pods answers with more than grpc's usual 4 MiB.
    options = [*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"unix:{socket}", options) as channel:
        try:
            return LISTER.call(channel, call)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise PodResourcesError(
                f"PodResources {call} on {socket}: {error.code().name}: {error.details()}"
            ) from error
