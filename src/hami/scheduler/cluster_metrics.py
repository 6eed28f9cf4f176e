"""Metrics of the whole cluster: cards, nodes, shares of containers, quotas.

Names and labels are HAMi's (docs/designs/006-hami-protocol.md), so that its dashboards work; the
old names are written, too, when asked for. Sums of nodes and of the cluster are ours: they remain
when the metrics of cards are switched off.

A share of a container is two series, and a large cluster has hundreds of thousands of them. The
monitor of each node has them as well, so above a limit they are left out here, all of them: a part
would be mistaken for the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

from hami.cluster.state import Cluster
from hami.scheduler import cluster_snapshot
from hami.scheduler import metric_families as make
from hami.scheduler.cluster_snapshot import Snapshot
from hami.scheduler.metric_families import MIB, Family

#: Lines per chunk: well below a millisecond's work.
_CHUNK = 200


def omitted_shares(cluster: Cluster, *, cards: bool, container_limit: int) -> int:
    """Return how many shares get no metrics of their own; the options are those of `families`."""
    shares = cluster_snapshot.share_count(cluster)
    return shares if shares > container_limit or not cards else 0


async def families(
    cluster: Cluster,
    *,
    legacy: bool,
    cards: bool,
    container_limit: int,
) -> AsyncIterator[bytes]:
    """Yield the text chunk by chunk; all of it is of the moment of the first chunk.

    `cards`: whether cards and shares of containers have metrics of their own. `container_limit`:
    with more shares than this none has.
    """
    omitted = omitted_shares(cluster, cards=cards, container_limit=container_limit)
    snapshot = Snapshot(cluster, with_pods=not omitted)
    if omitted:
        flags = f"--card-metrics={str(cards).lower()} --container-metrics-limit={container_limit}"
        yield f"# metrics of containers are left out: {omitted} shares, {flags}\n".encode()
    # Shares of unknown cards are not among those omitted.
    for family in _selected(legacy=legacy, cards=cards, shares=cards and not omitted):
        yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} gauge\n".encode()
        lines = family.lines(snapshot)
        while chunk := "".join(itertools.islice(lines, _CHUNK)):
            yield chunk.encode("utf-8", "replace")


def _selected(*, legacy: bool, cards: bool, shares: bool) -> tuple[Family, ...]:
    selected = (*(_CARDS if cards else ()), *_SUMS, *(_SHARES if shares else ()))
    if not legacy:
        return selected
    old = (*(_OLD_CARDS if cards else ()), *_OLD_SUMS, *(_OLD_SHARES if shares else ()))
    return (*selected, *old)


_CARDS = (
    make.card_family(
        "hami_gpu_memory_limit_bytes",
        "Memory that containers can be given of a card.",
        make.memory_limit,
    ),
    make.card_family(
        "hami_gpu_core_limit_ratio",
        "Compute that containers can be given of a card, in percent.",
        make.core_limit,
    ),
    make.card_family(
        "hami_gpu_memory_allocated_bytes",
        "Memory of a card that containers have been given.",
        make.memory_bytes,
        labels=make.WITH_CORES,
    ),
    make.card_family(
        "hami_gpu_shared_count", "Containers that share a card.", make.raw_number, column="used"
    ),
    make.card_family(
        "hami_gpu_core_allocated_ratio",
        "Compute of a card that containers have been given, in percent.",
        make.core_percent,
        column="cores",
    ),
    make.card_family(
        "hami_node_gpu_overview",
        "Memory of a card that containers have been given, with the limits of the card as labels.",
        make.memory_bytes,
        labels=make.OVERVIEW,
    ),
    make.card_family(
        "hami_node_gpu_memory_allocated_ratio",
        "Part of a card's memory that containers have been given, from 0 to 1.",
        make.memory_ratio,
    ),
    make.empty_family("hami_node_gpu_mig_instance_info", "MIG slices that exist: always 1."),
)

_SUMS = (
    make.node_family(
        "hami_node_memory_limit_bytes",
        "Memory that containers can be given of all cards of a node.",
        lambda node: node.memory_limit * MIB,
    ),
    make.node_family(
        "hami_node_memory_allocated_bytes",
        "Memory of all cards of a node that containers have been given.",
        lambda node: node.memory * MIB,
    ),
    make.node_family("hami_node_shares", "Shares of containers on a node.", lambda node: node.used),
    make.cluster_family("hami_cluster_cards", "Cards of all nodes.", lambda cluster: cluster.cards),
    make.cluster_family(
        "hami_cluster_memory_limit_bytes",
        "Memory that containers can be given of all cards.",
        lambda cluster: cluster.memory_limit * MIB,
    ),
    make.cluster_family(
        "hami_cluster_memory_allocated_bytes",
        "Memory of all cards that containers have been given.",
        lambda cluster: cluster.memory * MIB,
    ),
    make.cluster_family(
        "hami_cluster_shares", "Shares of containers on all nodes.", lambda c: c.used
    ),
    make.quota_used_family(
        "hami_resource_quota_used",
        "What the pods of a namespace hold of a resource, in MiB or percent.",
        ("namespace", "quota_name", "limit"),
    ),
    make.quota_limit_family(
        "hami_resource_quota_limit",
        "What the pods of a namespace may hold of a resource, in its own unit.",
    ),
)

_SHARES = (
    make.share_family(
        "hami_vgpu_memory_allocated_bytes",
        "Memory of a card that a container has been given.",
        make.share_memory,
    ),
    make.share_family(
        "hami_vgpu_core_allocated_ratio",
        "Compute of a card that a container has been given, in percent; 0 is unlimited.",
        make.share_cores,
    ),
)

_OLD_CARDS = (
    make.card_family(
        "GPUDeviceMemoryLimit",
        "Old name of hami_gpu_memory_limit_bytes.",
        make.memory_limit,
        old=True,
    ),
    make.card_family(
        "GPUDeviceCoreLimit",
        "Old name of hami_gpu_core_limit_ratio, in the unit of the card.",
        make.raw_core_limit,
        old=True,
    ),
    make.card_family(
        "GPUDeviceMemoryAllocated",
        "Old name of hami_gpu_memory_allocated_bytes.",
        make.memory_bytes,
        labels=make.WITH_CORES,
        old=True,
    ),
    make.card_family(
        "GPUDeviceSharedNum",
        "Old name of hami_gpu_shared_count.",
        make.raw_number,
        column="used",
        old=True,
    ),
    make.card_family(
        "GPUDeviceCoreAllocated",
        "Old name of hami_gpu_core_allocated_ratio, in the unit of the card.",
        make.raw_number,
        column="cores",
        old=True,
    ),
    make.card_family(
        "nodeGPUOverview",
        "Old name of hami_node_gpu_overview.",
        make.memory_bytes,
        labels=make.OVERVIEW,
        old=True,
    ),
    make.card_family(
        "nodeGPUMemoryPercentage",
        "Old name of hami_node_gpu_memory_allocated_ratio.",
        make.memory_ratio,
        labels=make.OLD_SHORT,
        old=True,
    ),
    make.empty_family("nodeGPUMigInstance", "Old name of hami_node_gpu_mig_instance_info."),
)

_OLD_SUMS = (
    make.quota_used_family(
        "QuotaUsed",
        "Old name of hami_resource_quota_used.",
        ("quotanamespace", "quotaName", "limit"),
    ),
)

_OLD_SHARES = (
    make.share_family(
        "vGPUMemoryAllocated",
        "Old name of hami_vgpu_memory_allocated_bytes.",
        make.share_memory,
        old=True,
    ),
    make.share_family(
        "vGPUCoreAllocated",
        "Old name of hami_vgpu_core_allocated_ratio, in the unit of the card.",
        make.share_raw_cores,
        old=True,
    ),
)
