"""kubelet's device-plugin API, v1beta1: messages, both ends of its services.

`plugin_handler` and `register` are a plugin's ends; `PluginClient` and `registration_handler` are
kubelet's, for tests that play kubelet.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import grpc

from tests.e2e.kubelet_api import messages

FOLDER = pathlib.PurePosixPath("/var/lib/kubelet/device-plugins")
KUBELET_SOCKET = "kubelet.sock"
VERSION = "v1beta1"
CHANNEL_OPTIONS = [("grpc.default_authority", "localhost")]

MESSAGES = messages.messages(
    VERSION,
    {
        "Empty": "",
        "DevicePluginOptions": (
            "pre_start_required=1 bool, get_preferred_allocation_available=2 bool"
        ),
        "RegisterRequest": (
            "version=1 string, endpoint=2 string, resource_name=3 string,"
            "options=4 DevicePluginOptions"
        ),
        "NUMANode": "ID=1 int64",
        "TopologyInfo": "nodes=1 NUMANode*",
        "Device": "ID=1 string, health=2 string, topology=3 TopologyInfo",
        "ListAndWatchResponse": "devices=1 Device*",
        "ContainerPreferredAllocationRequest": (
            "available_deviceIDs=1 string*, must_include_deviceIDs=2 string*,"
            "allocation_size=3 int32"
        ),
        "PreferredAllocationRequest": "container_requests=1 ContainerPreferredAllocationRequest*",
        "ContainerPreferredAllocationResponse": "deviceIDs=1 string*",
        "PreferredAllocationResponse": (
            "container_responses=1 ContainerPreferredAllocationResponse*"
        ),
        "ContainerAllocateRequest": "devices_ids=1 string*",
        "AllocateRequest": "container_requests=1 ContainerAllocateRequest*",
        "Mount": "container_path=1 string, host_path=2 string, read_only=3 bool",
        "DeviceSpec": "container_path=1 string, host_path=2 string, permissions=3 string",
        "CDIDevice": "name=1 string",
        "ContainerAllocateResponse": (
            "envs=1 map, mounts=2 Mount*, devices=3 DeviceSpec*, annotations=4 map,"
            "cdi_devices=5 CDIDevice*"
        ),
        "AllocateResponse": "container_responses=1 ContainerAllocateResponse*",
        "PreStartContainerRequest": "devices_ids=1 string*",
        "PreStartContainerResponse": "",
    },
)
REGISTRATION = messages.Service(
    f"{VERSION}.Registration", {"Register": "RegisterRequest -> Empty"}, MESSAGES
)
DEVICE_PLUGIN = messages.Service(
    f"{VERSION}.DevicePlugin",
    {
        "GetDevicePluginOptions": "Empty -> DevicePluginOptions",
        "ListAndWatch": "Empty -> ListAndWatchResponse*",
        "GetPreferredAllocation": "PreferredAllocationRequest -> PreferredAllocationResponse",
        "Allocate": "AllocateRequest -> AllocateResponse",
        "PreStartContainer": "PreStartContainerRequest -> PreStartContainerResponse",
    },
    MESSAGES,
)


class RefusedError(Exception):
    """A plugin refuses; kubelet shows the message in an event of the pod."""


@dataclasses.dataclass(frozen=True)
class Device:
    id: str
    health: str = "Healthy"
    numa_nodes: tuple[int, ...] = ()

    def message(self) -> Any:
        device = MESSAGES["Device"](ID=self.id, health=self.health)
        for node in self.numa_nodes:
            device.topology.nodes.add(ID=node)
        return device

    @classmethod
    def of(cls, message: Any) -> Self:
        return cls(message.ID, message.health, tuple(n.ID for n in message.topology.nodes))


@dataclasses.dataclass(frozen=True)
class Mount:
    container_path: str
    host_path: str
    read_only: bool = True


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
    container_path: str
    host_path: str
    permissions: str


@dataclasses.dataclass(frozen=True)
class Allocation:
    """What a plugin answers for one container; kubelet's checkpoint keeps these very bytes."""

    envs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()

    def message(self) -> Any:
        return MESSAGES["ContainerAllocateResponse"](
            envs=self.envs,
            mounts=[dataclasses.asdict(mount) for mount in self.mounts],
            devices=[dataclasses.asdict(device) for device in self.devices],
            annotations=self.annotations,
            cdi_devices=[{"name": name} for name in self.cdi_devices],
        )

    def encode(self) -> bytes:
        encoded: bytes = self.message().SerializeToString(deterministic=True)
        return encoded

    @classmethod
    def of(cls, message: Any) -> Self:
        return cls(
            dict(message.envs),
            tuple(Mount(m.container_path, m.host_path, m.read_only) for m in message.mounts),
            tuple(
                DeviceSpec(d.container_path, d.host_path, d.permissions) for d in message.devices
            ),
            dict(message.annotations),
            tuple(device.name for device in message.cdi_devices),
        )

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Raise google.protobuf's DecodeError for bytes that are no such message."""
        return cls.of(MESSAGES["ContainerAllocateResponse"].FromString(encoded))


