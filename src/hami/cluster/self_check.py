"""Self-check: a node's row in the card table against the sum of its pods.

The tables are changed event by event and never computed again, so an error in them would stay. The
scheduler checks a few nodes a second; tests compare whole clusters with the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from hami.cluster.state import Cluster, PutNode, PutPod


def node_drift(cluster: Cluster, name: str) -> list[str]:
    """Compare a node's row with the sum of its pods' allocations; return one line per difference.

    Small enough to be done between two requests, node after node. No API object is needed.
    """
    info = cluster.nodes.get(name)
    if info is None:
        return []
    fresh = Cluster(cluster.vendors.values())
    fresh.apply(PutNode(info))
    for pod in cluster.pods_on(name):
        fresh.apply(PutPod(pod))
    kept, true = dict(node_numbers(cluster, name)), dict(node_numbers(fresh, name))
    return [
        f"table of node {name}, {what}: kept {kept.get(what)}, true {true.get(what)}"
        for what in sorted({*kept, *true})
        if kept.get(what) != true.get(what)
    ]


def node_numbers(cluster: Cluster, name: str) -> Iterator[tuple[str, object]]:
    """Yield every number that the card table has of a node, by name."""
    located = cluster.locate(name)
    if located is not None:
        table, row = located
        yield from table.numbers(row, cluster.nodes[name])
