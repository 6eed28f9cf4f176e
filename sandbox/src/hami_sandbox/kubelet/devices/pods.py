"""Pods as the device manager needs them; its errors.

The errors have kubelet's own words: users and tests search for them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Self

from hami.wire import quantity
from hami.wire.objects import ContainerKind
from hami_sandbox.kubelet.pod import Object, is_sidecar


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    name: str
    kind: ContainerKind
    limits: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    uid: str
    namespace: str
    name: str
    #: In the order in which kubelet allocates: init containers first.
    containers: tuple[Container, ...]

    @classmethod
    def of(cls, pod: Object) -> Self:
        meta = pod["metadata"]
        containers = tuple(_containers(pod["spec"]))
        return cls(meta["uid"], meta.get("namespace") or "default", meta["name"], containers)

    def container(self, name: str) -> Container | None:
        return next((each for each in self.containers if each.name == name), None)


def _containers(spec: Object) -> Iterator[Container]:
    for container in spec.get("initContainers") or ():
        kind = ContainerKind.SIDECAR if is_sidecar(container) else ContainerKind.INIT
        yield _container(container, kind)
    for container in spec.get("containers") or ():
        yield _container(container, ContainerKind.APP)


def _container(container: Object, kind: ContainerKind) -> Container:
    limits = (container.get("resources") or {}).get("limits") or {}
    counts = {
        resource: math.ceil(quantity.parse(amount, what=f"limit of {resource}"))
        for resource, amount in limits.items()
    }
    return Container(container["name"], kind, counts)


class DevicesError(Exception):
    """An allocation cannot be made; the text is kubelet's."""


class AdmissionError(Exception):
    """A pod is not admitted: it fails for good, with this reason and message in its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class StartError(DevicesError):
    """A container cannot be made now (`CreateContainerConfigError`); kubelet tries again."""
