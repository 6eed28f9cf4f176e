"""Rebuild the cluster from API objects, and say where the kept state differs.

The tables are changed by events for months; this is the oracle they are held against. `rebuild`
takes the slow, obvious way. `drift` returns one line per difference and must return none: the
scheduler exports their number as a metric, the property tests assert it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hami.cluster import state
from hami.cluster.pod_info import Allocation, PodInfo
from hami.cluster.state import Cluster
from hami.vendors.table import Vendor
from hami.wire import objects


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


def drift(
    cluster: Cluster,
    *,
    nodes: Iterable[objects.Node],
    pods: Iterable[objects.Pod],
    quotas: Iterable[objects.ResourceQuota],
) -> list[str]:
    """Compare a cluster with the API objects.

    Live reservations are no difference, nor are grants that are frozen while somebody has changed
    their pod's annotation: `rewritten` tells those.
    """
    fresh = rebuild(cluster.vendors.values(), nodes=nodes, pods=pods, quotas=quotas)
    for row in cluster.rows.values():
        true = fresh.rows.get(row.uid)
        waits = row.hold is Allocation.RESERVED and (
            true is None or true.hold is not Allocation.BOUND
        )
        if waits or _is_rewritten(row, true):
            fresh.apply(state.PutPod(row))
    return [
        *_compare("row of pod", cluster.rows, fresh.rows),
        *_compare("node", cluster.nodes, fresh.nodes),
        *_compare("table", dict(_tables(cluster)), dict(_tables(fresh))),
        *_compare("quota use of", cluster.quotas.all_used(), fresh.quotas.all_used()),
        *_compare("quota", cluster.quotas.all_limits(), fresh.quotas.all_limits()),
    ]


def rewritten(cluster: Cluster, pods: Iterable[objects.Pod]) -> list[str]:
    """Name the bound pods whose annotations no longer say what was granted."""
    fresh = rebuild(cluster.vendors.values(), nodes=(), pods=pods, quotas=())
    return [
        f"pod {row.namespace}/{row.name}"
        for row in cluster.rows.values()
        if _is_rewritten(row, fresh.rows.get(row.uid))
    ]


def node_drift(cluster: Cluster, name: str) -> list[str]:
    """Compare the tables of one node with the sum of its ledger rows; no API object is needed.

    Small enough to be done between two requests, node after node.
    """
    facts = cluster.nodes.get(name)
    if facts is None:
        return []
    fresh = Cluster(cluster.vendors.values())
    fresh.apply(state.PutNode(facts))
    for row in cluster.rows_on(name):
        fresh.apply(state.PutPod(row))
    kept, true = (dict(_tables_of(each, name)) for each in (cluster, fresh))
    return list(_compare(f"table of node {name},", kept, true))


def _is_rewritten(row: PodInfo, true: PodInfo | None) -> bool:
    if true is None or row.hold is not Allocation.BOUND or true.hold is not Allocation.BOUND:
        return False
    return row.node == true.node and (row.slots, row.closed) != (true.slots, true.closed)


def _compare(what: str, kept: Mapping[Any, object], true: Mapping[Any, object]) -> Iterator[str]:
    for key in sorted({*kept, *true}, key=str):
        if kept.get(key) != true.get(key):
            yield f"{what} {key}: kept {kept.get(key)}, true {true.get(key)}"


def _tables(cluster: Cluster) -> Iterator[tuple[object, object]]:
    """Yield every number of the tables, by node and what it is."""
    for name in cluster.nodes:
        yield from _tables_of(cluster, name)


def _tables_of(cluster: Cluster, name: str) -> Iterator[tuple[object, object]]:
    place = cluster.place(name)
    if place is not None:
        shelf, row = place
        for what, numbers in shelf.numbers(row, cluster.nodes[name]):
            yield (name, what), numbers
