"""Rebuild a cluster's state from API objects, and compare the kept state.

The card tables are changed by events for months; this is the slow, obvious way to the same state.
The property tests demand that there is no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hami.cluster import self_check, state
from hami.cluster.card_table import CardTable
from hami.cluster.pod_info import Hold, PodInfo
from hami.cluster.state import Cluster
from hami.vendors.table import Vendor
from hami.wire import objects


def drift(
    cluster: Cluster,
    *,
    nodes: Iterable[objects.Node],
    pods: Iterable[objects.Pod],
    quotas: Iterable[objects.ResourceQuota],
) -> list[str]:
    """Compare a cluster with the API objects; return one line per difference.

    Live reservations are no difference, nor are shares that are frozen while the pod's annotation
    was changed: `rewritten` names those pods.
    """
    fresh = rebuild(cluster.vendors.values(), nodes=nodes, pods=pods, quotas=quotas)
    for pod in cluster.pods.values():
        true = fresh.pods.get(pod.uid)
        reserved = pod.hold is Hold.RESERVED and (true is None or true.hold is not Hold.BOUND)
        if reserved or _is_rewritten(pod, true):
            fresh.apply(state.PutPod(pod))
    return [
        *_compare("pod", cluster.pods, fresh.pods),
        *_compare("node", cluster.nodes, fresh.nodes),
        *_compare("table", dict(_tables(cluster)), dict(_tables(fresh))),
        *_compare("quota use of", cluster.quotas.all_used(), fresh.quotas.all_used()),
        *_compare("quota", cluster.quotas.all_limits(), fresh.quotas.all_limits()),
    ]


def rewritten(cluster: Cluster, pods: Iterable[objects.Pod]) -> list[str]:
    """Name the bound pods whose annotations no longer list what was granted."""
    fresh = rebuild(cluster.vendors.values(), nodes=(), pods=pods, quotas=())
    return [
        f"pod {pod.namespace}/{pod.name}"
        for pod in cluster.pods.values()
        if _is_rewritten(pod, fresh.pods.get(pod.uid))
    ]


def rebuild(
    vendors: Iterable[Vendor],
    *,
    nodes: Iterable[objects.Node],
    pods: Iterable[objects.Pod],
    quotas: Iterable[objects.ResourceQuota],
) -> Cluster:
    """Make a cluster from what the API server has now."""
    cluster = Cluster(vendors)
    for node in nodes:
        cluster.observe_node(node)
    for pod in pods:
        cluster.observe_pod(pod)
    for quota in quotas:
        cluster.observe_quota(quota)
    return cluster


def snapshot(cluster: Cluster) -> dict[tuple[int, str, str], npt.NDArray[np.generic]]:
    """Copy every array of the card tables, each up to its last node."""
    return {
        (width, group, name): array
        for width, table in cluster.card_tables.items()
        for group, name, array in _arrays(table)
        if array.size
    }


def _arrays(table: CardTable) -> Iterator[tuple[str, str, npt.NDArray[np.generic]]]:
    rows = max((row + 1 for row, name in enumerate(table.names) if name), default=0)
    with_cards = [vendor for vendor, cards in table.cards.items() if cards.cells]
    for group, arrays in table.groups(with_cards):
        for name in arrays.names:
            yield group, name, getattr(arrays, name)[..., :rows].copy()


def _is_rewritten(pod: PodInfo, true: PodInfo | None) -> bool:
    if true is None or pod.hold is not Hold.BOUND or true.hold is not Hold.BOUND:
        return False
    return pod.node == true.node and (pod.shares, pod.closed) != (true.shares, true.closed)


def _compare(what: str, kept: Mapping[Any, object], true: Mapping[Any, object]) -> Iterator[str]:
    for key in sorted({*kept, *true}, key=str):
        if kept.get(key) != true.get(key):
            yield f"{what} {key}: kept {kept.get(key)}, true {true.get(key)}"


def _tables(cluster: Cluster) -> Iterator[tuple[tuple[str, str], object]]:
    """Yield every number of the card tables, by node and name."""
    for node in cluster.nodes:
        for name, numbers in self_check.node_numbers(cluster, node):
            yield (node, name), numbers
