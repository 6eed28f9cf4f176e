"""kubelet's PodResources API: device ids of containers, from memory.

It names active pods by namespace and name, and leaves out init containers that end before the
others start. Every id comes in an entry of its own, with its NUMA nodes. Devices are all there is:
the sandbox pins neither processors nor memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hami.agent.kubelet import grpc
from hami.agent.kubelet.grpc import Call, Message, many, one, shapes
from hami.wire.objects import ContainerKind
from hami_sandbox.kubelet.devices.allocations import AllocatedIds
from hami_sandbox.kubelet.devices.endpoint import Device
from hami_sandbox.kubelet.devices.pods import Pod

_SERVICE = "v1.PodResourcesLister"
#: With what the agent does not ask for (`hami.agent.kubelet.kubelet_api` has its part of it).
_TYPES = shapes(
    {
        "NUMANode": (one(1, "ID", "int64"),),
        "TopologyInfo": (many(1, "nodes", "NUMANode"),),
        "ContainerDevices": (
            one(1, "resource_name"),
            many(2, "device_ids"),
            one(3, "topology", "TopologyInfo"),
        ),
        "ContainerResources": (one(1, "name"), many(2, "devices", "ContainerDevices")),
        "PodResources": (
            one(1, "name"),
            one(2, "namespace"),
            many(3, "containers", "ContainerResources"),
        ),
        "ListPodResourcesRequest": (),
        "ListPodResourcesResponse": (many(1, "pod_resources", "PodResources"),),
        "GetPodResourcesRequest": (one(1, "pod_name"), one(2, "pod_namespace")),
        "GetPodResourcesResponse": (one(1, "pod_resources", "PodResources"),),
        "AllocatableResourcesRequest": (),
        "AllocatableResourcesResponse": (many(1, "devices", "ContainerDevices"),),
    }
)
LIST = Call(_SERVICE, "List", _TYPES["ListPodResourcesRequest"], _TYPES["ListPodResourcesResponse"])
GET = Call(_SERVICE, "Get", _TYPES["GetPodResourcesRequest"], _TYPES["GetPodResourcesResponse"])
ALLOCATABLE = Call(
    _SERVICE,
    "GetAllocatableResources",
    _TYPES["AllocatableResourcesRequest"],
    _TYPES["AllocatableResourcesResponse"],
)


def handler(
    *,
    pods: Callable[[], Iterable[Pod]],
    held: Callable[[str, str], Mapping[str, AllocatedIds]],
    allocatable: Callable[[], Mapping[str, Iterable[Device]]],
) -> Any:
    """Answer for the active pods, by what their containers hold (pod UID and container)."""

    def of_pod(pod: Pod) -> Message:
        containers = [
            {"name": container.name, "devices": _pieces(held(pod.uid, container.name))}
            for container in pod.containers
            if container.kind is not ContainerKind.INIT
        ]
        return {"name": pod.name, "namespace": pod.namespace, "containers": containers}

    async def list_pods(_request: Message, _context: Any) -> Message:
        return {"pod_resources": [of_pod(pod) for pod in pods()]}

    async def get(request: Message, context: Any) -> Message:
        name, namespace = request["pod_name"], request["pod_namespace"]
        for pod in pods():
            if (pod.name, pod.namespace) == (name, namespace):
                return {"pod_resources": of_pod(pod)}
        text = f"pod {name} in namespace {namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError("unreachable: abort raises")

    async def all_devices(_request: Message, _context: Any) -> Message:
        found = allocatable()
        pieces = [
            _piece(resource, device.id, device.numa_nodes)
            for resource, devices in found.items()
            for device in devices
        ]
        return {"devices": pieces}

    return grpc.handler({LIST: list_pods, GET: get, ALLOCATABLE: all_devices})


def _pieces(held: Mapping[str, AllocatedIds]) -> list[Message]:
    return [
        _piece(resource, id_, allocated.numa_nodes(id_))
        for resource, allocated in held.items()
        for id_ in allocated.ids
    ]


def _piece(resource: str, id_: str, numa_nodes: Iterable[int]) -> Message:
    piece: Message = {"resource_name": resource, "device_ids": [id_]}
    nodes = [{"ID": node} for node in numa_nodes]
    return {**piece, "topology": {"nodes": nodes}} if nodes else piece
