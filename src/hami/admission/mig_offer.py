"""Which GPUs and MIG instances the nodes offer, and what of them is asked for.

Filled by watches of nodes and, where it is to tell what is *free*, of pods; so an answer costs no
request to the API server. A resource exists if any node has at least one to allocate: that is the
kind, not what is left of it, and it holds with any device plugin.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from hami.wire import errors, mig, objects, quantity, shares

_NOTHING: Mapping[str, int] = {}


class _Held(msgspec.Struct, frozen=True):
    """What a pod asks for, and where."""

    #: Empty: it waits for one.
    node: str
    amounts: Mapping[str, int]


class MigOffer:
    """Whole numbers of the resources in question, by node."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        #: Node -> resource -> what it can allocate; resources of which it has none are left out.
        self._offered: dict[str, dict[str, int]] = {}
        #: Resource -> nodes that offer it.
        self._where: dict[str, set[str]] = {}
        #: (node, resource) -> what its pods ask for; the node of waiting pods is empty.
        self._asked: collections.Counter[tuple[str, str]] = collections.Counter()
        self._held: dict[str, _Held] = {}
        #: Resource -> what is free in all, and on the node that has most; until something changes.
        self._free: dict[str, tuple[int, int]] = {}
        self.nodes = _NodeSink(self)
        self.pods = _PodSink(self)

    def exists(self, resource: str) -> bool:
        """Whether some node has it at all."""
        return resource in self._where

    def available(self, resource: str, number: int) -> bool:
        """Whether some node has so many left, with those taken off that waiting pods want."""
        free = self._free.get(resource)
        if free is None:
            left = [
                max(self._offered[node][resource] - self._asked[node, resource], 0)
                for node in self._where.get(resource, ())
            ]
            free = self._free[resource] = sum(left), max(left, default=0)
        total, most = free
        return most >= number and total - self._asked["", resource] >= number

    def _counts(self, resource: str) -> bool:
        return resource == self._gpu or resource.startswith(mig.RESOURCE_PREFIX)

    def _whole(self, amounts: Mapping[str, objects.Amount | None] | None) -> dict[str, int]:
        found = {}
        for resource, amount in (amounts or _NOTHING).items():
            if amount is None or not self._counts(resource):
                continue
            try:
                number = quantity.exact_integer(amount, what=resource, high=quantity.INT64_MAX)
            except errors.WireError:
                continue  # nobody can allocate a part of one
            if number:
                found[resource] = number
        return found

    def set_node(self, name: str, allocatable: Mapping[str, objects.Amount | None]) -> None:
        offered = self._whole(allocatable)
        for resource in self._offered.pop(name, ()):
            self._free.pop(resource, None)
            nodes = self._where[resource]
            nodes.discard(name)
            if not nodes:
                del self._where[resource]
        if offered:
            self._offered[name] = offered
        for resource in offered:
            self._free.pop(resource, None)
            self._where.setdefault(resource, set()).add(name)

    def set_pod(self, uid: str, pod: objects.Pod | None) -> None:
        held = self._held.pop(uid, None)
        if held is not None:
            self._count(held, -1)
        if pod is None or pod.finished:
            return
        asked = [(kind, self._of(container)) for kind, container in pod.containers()]
        resources = {resource for _, amounts in asked for resource in amounts}
        amounts = {
            resource: shares.peak((kind, amounts.get(resource, 0)) for kind, amounts in asked)
            for resource in resources
        }
        if amounts:
            self._held[uid] = held = _Held(pod.node_name, amounts)
            self._count(held, 1)

    def _of(self, container: objects.Container) -> dict[str, int]:
        resources = container.resources
        if resources is None:
            return {}
        return {**self._whole(resources.requests), **self._whole(resources.limits)}

    def _count(self, held: _Held, sign: int) -> None:
        for resource, number in held.amounts.items():
            self._free.pop(resource, None)
            self._asked[held.node, resource] += sign * number
            if not self._asked[held.node, resource]:
                del self._asked[held.node, resource]


class _NodeSink:
    def __init__(self, inventory: MigOffer) -> None:
        self._inventory = inventory
        self._names: dict[str, str] = {}

    def put(self, node: objects.Node) -> None:
        self._names[node.uid] = node.name
        self._inventory.set_node(node.name, node.allocatable)

    def drop(self, uid: str) -> None:
        name = self._names.pop(uid, None)
        # Deleted and made again under the same name: the new one stays.
        if name is not None and name not in self._names.values():
            self._inventory.set_node(name, {})

    def retain(self, uids: AbstractSet[str]) -> None:
        _retain(self._names, uids, self.drop)


class _PodSink:
    def __init__(self, inventory: MigOffer) -> None:
        self._inventory = inventory
        self._seen: dict[str, None] = {}

    def put(self, pod: objects.Pod) -> None:
        self._seen[pod.uid] = None
        self._inventory.set_pod(pod.uid, pod)

    def drop(self, uid: str) -> None:
        self._seen.pop(uid, None)
        self._inventory.set_pod(uid, None)

    def retain(self, uids: AbstractSet[str]) -> None:
        _retain(self._seen, uids, self.drop)


def _retain(
    known: Mapping[str, object], uids: AbstractSet[str], drop: Callable[[str], None]
) -> None:
    for uid in [uid for uid in known if uid not in uids]:
        drop(uid)