@dataclasses.dataclass(frozen=True)
class Registration:
    endpoint: str
    resource: str
    pre_start_required: bool = False
    preferred_allocation: bool = False
    version: str = VERSION


class Plugin(Protocol):
    """A device plugin. `allocate` and `pre_start` may raise RefusedError."""

    pre_start_required: bool

    def devices(self) -> AsyncIterator[Sequence[Device]]:
        """Yield the whole list, again at each change; ends when the plugin does."""

    async def allocate(self, requests: Sequence[frozenset[str]]) -> Sequence[Allocation]: ...

    async def pre_start(self, device_ids: frozenset[str]) -> None: ...


def plugin_handler(plugin: Plugin) -> Any:
    """Return the handler that a grpc.aio server of the plugin's socket adds."""

    async def options(_request: Any, _context: Any) -> Any:
        return MESSAGES["DevicePluginOptions"](pre_start_required=plugin.pre_start_required)

    async def list_and_watch(_request: Any, _context: Any) -> AsyncIterator[Any]:
        async for devices in plugin.devices():
            yield MESSAGES["ListAndWatchResponse"](devices=[d.message() for d in devices])

    async def allocate(request: Any, context: Any) -> Any:
        asked = [frozenset(one.devices_ids) for one in request.container_requests]
        granted = await _or_abort(context, plugin.allocate(asked))
        return MESSAGES["AllocateResponse"](container_responses=[a.message() for a in granted])

    async def pre_start(request: Any, context: Any) -> Any:
        await _or_abort(context, plugin.pre_start(frozenset(request.devices_ids)))
        return MESSAGES["PreStartContainerResponse"]()

    return DEVICE_PLUGIN.handler(
        {
            "GetDevicePluginOptions": options,
            "ListAndWatch": list_and_watch,
            "Allocate": allocate,
            "PreStartContainer": pre_start,
        }
    )


async def _or_abort(context: Any, work: Awaitable[Any]) -> Any:
    try:
        return await work
    except RefusedError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


async def register(kubelet: pathlib.Path, registration: Registration) -> None:
    """Tell kubelet of a plugin that already serves; kubelet calls it back before it answers."""
    request = MESSAGES["RegisterRequest"](
        version=registration.version,
        endpoint=registration.endpoint,
        resource_name=registration.resource,
        options={
            "pre_start_required": registration.pre_start_required,
            "get_preferred_allocation_available": registration.preferred_allocation,
        },
    )
    async with grpc.aio.insecure_channel(f"unix:{kubelet}", CHANNEL_OPTIONS) as channel:
        await REGISTRATION.call(channel, "Register")(request, timeout=10)


def registration_handler(registered: Callable[[Registration], Awaitable[None]]) -> Any:
    """Return the handler of a server that plays kubelet's registration socket."""

    async def handle(request: Any, _context: Any) -> Any:
        options = request.options
        await registered(
            Registration(
                request.endpoint,
                request.resource_name,
                options.pre_start_required,
                options.get_preferred_allocation_available,
                request.version,
            )
        )
        return MESSAGES["Empty"]()

    return REGISTRATION.handler({"Register": handle})


class PluginClient:
    """kubelet's side of a plugin's socket; grpc's AioRpcError is what a refusal looks like."""

    def __init__(self, socket: pathlib.Path) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", CHANNEL_OPTIONS)

    async def pre_start_required(self) -> bool:
        answer = await self._call("GetDevicePluginOptions", MESSAGES["Empty"]())
        return bool(answer.pre_start_required)

    async def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        async for answer in self._call("ListAndWatch", MESSAGES["Empty"]()):
            yield tuple(Device.of(device) for device in answer.devices)

    async def allocate(self, *requests: Sequence[str]) -> tuple[Allocation, ...]:
        asked = [{"devices_ids": ids} for ids in requests]
        answer = await self._call("Allocate", MESSAGES["AllocateRequest"](container_requests=asked))
        return tuple(Allocation.of(one) for one in answer.container_responses)

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        await self._call(
            "PreStartContainer", MESSAGES["PreStartContainerRequest"](devices_ids=device_ids)
        )

    async def close(self) -> None:
        await self._channel.close()

    def _call(self, name: str, request: Any) -> Any:
        return DEVICE_PLUGIN.call(self._channel, name)(request)
