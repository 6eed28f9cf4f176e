"""Metrics of the whole cluster: cards, shares of containers, quotas.

Names and labels are HAMi's (docs/designs/006-hami-protocol.md), so that its dashboards work; the
old names are written, too, when asked for. The text is written without a client library: a large
cluster has hundreds of thousands of lines, for which a library would take seconds. The format wants
all samples of a family together, so there is one pass over the cluster per family.

The text is made in small chunks, and between two of them the cluster changes. So a pass goes over
a copy of the names, reads each again, and leaves out what was deleted.

Unlike HAMi, which always writes 0, `container_index` is the container's index in the pod, init
containers first. Init containers that have ended hold nothing. Pods on unknown nodes are left out.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec

from hami.cluster.pod_info import PodInfo
from hami.cluster.state import Cluster
from hami.serving import metrics
from hami.wire.node_register import RegisteredCard
from hami.wire.objects import ContainerKind

#: Lines per chunk: well below a millisecond's work.
_CHUNK = 200
_MIB = 2**20
_PERCENT = 100


async def families(cluster: Cluster, *, legacy: bool) -> AsyncIterator[bytes]:
    """Yield the text chunk by chunk; the cluster may change in between."""
    for family in (*_FAMILIES, *(_LEGACY if legacy else ())):
        yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} gauge\n".encode()
        lines = family.lines(cluster)
        while chunk := "".join(itertools.islice(lines, _CHUNK)):
            yield chunk.encode("utf-8", "replace")


class _Family(msgspec.Struct, frozen=True):
    name: str
    help: str
    lines: Callable[[Cluster], Iterator[str]]


def _template(name: str, labels: Sequence[str]) -> str:
    """Return a line with `%s` for the value of each label and of the sample."""
    pairs = "".join(f'{label}="%s",' for label in labels)
    return f'{name}{{{pairs}zone="vGPU"}} %s\n'


def _empty_family(name: str, text: str) -> _Family:
    """Announce a family without samples: dashboards that ask for it see none, not an error."""
    return _Family(name, text, lambda _: iter(()))


# Cards.


class _Card(msgspec.Struct, frozen=True, gc=False):
    """A card at one moment, copied out of the tables; reservations count as in use."""

    registered: RegisteredCard
    #: Containers that share it; MiB and percent in use.
    used: int
    memory: int
    cores: int
    #: Values of labels: node, uuid, index, cores, memory limit, type.
    texts: tuple[str, ...]


_NODE, _UUID, _INDEX, _CORES, _MEMORY, _TYPE = range(6)
_NAMES = (
    *("node", "device_uuid", "device_index"),
    *("device_cores", "device_memory_limit", "device_type"),
)
_OLD_NAMES = ("nodeid", "deviceuuid", "deviceidx", "devicecores", "devicememorylimit", "devicetype")
_USUAL = (_NODE, _UUID, _INDEX, _TYPE)
_WITH_CORES = (_NODE, _UUID, _INDEX, _CORES, _TYPE)
_OVERVIEW = (_NODE, _UUID, _INDEX, _CORES, _MEMORY, _TYPE)
_OLD_SHORT = (_NODE, _UUID, _INDEX)

#: A card's sample in a family; None: it has none.
_Value = Callable[[_Card], int | float | None]


def _card_family(
    name: str, text: str, value: _Value, *, labels: Sequence[int] = _USUAL, old: bool = False
) -> _Family:
    names = _OLD_NAMES if old else _NAMES
    template = _template(name, [names[at] for at in labels])
    pick = operator.itemgetter(*labels)

    def lines(cluster: Cluster) -> Iterator[str]:
        for node in list(cluster.nodes):
            for card in _cards_on(cluster, node):
                sample = value(card)
                if sample is not None:
                    yield template % (*pick(card.texts), sample)

    return _Family(name, text, lines)


def _cards_on(cluster: Cluster, node: str) -> list[_Card]:
    info, place = cluster.nodes.get(node), cluster.locate(node)
    if info is None or place is None:
        return []
    table, row = place
    name = metrics.escape_label(node)
    found = []
    for vendor, cards in info.cards.items():
        columns, here = table.cards[vendor], (slice(len(cards)), row)  # in the order of `cards`
        used = columns.used[here].tolist()
        memory = (columns.memory[here] - columns.memory_left[here]).tolist()
        cores = (columns.cores[here] - columns.cores_left[here]).tolist()
        found += [
            _Card(card, containers, mib, percent, _texts(name, card))
            for card, containers, mib, percent in zip(cards, used, memory, cores, strict=True)
        ]
    return found


def _texts(node: str, card: RegisteredCard) -> tuple[str, ...]:
    return (
        node,
        metrics.escape_label(card.id),
        str(card.index),
        str(card.devcore),
        str(card.devmem),
        metrics.escape_label(card.type),
    )


def _core_limit(card: _Card) -> int:
    return _PERCENT if _is_amd(card.registered) else card.registered.devcore


def _core_use(card: _Card) -> int:
    return _percent(card.cores, card.registered)


def _memory_ratio(card: _Card) -> float | None:
    return card.memory / card.registered.devmem if card.registered.devmem > 0 else None


def _is_amd(card: RegisteredCard) -> bool:
    """Return whether cores are counted as compute units, of which there are any number."""
    return card.type.upper().startswith("AMD")


def _percent(cores: int, card: RegisteredCard) -> int:
    """Return percent of a card; of compute units rounded up."""
    if not _is_amd(card) or card.devcore <= 0:
        return cores
    return -(-_PERCENT * cores // card.devcore)


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


def _share_family(
    name: str, text: str, value: Callable[[Cluster, PodInfo, _Share], int], *, old: bool = False
) -> _Family:
    template = _template(name, _OLD_SHARE_NAMES if old else _SHARE_NAMES)

    def lines(cluster: Cluster) -> Iterator[str]:
        for info in _pods(cluster):
            pod = tuple(map(metrics.escape_label, (info.namespace, info.node, info.name)))
            for share in _shares(info):
                sample = value(cluster, info, share)
                card = metrics.escape_label(share.card)
                yield template % (*pod, share.container, card, sample)

    return _Family(name, text, lines)


def _pods(cluster: Cluster) -> Iterator[PodInfo]:
    """Yield pods with cards, node by node: copying all of them at once would delay requests."""
    for node in list(cluster.nodes):
        # A node that is deleted now takes its pods' samples along, as it takes its cards'.
        yield from cluster.pods_on(node)


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


def _share_memory(_cluster: Cluster, _info: PodInfo, share: _Share) -> int:
    return share.memory * _MIB


def _share_raw_cores(_cluster: Cluster, _info: PodInfo, share: _Share) -> int:
    return share.cores


def _share_cores(cluster: Cluster, info: PodInfo, share: _Share) -> int:
    node = cluster.nodes.get(info.node)
    cards = node.cards.get(share.vendor, ()) if node is not None else ()
    # Only AMD counts otherwise, and finding the card costs more than all the rest.
    if not (cards and _is_amd(cards[0])):
        return share.cores
    card = next((card for card in cards if card.id == share.card), None)
    return share.cores if card is None else _percent(share.cores, card)


# Quotas.


def _quota_used_family(name: str, text: str, labels: Sequence[str]) -> _Family:
    template = _template(name, labels)

    def lines(cluster: Cluster) -> Iterator[str]:
        for (namespace, resource), used in _quota_use(cluster).items():
            limit = cluster.quotas.limit(namespace, resource)
            names = (metrics.escape_label(namespace), metrics.escape_label(resource))
            yield template % (*names, limit or 0, used)

    return _Family(name, text, lines)


def _quota_limit_family(name: str, text: str) -> _Family:
    template = _template(name, ("namespace", "quota_name"))

    def lines(cluster: Cluster) -> Iterator[str]:
        for namespace, resource in _quota_use(cluster):
            limit = cluster.quotas.limit(namespace, resource)
            if limit is not None:
                names = (metrics.escape_label(namespace), metrics.escape_label(resource))
                yield template % (*names, limit)

    return _Family(name, text, lines)


def _quota_use(cluster: Cluster) -> dict[tuple[str, str], int]:
    """Return (namespace, resource) -> use in MiB or percent, wherever there is use or a limit."""
    found = {
        (limits.namespace, resource): 0
        for limits in cluster.quotas.all_limits().values()
        for resource in limits.limits
    }
    for (namespace, vendor), amounts in cluster.quotas.all_used().items():
        resources = cluster.vendors[vendor].resources
        for resource, used in zip((resources.memory, resources.cores), amounts, strict=True):
            key = (namespace, resource)
            if resource and (used or key in found):
                found[key] = found.get(key, 0) + used
    return found


_FAMILIES = (
    _card_family(
        "hami_gpu_memory_limit_bytes",
        "Memory that containers can be given of a card.",
        lambda card: card.registered.devmem * _MIB,
    ),
    _card_family(
        "hami_gpu_core_limit_ratio",
        "Compute that containers can be given of a card, in percent.",
        _core_limit,
    ),
    _card_family(
        "hami_gpu_memory_allocated_bytes",
        "Memory of a card that containers have been given.",
        lambda card: card.memory * _MIB,
        labels=_WITH_CORES,
    ),
    _card_family("hami_gpu_shared_count", "Containers that share a card.", lambda card: card.used),
    _card_family(
        "hami_gpu_core_allocated_ratio",
        "Compute of a card that containers have been given, in percent.",
        _core_use,
    ),
    _card_family(
        "hami_node_gpu_overview",
        "Memory of a card that containers have been given, with the limits of the card as labels.",
        lambda card: card.memory * _MIB,
        labels=_OVERVIEW,
    ),
    _card_family(
        "hami_node_gpu_memory_allocated_ratio",
        "Part of a card's memory that containers have been given, from 0 to 1.",
        _memory_ratio,
    ),
    _empty_family("hami_node_gpu_mig_instance_info", "MIG slices that exist: always 1."),
    _quota_used_family(
        "hami_resource_quota_used",
        "What the pods of a namespace hold of a resource, in MiB or percent.",
        ("namespace", "quota_name", "limit"),
    ),
    _quota_limit_family(
        "hami_resource_quota_limit",
        "What the pods of a namespace may hold of a resource, in its own unit.",
    ),
    _share_family(
        "hami_vgpu_memory_allocated_bytes",
        "Memory of a card that a container has been given.",
        _share_memory,
    ),
    _share_family(
        "hami_vgpu_core_allocated_ratio",
        "Compute of a card that a container has been given, in percent; 0 is unlimited.",
        _share_cores,
    ),
)

_LEGACY = (
    _card_family(
        "GPUDeviceMemoryLimit",
        "Old name of hami_gpu_memory_limit_bytes.",
        lambda card: card.registered.devmem * _MIB,
        old=True,
    ),
    _card_family(
        "GPUDeviceCoreLimit",
        "Old name of hami_gpu_core_limit_ratio, in the unit of the card.",
        lambda card: card.registered.devcore,
        old=True,
    ),
    _card_family(
        "GPUDeviceMemoryAllocated",
        "Old name of hami_gpu_memory_allocated_bytes.",
        lambda card: card.memory * _MIB,
        labels=_WITH_CORES,
        old=True,
    ),
    _card_family(
        "GPUDeviceSharedNum", "Old name of hami_gpu_shared_count.", lambda card: card.used, old=True
    ),
    _card_family(
        "GPUDeviceCoreAllocated",
        "Old name of hami_gpu_core_allocated_ratio, in the unit of the card.",
        lambda card: card.cores,
        old=True,
    ),
    _card_family(
        "nodeGPUOverview",
        "Old name of hami_node_gpu_overview.",
        lambda card: card.memory * _MIB,
        labels=_OVERVIEW,
        old=True,
    ),
    _card_family(
        "nodeGPUMemoryPercentage",
        "Old name of hami_node_gpu_memory_allocated_ratio.",
        _memory_ratio,
        labels=_OLD_SHORT,
        old=True,
    ),
    _empty_family("nodeGPUMigInstance", "Old name of hami_node_gpu_mig_instance_info."),
    _quota_used_family(
        "QuotaUsed",
        "Old name of hami_resource_quota_used.",
        ("quotanamespace", "quotaName", "limit"),
    ),
    _share_family(
        "vGPUMemoryAllocated",
        "Old name of hami_vgpu_memory_allocated_bytes.",
        _share_memory,
        old=True,
    ),
    _share_family(
        "vGPUCoreAllocated",
        "Old name of hami_vgpu_core_allocated_ratio, in the unit of the card.",
        _share_raw_cores,
        old=True,
    ),
)
