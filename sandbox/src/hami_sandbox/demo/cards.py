"""The cards of the fleet as nodes register them, with what pods were granted of each."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from hami.vendors import table
from hami.vendors.table import Vendor
from hami.wire import errors, node_marks, node_register, objects
from hami_sandbox.demo.pods import SeenPod

#: More nodes than a fleet has.
_REMEMBERED = 8192


class Card(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    uuid: str
    index: int
    type: str
    healthy: bool
    #: MiB, percent, and how many containers may share it.
    memory: int
    cores: int
    slots: int
    granted_memory: int = 0
    granted_cores: int = 0
    shares: int = 0

    def overgranted(self) -> str:
        """Say what of it was given out more than once; it must be nothing."""
        for granted, has, unit in (
            (self.granted_memory, self.memory, "MiB"),
            (self.granted_cores, self.cores, "% of compute"),
            (self.shares, self.slots, "shares"),
        ):
            if granted > has:
                return f"card {self.index} of {self.node}: {granted} of {has} {unit} are granted"
        return ""


def of_node(node: objects.Node, pods: Iterable[SeenPod]) -> list[Card]:
    """Return a node's cards in the order of their indexes; `pods` are those of the node."""
    try:
        devices = _devices(node.annotation(_nvidia().annotations.register) or "[]")
    except errors.WireError:
        return []
    memory: defaultdict[str, int] = defaultdict(int)
    cores: defaultdict[str, int] = defaultdict(int)
    shares: defaultdict[str, int] = defaultdict(int)
    for pod in pods:
        for grant in pod.grants if pod.holds else ():
            memory[grant.card] += grant.memory_mib
            cores[grant.card] += grant.cores
            shares[grant.card] += 1
    return [
        Card(
            node=node.name,
            uuid=device.id,
            index=device.index,
            type=device.type,
            healthy=device.health,
            memory=device.devmem,
            cores=device.devcore,
            slots=device.count,
            granted_memory=memory[device.id],
            granted_cores=cores[device.id],
            shares=shares[device.id],
        )
        for device in devices
    ]


def of_all(nodes: Iterable[objects.Node], pods: Iterable[SeenPod]) -> dict[str, list[Card]]:
    """Return the cards of every node, by the nodes' names."""
    placed: defaultdict[str, list[SeenPod]] = defaultdict(list)
    for pod in pods:
        if pod.node_name:
            placed[pod.node_name].append(pod)
    found = {node.name: of_node(node, placed[node.name]) for node in nodes}
    return dict(sorted(found.items()))


def binding(node: objects.Node) -> str:
    """Say how a node's agent learns whom it serves: late, with a lock (and why), or not at all."""
    keys = _nvidia().annotations
    registered = node.annotation(keys.register)
    if not registered:
        return "no cards registered"
    if node_marks.is_late(node.annotation(keys.binding), registered):
        return "late"
    reason = node.annotation(keys.lock_reason)
    return f"lock ({reason})" if reason else "lock"


@functools.lru_cache(_REMEMBERED)
def _devices(register: str) -> list[node_register.RegisteredCard]:
    """Read an annotation; a thousand nodes say the same again at every look."""
    devices = node_register.decode_json(register)
    return sorted(devices, key=lambda device: (device.index, device.id))


@functools.cache
def _nvidia() -> Vendor:
    return next(vendor for vendor in table.built_in() if vendor.section == "nvidia")
