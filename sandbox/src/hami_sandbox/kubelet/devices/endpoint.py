"""A device plugin's registration, calls and device list.

A new list replaces the one before. When a plugin disconnects its devices stay known, all of them
unhealthy: the node still has them, and no container can get one. A registration ends with the
stream of lists; then every call fails, and the plugin has to register again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from hami.agent.kubelet import grpc, kubelet_api
from hami.agent.kubelet.grpc import Call, Message
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami_sandbox.kubelet.devices.pods import DevicesError


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()

    @classmethod
    def of(cls, message: Message) -> Self:
        nodes = (message["topology"] or {"nodes": ()})["nodes"]
        healthy = message["health"] == kubelet_api.HEALTHY
        return cls(message["ID"], healthy, tuple(node["ID"] for node in nodes))


class Inventory:
    def __init__(self) -> None:
        self._devices: dict[str, dict[str, Device]] = {}
        self._healthy: dict[str, frozenset[str]] = {}

    @property
    def healthy(self) -> Mapping[str, frozenset[str]]:
        """The ids that can be given, by resource; of all resources that ever were listed."""
        return self._healthy

    def put(self, resource: str, devices: Iterable[Device]) -> None:
        self._devices[resource] = {device.id: device for device in devices}
        self._healthy[resource] = frozenset(
            device.id for device in self._devices[resource].values() if device.healthy
        )

    def mark_unhealthy(self, resource: str) -> None:
        if resource in self._healthy:
            self._healthy[resource] = frozenset()

    def remove(self, resource: str) -> None:
        self._devices.pop(resource, None)
        self._healthy.pop(resource, None)

    def count(self, resource: str) -> int:
        return len(self._devices.get(resource, ()))

    def healthy_devices(self) -> dict[str, list[Device]]:
        return {
            resource: [self._devices[resource][id_] for id_ in ids]
            for resource, ids in self._healthy.items()
        }

    def numa_nodes(self, resource: str, id_: str) -> tuple[int, ...]:
        device = self._devices.get(resource, {}).get(id_)
        return device.numa_nodes if device else ()


_log = logging.getLogger(__name__)

#: Seconds, kubelet's. Allocate has no limit there.
DIAL_LIMIT = 10.0
PRE_START_LIMIT = 30.0

_GO_CODES = {"CANCELLED": "Canceled", "OK": "OK"}
_TOO_LATE = "context deadline exceeded"
_CLOSING = "rpc error: code = Canceled desc = grpc: the client connection is closing"


class Endpoint:
    def __init__(self, resource: str, socket: Path | None) -> None:
        """Represent a plugin; no socket: one that an earlier kubelet knew."""
        self.resource = resource
        #: False until the plugin's options are known.
        self.pre_start_required = False
        self.preferred_allocation = False
        self.stopped = True
        self._channel: Any = None if socket is None else grpc.channel(socket)
        self._listening: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Connect to the plugin and read its options; raises DevicesError."""
        try:
            async with asyncio.timeout(DIAL_LIMIT):
                await self._channel.channel_ready()
        except TimeoutError as error:
            raise DevicesError(f"failed to dial device plugin: {_TOO_LATE}") from error
        try:
            options = await self._call(kubelet_api.OPTIONS, {})
        except DevicesError as error:
            raise DevicesError(f"failed to get device plugin options: {error}") from error
        self.pre_start_required = options["pre_start_required"]
        self.preferred_allocation = options["get_preferred_allocation_available"]
        self.stopped = False

    def listen(
        self, listed: Callable[[Self, list[Device]], None], ended: Callable[[Self], None]
    ) -> None:
        """Receive the plugin's lists until its stream ends."""
        self._listening = asyncio.create_task(self._listen(listed, ended))

    async def _listen(
        self, listed: Callable[[Self, list[Device]], None], ended: Callable[[Self], None]
    ) -> None:
        why = "the plugin ended it"
        try:
            async for message in kubelet_api.LIST_AND_WATCH.on(self._channel)({}):
                listed(self, [Device.of(device) for device in message["devices"]])
        except grpc.RpcError as error:
            why = in_go(error)
        self.stopped = True
        _log.warning("device plugin disconnected", extra={"resource": self.resource, "why": why})
        ended(self)

    async def close(self) -> None:
        """Disconnect, without a call of `ended`."""
        self.stopped = True
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        if self._channel is not None:
            await self._channel.close()

    async def allocate(self, ids: Collection[str]) -> AllocateResponse:
        self._check()
        request = {"container_requests": [{"device_ids": list(ids)}]}
        answers = (await self._call(kubelet_api.ALLOCATE, request))["container_responses"]
        if not answers:
            raise DevicesError("no containers return in allocation response ")
        return AllocateResponse.of(answers[0])

    async def preferred(
        self, available: Collection[str], must_include: Collection[str], size: int
    ) -> frozenset[str]:
        """Return the ids that the plugin prefers; empty if it has no preference."""
        if not self.preferred_allocation:
            return frozenset()
        request = {
            "container_requests": [
                {
                    "available_device_ids": list(available),
                    "must_include_device_ids": list(must_include),
                    "allocation_size": size,
                }
            ]
        }
        try:
            self._check()
            answers = (await self._call(kubelet_api.PREFERRED, request))["container_responses"]
        except DevicesError as error:
            raise DevicesError(
                f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            ) from error
        return frozenset(answers[0]["device_ids"]) if answers else frozenset()

    async def pre_start(self, ids: Collection[str]) -> None:
        try:
            self._check()
            request = {"device_ids": list(ids)}
            await self._call(kubelet_api.PRE_START, request, timeout=PRE_START_LIMIT)
        except DevicesError as error:
            raise DevicesError(
                f"device plugin PreStartContainer rpc failed with err: {error}"
            ) from error

    def _check(self) -> None:
        if self.stopped:
            raise DevicesError(f"endpoint {self.resource} has been stopped")

    async def _call(self, call: Call, request: Message, **options: Any) -> Message:
        try:
            answer: Message = await call.on(self._channel)(request, **options)
        except grpc.RpcError as error:
            raise DevicesError(in_go(error)) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise DevicesError(_CLOSING) from error  # the call was cancelled, not we
        return answer


def in_go(error: Any) -> str:
    """Return a failed call's error as Go's grpc writes it, as users know it from events."""
    name: str = error.code().name
    code = _GO_CODES.get(name) or "".join(word.capitalize() for word in name.split("_"))
    text = error.details()
    # grpc's words for a timeout differ from Go's.
    return f"rpc error: code = {code} desc = {_TOO_LATE if text == 'Deadline Exceeded' else text}"
