"""The devices that plugins have listed, by resource and health.

A list takes the place of the one before. When a plugin goes away its devices stay known, all of
them unhealthy: the node still has them, and nobody can be given one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Self

from hami.agent.kubelet import kubelet_api
from hami.agent.kubelet.grpc import Message


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
