"""The cluster in Prometheus' text format: cards, what containers hold of them, quotas.

Names and labels are HAMi's, so that its dashboards work; the old names come too when asked for. It
is written by hand, because a large cluster has hundreds of thousands of lines, which a client
library would take seconds for. The format wants all samples of a family together, so there is one
pass over the cluster per family.

The text is made in small chunks, and between two of them the cluster changes. So a pass goes over
a copy of the names, asks for each anew, and leaves out what has gone.

Unlike HAMi, which always says 0, `container_index` is the container's place in the pod (init
containers first), with what that container holds. Init containers that have ended hold nothing.
Pods on nodes that are not known (deleted, say) are left out, as the cards there are.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec

from hami.cluster.pod_info import PodInfo
from hami.cluster.state import Cluster
from hami.serving import metrics
from hami.wire.mig import Allocation
from hami.wire.node_register import RegisteredCard
from hami.wire.objects import ContainerKind

#: Lines per chunk: well below a millisecond's work.
_CHUNK = 200
_MIB = 2**20
_PERCENT = 100

#: The MIG slices that exist on a node.
MigSlices = Callable[[str], Sequence[Allocation]]


async def families(
    cluster: Cluster, *, legacy: bool, mig_slices: MigSlices | None = None
) -> AsyncIterator[bytes]:
    """Yield the text chunk by chunk; the cluster may change in between."""
    for family in (*_FAMILIES, *(_LEGACY if legacy else ())):
        yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} gauge\n".encode()
        lines = family.lines(_Source(cluster, mig_slices))
        while chunk := "".join(itertools.islice(lines, _CHUNK)):
            yield chunk.encode("utf-8", "replace")


class _Source(msgspec.Struct, frozen=True):
    cluster: Cluster
    mig_slices: MigSlices | None


class _Family(msgspec.Struct, frozen=True):
    name: str
    help: str
    lines: Callable[[_Source], Iterator[str]]


def _template(name: str, labels: Sequence[str]) -> str:
    """Return a line with a place for each label's value and for the sample's."""
    places = "".join(f'{label}="%s",' for label in labels)
    return f'{name}{{{places}zone="vGPU"}} %s\n'


# Cards.


class _Card(msgspec.Struct, frozen=True, gc=False):
    """A card at one moment, with nothing that leads back into the tables."""

    device: RegisteredCard
    #: Slots, MiB and percent in use, of reservations as well.
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

#: What a family says of a card; None: nothing.
_Value = Callable[[_Card], int | float | None]


def _card_family(
    name: str, told: str, value: _Value, *, labels: Sequence[int] = _USUAL, old: bool = False
) -> _Family:
    names = _OLD_NAMES if old else _NAMES
    template = _template(name, [names[at] for at in labels])
    pick = operator.itemgetter(*labels)

    def lines(source: _Source) -> Iterator[str]:
        for node in list(source.cluster.nodes):
            for card in _cards_on(source.cluster, node):
                sample = value(card)
                if sample is not None:
                    yield template % (*pick(card.texts), sample)

    return _Family(name, told, lines)


def _cards_on(cluster: Cluster, node: str) -> list[_Card]:
    facts, place = cluster.nodes.get(node), cluster.locate(node)
    if facts is None or place is None:
        return []
    shelf, row = place
    name = metrics.escape_label(node)
    found = []
    for word, devices in facts.cards.items():
        table, here = shelf.cards[word], (slice(len(devices)), row)  # columns are in this order
        used = table.used[here].tolist()
        memory = (table.memory[here] - table.memory_left[here]).tolist()
        cores = (table.cores[here] - table.cores_left[here]).tolist()
        found += [
            _Card(device, slots, mib, percent, _texts(name, device))
            for device, slots, mib, percent in zip(devices, used, memory, cores, strict=True)
        ]
    return found


def _texts(node: str, device: RegisteredCard) -> tuple[str, ...]:
    return (
        node,
        metrics.escape_label(device.id),
        str(device.index),
        str(device.devcore),
        str(device.devmem),
        metrics.escape_label(device.type),
    )


def _core_limit(card: _Card) -> int:
    return _PERCENT if _is_amd(card.device) else card.device.devcore


def _core_use(card: _Card) -> int:
    return _normalised(card.cores, card.device)


def _memory_ratio(card: _Card) -> float | None:
    return card.memory / card.device.devmem if card.device.devmem > 0 else None


def _is_amd(device: RegisteredCard) -> bool:
    """Tell whether cores are counted as compute units, of which there are any number."""
    return device.type.upper().startswith("AMD")


def _normalised(cores: int, device: RegisteredCard) -> int:
    """Return percent, of compute units rounded up."""
    if not _is_amd(device) or device.devcore <= 0:
        return cores
    return -(-_PERCENT * cores // device.devcore)


# What containers hold.


class _Share(msgspec.Struct, frozen=True, gc=False):
    """What one container holds of one card."""

    position: int
    word: str
    uuid: str
    memory: int
    cores: int


_SHARE_NAMES = ("namespace", "node", "pod", "container_index", "device_uuid")
_OLD_SHARE_NAMES = ("podnamespace", "nodename", "podname", "containeridx", "deviceuuid")


def _share_family(
    name: str, told: str, value: Callable[[Cluster, PodInfo, _Share], int], *, old: bool = False
) -> _Family:
    template = _template(name, _OLD_SHARE_NAMES if old else _SHARE_NAMES)

    def lines(source: _Source) -> Iterator[str]:
        for row in _rows(source.cluster):
            pod = tuple(map(metrics.escape_label, (row.namespace, row.node, row.name)))
            for share in _shares(row):
                sample = value(source.cluster, row, share)
                uuid = metrics.escape_label(share.uuid)
                yield template % (*pod, share.position, uuid, sample)

    return _Family(name, told, lines)


def _rows(cluster: Cluster) -> Iterator[PodInfo]:
    """Yield what pods hold, node by node: a copy of all rows at once would hold up the loop."""
    for node in list(cluster.nodes):
        # A node that goes now takes its pods' samples along, as it takes its cards'.
        yield from cluster.pods_on(node)


def _shares(row: PodInfo) -> list[_Share]:
    sums: dict[tuple[int, str], _Share] = {}
    for word, slots in row.shares:
        for position, grants in enumerate(slots):
            if row.init_done and row.kinds[position] is ContainerKind.INIT:
                continue
            for grant in grants:
                had = sums.get((position, grant.card))
                sums[position, grant.card] = _Share(
                    position,
                    word,
                    grant.card,
                    grant.memory_mib + (had.memory if had else 0),
                    grant.cores + (had.cores if had else 0),
                )
    return list(sums.values())


def _share_memory(_cluster: Cluster, _row: PodInfo, share: _Share) -> int:
    return share.memory * _MIB


def _share_raw_cores(_cluster: Cluster, _row: PodInfo, share: _Share) -> int:
    return share.cores


def _share_cores(cluster: Cluster, row: PodInfo, share: _Share) -> int:
    facts = cluster.nodes.get(row.node)
    devices = facts.cards.get(share.word, ()) if facts is not None else ()
    # Only one vendor counts otherwise, and finding the card costs more than all the rest.
    if not (devices and _is_amd(devices[0])):
        return share.cores
    device = next((device for device in devices if device.id == share.uuid), None)
    return share.cores if device is None else _normalised(share.cores, device)


# MIG slices.


def _mig_family(name: str, told: str, labels: Sequence[str], *, old: bool = False) -> _Family:
    template = _template(name, labels)

    def lines(source: _Source) -> Iterator[str]:
        for node in list(source.cluster.nodes):
            facts = source.cluster.nodes.get(node)
            slices = source.mig_slices(node) if source.mig_slices is not None else ()
            if facts is None or not slices:
                continue
            indexes = {d.id: d.index for devices in facts.cards.values() for d in devices}
            for one in slices:
                if one.mig_uuid is not None and one.gpu_uuid in indexes:
                    card = (node, one.gpu_uuid, indexes[one.gpu_uuid])
                    values = (*card, *(_old_mig_values(one) if old else _mig_values(one)))
                    yield template % (*(metrics.escape_label(str(v)) for v in values), 1)

    return _Family(name, told, lines)


def _mig_values(one: Allocation) -> tuple[object, ...]:
    place = one.placement
    instances = (one.gpu_instance, one.compute_instance)
    return (one.mig_uuid, one.profile, *instances, place.start, place.size)


def _old_mig_values(one: Allocation) -> tuple[object, ...]:
    return (f"{one.profile}-{one.gpu_instance}",)


# Quotas.


def _quota_used_family(name: str, told: str, labels: Sequence[str]) -> _Family:
    template = _template(name, labels)

    def lines(source: _Source) -> Iterator[str]:
        for (namespace, resource), used in _quota_use(source.cluster).items():
            limit = source.cluster.quotas.limit(namespace, resource)
            yield template % (
                metrics.escape_label(namespace),
                metrics.escape_label(resource),
                limit or 0,
                used,
            )

    return _Family(name, told, lines)


def _quota_limit_family(name: str, told: str) -> _Family:
    template = _template(name, ("namespace", "quota_name"))

    def lines(source: _Source) -> Iterator[str]:
        for namespace, resource in _quota_use(source.cluster):
            limit = source.cluster.quotas.limit(namespace, resource)
            if limit is not None:
                names = (metrics.escape_label(namespace), metrics.escape_label(resource))
                yield template % (*names, limit)

    return _Family(name, told, lines)


def _quota_use(cluster: Cluster) -> dict[tuple[str, str], int]:
    """Return (namespace, resource) -> use in MiB or percent, wherever there is use or a limit."""
    found = {
        (limits.namespace, resource): 0
        for limits in cluster.quotas.all_limits().values()
        for resource in limits.limits
    }
    for (namespace, word), amounts in cluster.quotas.all_used().items():
        resources = cluster.vendors[word].resources
        for resource, used in zip((resources.memory, resources.cores), amounts, strict=True):
            key = (namespace, resource)
            if resource and (used or key in found):
                found[key] = found.get(key, 0) + used
    return found


_FAMILIES = (
    _card_family(
        "hami_gpu_memory_limit_bytes",
        "Memory that containers can be given of a card.",
        lambda card: card.device.devmem * _MIB,
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
    _mig_family(
        "hami_node_gpu_mig_instance_info",
        "MIG slices that exist: always 1.",
        (
            *("node", "device_uuid", "device_index", "mig_uuid", "profile"),
            *("gpu_instance_id", "compute_instance_id", "placement_start", "placement_size"),
        ),
    ),
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
        lambda card: card.device.devmem * _MIB,
        old=True,
    ),
    _card_family(
        "GPUDeviceCoreLimit",
        "Old name of hami_gpu_core_limit_ratio, in the unit of the card.",
        lambda card: card.device.devcore,
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
        "GPUDeviceSharedNum",
        "Old name of hami_gpu_shared_count.",
        lambda card: card.used,
        old=True,
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
    _mig_family(
        "nodeGPUMigInstance",
        "Old name of hami_node_gpu_mig_instance_info.",
        ("nodeid", "deviceuuid", "deviceidx", "migname"),
        old=True,
    ),
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
