"""APIs of kubelet and the runtime, as far as a node agent needs them.

Device plugins (`v1beta1`: kubelet calls us, and we register with it), PodResources (`v1`) and the
container runtime's interface (`runtime.v1`: name, version and configuration). Fields that we do not
need are left out; unknown fields are skipped.

PodResources lists which container holds which device ids, as kubelet has it in memory. It names
pods by namespace and name, never by UID, and leaves out init containers that end before the others
start. So it cannot map a start to its container (`checkpoint` does), but it must not contradict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from hami.agent.errors import AgentError
from hami.agent.kubelet import grpc
from hami.agent.kubelet.grpc import Call, Message, Shape, many, one, shapes, texts

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

_PLUGIN = shapes(
    {
        "Empty": (),
        "DevicePluginOptions": (
            one(1, "pre_start_required", "bool"),
            one(2, "get_preferred_allocation_available", "bool"),
        ),
        "RegisterRequest": (
            one(1, "version"),
            one(2, "endpoint"),
            one(3, "resource_name"),
            one(4, "options", "DevicePluginOptions"),
        ),
        "NUMANode": (one(1, "ID", "int64"),),
        "TopologyInfo": (many(1, "nodes", "NUMANode"),),
        "Device": (one(1, "ID"), one(2, "health"), one(3, "topology", "TopologyInfo")),
        "ListAndWatchResponse": (many(1, "devices", "Device"),),
        "ContainerPreferredAllocationRequest": (
            many(1, "available_device_ids"),
            many(2, "must_include_device_ids"),
            one(3, "allocation_size", "int32"),
        ),
        "PreferredAllocationRequest": (
            many(1, "container_requests", "ContainerPreferredAllocationRequest"),
        ),
        "ContainerPreferredAllocationResponse": (many(1, "device_ids"),),
        "PreferredAllocationResponse": (
            many(1, "container_responses", "ContainerPreferredAllocationResponse"),
        ),
        "ContainerAllocateRequest": (many(1, "device_ids"),),
        "AllocateRequest": (many(1, "container_requests", "ContainerAllocateRequest"),),
        "Mount": (one(1, "container_path"), one(2, "host_path"), one(3, "read_only", "bool")),
        "DeviceSpec": (one(1, "container_path"), one(2, "host_path"), one(3, "permissions")),
        "CDIDevice": (one(1, "name"),),
        "ContainerAllocateResponse": (
            texts(1, "envs"),
            many(2, "mounts", "Mount"),
            many(3, "devices", "DeviceSpec"),
            texts(4, "annotations"),
            many(5, "cdi_devices", "CDIDevice"),
        ),
        "AllocateResponse": (many(1, "container_responses", "ContainerAllocateResponse"),),
        "PreStartContainerRequest": (many(1, "device_ids"),),
        "PreStartContainerResponse": (),
    },
)
_POD_RESOURCES = shapes(
    {
        "ContainerDevices": (one(1, "resource_name"), many(2, "device_ids")),
        "ContainerResources": (one(1, "name"), many(2, "devices", "ContainerDevices")),
        "PodResources": (
            one(1, "name"),
            one(2, "namespace"),
            many(3, "containers", "ContainerResources"),
        ),
        "ListPodResourcesRequest": (),
        "ListPodResourcesResponse": (many(1, "pod_resources", "PodResources"),),
    },
)
_RUNTIME = shapes(
    {
        "VersionRequest": (one(1, "version"),),
        "VersionResponse": (
            one(1, "version"),
            one(2, "runtime_name"),
            one(3, "runtime_version"),
            one(4, "runtime_api_version"),
        ),
        "StatusRequest": (one(1, "verbose", "bool"),),
        "StatusResponse": (texts(2, "info"),),
    },
)


def _call(service: str, name: str, types: Mapping[str, Shape], request: str, answer: str) -> Call:
    return Call(service, name, types[request], types[answer.removesuffix("*")], answer[-1] == "*")


_ANSWER = _PLUGIN["ContainerAllocateResponse"]
_SERVICE = f"{VERSION}.DevicePlugin"
REGISTER = _call(f"{VERSION}.Registration", "Register", _PLUGIN, "RegisterRequest", "Empty")
OPTIONS = _call(_SERVICE, "GetDevicePluginOptions", _PLUGIN, "Empty", "DevicePluginOptions")
LIST_AND_WATCH = _call(_SERVICE, "ListAndWatch", _PLUGIN, "Empty", "ListAndWatchResponse*")
PREFERRED = _call(
    _SERVICE,
    "GetPreferredAllocation",
    _PLUGIN,
    "PreferredAllocationRequest",
    "PreferredAllocationResponse",
)
ALLOCATE = _call(_SERVICE, "Allocate", _PLUGIN, "AllocateRequest", "AllocateResponse")
PRE_START = _call(
    _SERVICE, "PreStartContainer", _PLUGIN, "PreStartContainerRequest", "PreStartContainerResponse"
)
LIST_PODS = _call(
    "v1.PodResourcesLister",
    "List",
    _POD_RESOURCES,
    "ListPodResourcesRequest",
    "ListPodResourcesResponse",
)
RUNTIME_VERSION = _call(
    "runtime.v1.RuntimeService", "Version", _RUNTIME, "VersionRequest", "VersionResponse"
)
RUNTIME_STATUS = _call(
    "runtime.v1.RuntimeService", "Status", _RUNTIME, "StatusRequest", "StatusResponse"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    container_path: str
    host_path: str
    read_only: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device node; the permissions are letters of `rwm`."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllocateResponse:
    """Our answer to Allocate for one container; kubelet's checkpoint keeps these bytes."""

    envs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()

    def message(self) -> Message:
        return {
            "envs": self.envs,
            "mounts": [dataclasses.asdict(mount) for mount in self.mounts],
            "devices": [dataclasses.asdict(device) for device in self.devices],
            "annotations": self.annotations,
            "cdi_devices": [{"name": name} for name in self.cdi_devices],
        }

    def encode(self) -> bytes:
        return _ANSWER.encode(self.message())

    @classmethod
    def of(cls, message: Message) -> Self:
        return cls(
            envs=message["envs"],
            mounts=tuple(Mount(**mount) for mount in message["mounts"]),
            devices=tuple(DeviceSpec(**device) for device in message["devices"]),
            annotations=message["annotations"],
            cdi_devices=tuple(device["name"] for device in message["cdi_devices"]),
        )

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Decode an answer; MessageError: the bytes are not one."""
        return cls.of(_ANSWER.decode(encoded))


def device(id_: str, *, healthy: bool, numa: int | None) -> Message:
    """Return an entry of a ListAndWatchResponse; `numa` None is not node 0."""
    entry: Message = {"ID": id_, "health": HEALTHY if healthy else UNHEALTHY}
    return entry if numa is None else {**entry, "topology": {"nodes": [{"ID": numa}]}}


#: Seconds. A container's start waits for this answer, which is only a second opinion.
TIMEOUT = 1.0

#: By device id: namespace, pod and container of all that hold it.
Holders = Mapping[str, frozenset[tuple[str, str, str]]]


class PodResourcesError(AgentError):
    """kubelet does not answer."""


async def holders(socket: Path, resource: str, *, timeout: float = TIMEOUT) -> Holders:  # noqa: ASYNC109 - grpc's own
    """Return the containers that hold each id of a resource; several may share one."""
    answer = await _list(socket, timeout)
    found: dict[str, set[tuple[str, str, str]]] = {}
    for pod in answer["pod_resources"]:
        for container in pod["containers"]:
            holder = (pod["namespace"], pod["name"], container["name"])
            for devices in container["devices"]:  # often one entry for each id
                if devices["resource_name"] == resource:
                    for id_ in devices["device_ids"]:
                        found.setdefault(id_, set()).add(holder)
    return {id_: frozenset(holding) for id_, holding in found.items()}


async def _list(socket: Path, timeout: float) -> Message:  # noqa: ASYNC109 - grpc's own
    what = f"kubelet's PodResources socket {socket}"
    # grpc would spend the whole timeout on a socket that does not exist.
    if not socket.exists():  # noqa: ASYNC240 - it takes microseconds
        raise PodResourcesError(
            what,
            "does not exist",
            "mount kubelet's folder pod-resources into the agent, or check --kubelet-dir",
        )
    try:
        async with grpc.channel(socket) as channel:
            call = LIST_PODS
            answer: Message = await call.on(channel)({}, timeout=timeout)
    except grpc.RpcError as error:
        raise PodResourcesError(
            what, f"does not list pods: {grpc.why(error)}", "check that kubelet runs"
        ) from error
    return answer
