"""GPUs and MIG instances that the nodes offer, and how many of them pods hold.

Informers of nodes and, where it matters what is *free*, of pods fill it; so an answer costs no
request to the API server. A resource exists if any node has at least one to allocate: that is the
kind, not what is left of it, and it holds with any device plugin.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Protocol

from hami.wire import errors, mig, objects, quantity, shares

_NOTHING: Mapping[str, int] = {}


class OfferingNode(Protocol):
    """The part of a watched node that counts here."""

    @property
    def name(self) -> str: ...

    #: Resource -> number to allocate; resources of which it has none are absent.
    @property
    def offered(self) -> Mapping[str, int]: ...


class HoldingPod(Protocol):
    """The part of a watched pod that counts here."""

    #: Empty while it has none.
    @property
    def node(self) -> str: ...

    #: Resource -> number that it requests; nothing once it has finished.
    @property
    def held(self) -> Mapping[str, int]: ...


class MigOffer:
    """Whole numbers of the resources in question, by node."""

    def __init__(self, gpu: str) -> None:
        #: Resource name of whole GPUs or shares; empty where only MIG instances count.
        self._gpu = gpu
        #: Node -> resource -> number to allocate.
        self._offered: dict[str, Mapping[str, int]] = {}
        #: Resource -> nodes that offer it.
        self._where: dict[str, set[str]] = {}
        #: (node, resource) -> number that its pods hold; the node of unscheduled pods is empty.
        self._held: collections.Counter[tuple[str, str]] = collections.Counter()
        #: Resource -> free in total, and on the node that has most; until something changes.
        self._free: dict[str, tuple[int, int]] = {}

    def exists(self, resource: str) -> bool:
        """Return whether some node has the resource at all."""
        return resource in self._where

    def available(self, resource: str, number: int) -> bool:
        """Return whether some node has so many left, less those that unscheduled pods request."""
        free = self._free.get(resource)
        if free is None:
            left = [
                max(self._offered[node][resource] - self._held[node, resource], 0)
                for node in self._where.get(resource, ())
            ]
            free = self._free[resource] = sum(left), max(left, default=0)
        total, most = free
        return most >= number and total - self._held["", resource] >= number

    # Readers.

    def offered(self, node: objects.Node) -> Mapping[str, int]:
        """Return how many of each resource in question a node has to allocate."""
        return self._whole(node.allocatable)

    def held(self, pod: objects.Pod) -> Mapping[str, int]:
        """Return how many of each resource in question a pod holds, or waits for."""
        if pod.finished:
            return _NOTHING
        requests = [(kind, self._requests(container)) for kind, container in pod.containers()]
        resources = {resource for _, amounts in requests for resource in amounts}
        return {
            resource: shares.peak((kind, amounts.get(resource, 0)) for kind, amounts in requests)
            for resource in resources
        }

    def _requests(self, container: objects.Container) -> dict[str, int]:
        resources = container.resources
        if resources is None:
            return {}
        return {**self._whole(resources.requests), **self._whole(resources.limits)}

    def _whole(self, amounts: Mapping[str, objects.Amount | None] | None) -> dict[str, int]:
        found = {}
        for resource, amount in (amounts or _NOTHING).items():
            if amount is None or not self._counts(resource):
                continue
            try:
                number = quantity.exact_integer(amount, what=resource, high=quantity.INT64_MAX)
            except errors.WireError:
                continue  # no device plugin can allocate a part of one
            if number:
                found[resource] = number
        return found

    def _counts(self, resource: str) -> bool:
        return resource == self._gpu or resource.startswith(mig.RESOURCE_PREFIX)

    # Handlers.

    def on_node(self, old: OfferingNode | None, new: OfferingNode | None) -> None:
        """Handle a change of a node."""
        if old is not None:
            for resource in self._offered.pop(old.name, ()):
                self._free.pop(resource, None)
                nodes = self._where[resource]
                nodes.discard(old.name)
                if not nodes:
                    del self._where[resource]
        if new is not None and new.offered:
            self._offered[new.name] = new.offered
            for resource in new.offered:
                self._free.pop(resource, None)
                self._where.setdefault(resource, set()).add(new.name)

    def on_pod(self, old: HoldingPod | None, new: HoldingPod | None) -> None:
        """Handle a change of a pod."""
        if old is not None:
            self._count(old, -1)
        if new is not None:
            self._count(new, 1)

    def _count(self, pod: HoldingPod, sign: int) -> None:
        for resource, number in pod.held.items():
            self._free.pop(resource, None)
            self._held[pod.node, resource] += sign * number
            if not self._held[pod.node, resource]:
                del self._held[pod.node, resource]
