"""Rebuild the cluster from API objects, and say where the kept state differs.

The tables are changed by events for months; this is the oracle they are held against. `rebuild`
takes the slow, obvious way. `drift` returns one line per difference and must return none: the
scheduler exports their number as a metric, the property tests assert it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hami.cluster import operations
from hami.cluster.ledger import Standing
from hami.cluster.shelf import Cards
from hami.cluster.state import Cluster
from hami.vendors.row import Vendor
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
    """Compare a cluster with the API objects; live reservations are no difference."""
    fresh = rebuild(cluster.vendors.values(), nodes=nodes, pods=pods, quotas=quotas)
    for row in cluster.rows.values():
        true = fresh.rows.get(row.uid)
        if row.standing is Standing.RESERVED and (true is None or true.standing < Standing.BOUND):
            fresh.apply(operations.PutRow(row))
    return [
        *_compare("row of pod", cluster.rows, fresh.rows),
        *_compare("node", cluster.nodes, fresh.nodes),
        *_compare("use of", dict(_cells(cluster)), dict(_cells(fresh))),
        *_compare("quota use of", cluster.quotas.all_used(), fresh.quotas.all_used()),
        *_compare("quota", cluster.quotas.all_limits(), fresh.quotas.all_limits()),
    ]


def _compare(what: str, kept: Mapping[Any, object], true: Mapping[Any, object]) -> Iterator[str]:
    for key in sorted({*kept, *true}, key=str):
        if kept.get(key) != true.get(key):
            yield f"{what} {key}: kept {kept.get(key)}, true {true.get(key)}"


def _cells(cluster: Cluster) -> Iterator[tuple[object, object]]:
    """Yield every number of the tables that events change, by what it counts."""
    for name, facts in cluster.nodes.items():
        place = cluster.place(name)
        if place is None:
            continue
        shelf, row = place
        totals = shelf.totals
        yield name, (totals.used[row], totals.memory_used[row], totals.cores_used[row])
        for word, ids in shelf.ids.items():
            yield (name, word), (ids.offered[row], ids.held[row])
            for column, device in enumerate(facts.cards.get(word, ())):
                yield (name, word, device.id), _cell(shelf.cards[word], column, row)


def _cell(cards: Cards, column: int, row: int) -> tuple[object, ...]:
    at = column, row
    return (cards.refused[at], cards.used[at], cards.memory_left[at], cards.cores_left[at])
