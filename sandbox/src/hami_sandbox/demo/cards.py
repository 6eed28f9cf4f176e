"""Cards and pods as the demo shows them.

Cards are those that nodes register, with the shares that pods were granted of each.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hami.vendors import families, table
from hami.vendors.family import Family
from hami.vendors.table import Vendor
from hami.wire import codec, errors, node_marks, node_register, objects, shares


class Waiting(codec.Object, frozen=True):
    reason: str | None = None
    message: str | None = None


class SeenState(objects.ContainerState, frozen=True):
    waiting: Waiting | None = None


class SeenContainer(objects.ContainerStatus, frozen=True):
    state: SeenState | None = None


class SeenStatus(objects.PodStatus, frozen=True):
    reason: str | None = None
    message: str | None = None
    container_statuses: list[SeenContainer | None] | None = None


class SeenPod(objects.Pod, frozen=True):
    status: SeenStatus | None = None

    @property
    def grants(self) -> tuple[shares.Share, ...]:
        """The cards of all its containers, one after the other."""
        lists = [shares.salvage(self.annotation(key))[0] for key in _device_lists()]
        return tuple(grant for listed in lists for slot in listed for grant in slot)

    @property
    def holds(self) -> bool:
        """Whether its cards are taken: it is on a node and has not ended."""
        return bool(self.node_name) and not self.finished

    def troubles(self) -> str:
        """Return what keeps it from running, as its status has it; else empty."""
        return "; ".join(dict.fromkeys(_troubles(self.status or SeenStatus())))

    def variables(self) -> dict[str, str]:
        """Return the environment that its containers are given, later ones over earlier."""
        found: dict[str, str] = {}
        for _, container in self.containers():
            for variable in container.env or ():
                if variable is not None and variable.name:
                    found[variable.name] = variable.value or ""
        return found


def _troubles(status: SeenStatus) -> Iterator[str]:
    if status.reason or status.message:
        yield ": ".join(part for part in (status.reason, status.message) if part)
    for condition in status.conditions or ():
        if condition and condition.type == "PodScheduled" and condition.status == "False":
            yield condition.message or "no node was found"
    for container in status.container_statuses or ():
        waiting = container and container.state and container.state.waiting
        if waiting and (waiting.message or waiting.reason not in (None, "ContainerCreating")):
            yield ": ".join(part for part in (waiting.reason, waiting.message) if part)
        ended = container and container.state and container.state.terminated
        if ended and ended.exit_code:
            yield f"a container ended with code {ended.exit_code}"


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
        """Return what was granted beyond its size; it must be empty."""
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
    devices = [device for each in _families() for device in _read(each, node)]
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
    """Return a node's binding mode: late, lock and why, another vendor's, or no cards."""
    keys = _nvidia().annotations
    registered = node.annotation(keys.register)
    if not registered:
        others = any(_read(each, node) for each in _families())
        return "by its vendor's plugin" if others else "no cards registered"
    if node_marks.is_late(node.annotation(keys.binding), registered):
        return "late"
    reason = node.annotation(keys.lock_reason)
    return f"lock ({reason})" if reason else "lock"


def _read(family: Family, node: objects.Node) -> Sequence[node_register.RegisteredCard]:
    """Return a vendor's cards of a node; a register that does not decode has none."""
    try:
        if family.vendor == _nvidia():
            return _devices(node.annotation(family.vendor.annotations.register) or "[]")
        return family.read_cards(node)
    except errors.WireError:
        return ()


@functools.lru_cache(_REMEMBERED)
def _devices(register: str) -> list[node_register.RegisteredCard]:
    """Read an annotation; cached, because a thousand nodes have the same one."""
    devices = node_register.decode_json(register)
    return sorted(devices, key=lambda device: (device.index, device.id))


@functools.cache
def _families() -> tuple[Family, ...]:
    return tuple(map(families.of, table.built_in()))


@functools.cache
def _device_lists() -> tuple[str, ...]:
    return table.device_lists(table.built_in())


@functools.cache
def _nvidia() -> Vendor:
    return table.nvidia(table.built_in())
