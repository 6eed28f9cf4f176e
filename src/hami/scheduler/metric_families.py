"""Families of cluster metrics: from a snapshot to lines of text.

The text is written without a client library: a large cluster has hundreds of thousands of lines,
for which a library would take seconds. The format wants all samples of a family together, so each
family makes one pass over the snapshot. Lines are made one by one, when they are asked for.

Unlike HAMi, which always writes 0, `container_index` is the container's index in the pod, init
containers first. Init containers that have ended hold nothing. Pods on unknown nodes are left out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence

import msgspec

from hami.cluster.pod_info import PodInfo
from hami.scheduler.cluster_snapshot import ClusterUse, Column, NodeUse, Snapshot
from hami.serving import metrics
from hami.wire.node_register import RegisteredCard
from hami.wire.objects import ContainerKind

MIB = 2**20
_PERCENT = 100


class Family(msgspec.Struct, frozen=True):
    name: str
    help: str
    lines: Callable[[Snapshot], Iterator[str]]


def _template(name: str, labels: Sequence[str]) -> str:
    """Return a line with `%s` for the value of each label and of the sample."""
    pairs = "".join(f'{label}="%s",' for label in labels)
    return f'{name}{{{pairs}zone="vGPU"}} %s\n'


def empty_family(name: str, text: str) -> Family:
    """Announce a family without samples: dashboards that ask for it see none, not an error."""
    return Family(name, text, lambda _: iter(()))


# Cards.

_NODE, _UUID, _INDEX, _CORES, _MEMORY, _TYPE = range(6)
_NAMES = (
    *("node", "device_uuid", "device_index"),
    *("device_cores", "device_memory_limit", "device_type"),
)
_OLD_NAMES = ("nodeid", "deviceuuid", "deviceidx", "devicecores", "devicememorylimit", "devicetype")
_USUAL = (_NODE, _UUID, _INDEX, _TYPE)
WITH_CORES = (_NODE, _UUID, _INDEX, _CORES, _TYPE)
OVERVIEW = (_NODE, _UUID, _INDEX, _CORES, _MEMORY, _TYPE)
OLD_SHORT = (_NODE, _UUID, _INDEX)

#: A card's sample, from the card and its number in the family's column; None: it has none.
_CardValue = Callable[[RegisteredCard, int], int | float | None]


def card_family(
    name: str,
    text: str,
    value: _CardValue,
    *,
    column: Column = "memory",
    labels: Sequence[int] = _USUAL,
    old: bool = False,
) -> Family:
    names = _OLD_NAMES if old else _NAMES
    template = _template(name, [names[at] for at in labels])
    pick = operator.itemgetter(*labels)

    def lines(snapshot: Snapshot) -> Iterator[str]:
        node, escaped = "", ""
        for on_node, card, number in snapshot.card_numbers(column):
            if on_node != node:
                node, escaped = on_node, metrics.escape_label(on_node)
            sample = value(card, number)
            if sample is not None:
                yield template % (*pick(_texts(escaped, card)), sample)

    return Family(name, text, lines)


def _texts(node: str, card: RegisteredCard) -> tuple[object, ...]:
    uuid, kind = metrics.escape_label(card.id), metrics.escape_label(card.type)
    return node, uuid, card.index, card.devcore, card.devmem, kind


def memory_limit(card: RegisteredCard, _number: int) -> int:
    return card.devmem * MIB


def memory_bytes(_card: RegisteredCard, number: int) -> int:
    return number * MIB


def memory_ratio(card: RegisteredCard, number: int) -> float | None:
    return number / card.devmem if card.devmem > 0 else None


def core_limit(card: RegisteredCard, _number: int) -> int:
    return _PERCENT if _is_amd(card) else card.devcore


def core_percent(card: RegisteredCard, number: int) -> int:
    return _percent(number, card)


def raw_core_limit(card: RegisteredCard, _number: int) -> int:
    return card.devcore


def raw_number(_card: RegisteredCard, number: int) -> int:
    return number


def _is_amd(card: RegisteredCard) -> bool:
    """Return whether cores are counted as compute units, of which there are any number."""
    return card.type.upper().startswith("AMD")


def _percent(cores: int, card: RegisteredCard) -> int:
    """Return percent of a card; of compute units rounded up."""
    if not _is_amd(card) or card.devcore <= 0:
        return cores
    return -(-_PERCENT * cores // card.devcore)


# Nodes and the cluster.


def node_family(name: str, text: str, value: Callable[[NodeUse], int]) -> Family:
    template = _template(name, ("node",))

    def lines(snapshot: Snapshot) -> Iterator[str]:
        for node in snapshot.node_use():
            yield template % (metrics.escape_label(node.name), value(node))

    return Family(name, text, lines)


def cluster_family(name: str, text: str, value: Callable[[ClusterUse], int]) -> Family:
    template = _template(name, ())

    def lines(snapshot: Snapshot) -> Iterator[str]:
        yield template % value(snapshot.cluster_use())

    return Family(name, text, lines)


# Shares of containers.


class _Share(msgspec.Struct, frozen=True, gc=False):
    """All that one container holds of one card."""

    container: int
    vendor: str
    card: str
    #: MiB and percent.
    memory: int
    cores: int


_SHARE_NAMES = ("namespace", "node", "pod", "container_index", "device_uuid")
_OLD_SHARE_NAMES = ("podnamespace", "nodename", "podname", "containeridx", "deviceuuid")


def share_family(
    name: str, text: str, value: Callable[[Snapshot, PodInfo, _Share], int], *, old: bool = False
) -> Family:
    template = _template(name, _OLD_SHARE_NAMES if old else _SHARE_NAMES)

    def lines(snapshot: Snapshot) -> Iterator[str]:
        for info in snapshot.pods:
            if info.node not in snapshot.nodes:
                continue
            pod = tuple(map(metrics.escape_label, (info.namespace, info.node, info.name)))
            for share in _shares(info):
                sample = value(snapshot, info, share)
                card = metrics.escape_label(share.card)
                yield template % (*pod, share.container, card, sample)

    return Family(name, text, lines)


def _shares(info: PodInfo) -> list[_Share]:
    sums: dict[tuple[int, str], _Share] = {}
    for vendor, containers in info.shares:
        for container, shares in enumerate(containers):
            if info.init_done and info.kinds[container] is ContainerKind.INIT:
                continue
            for share in shares:
                had = sums.get((container, share.card))
                sums[container, share.card] = _Share(
                    container,
                    vendor,
                    share.card,
                    share.memory_mib + (had.memory if had else 0),
                    share.cores + (had.cores if had else 0),
                )
    return list(sums.values())


def share_memory(_snapshot: Snapshot, _info: PodInfo, share: _Share) -> int:
    return share.memory * MIB


def share_raw_cores(_snapshot: Snapshot, _info: PodInfo, share: _Share) -> int:
    return share.cores


def share_cores(snapshot: Snapshot, info: PodInfo, share: _Share) -> int:
    cards = snapshot.nodes[info.node].cards.get(share.vendor, ())
    # Only AMD counts otherwise, and finding the card costs more than all the rest.
    if not (cards and _is_amd(cards[0])):
        return share.cores
    card = next((card for card in cards if card.id == share.card), None)
    return share.cores if card is None else _percent(share.cores, card)


# Quotas.


def quota_used_family(name: str, text: str, labels: Sequence[str]) -> Family:
    template = _template(name, labels)

    def lines(snapshot: Snapshot) -> Iterator[str]:
        for (namespace, resource), used in _quota_use(snapshot).items():
            limit = snapshot.quota_limits.get((namespace, resource), 0)
            names = (metrics.escape_label(namespace), metrics.escape_label(resource))
            yield template % (*names, limit, used)

    return Family(name, text, lines)


def quota_limit_family(name: str, text: str) -> Family:
    template = _template(name, ("namespace", "quota_name"))

    def lines(snapshot: Snapshot) -> Iterator[str]:
        for (namespace, resource), limit in snapshot.quota_limits.items():
            names = (metrics.escape_label(namespace), metrics.escape_label(resource))
            yield template % (*names, limit)

    return Family(name, text, lines)


def _quota_use(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """Return (namespace, resource) -> use in MiB or percent, wherever there is use or a limit."""
    found = dict.fromkeys(snapshot.quota_limits, 0)
    for (namespace, vendor), amounts in snapshot.quota_used.items():
        resources = snapshot.vendors[vendor].resources
        for resource, used in zip((resources.memory, resources.cores), amounts, strict=True):
            key = (namespace, resource)
            if resource and (used or key in found):
                found[key] = found.get(key, 0) + used
    return found
