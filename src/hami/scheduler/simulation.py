"""Requests with whole nodes, which ask whether a pod would fit on one of them.

Autoscalers ask so, with nodes that exist and with templates of nodes that could. What is placed on
a node of which we know the name counts, whatever the caller knows; templates are empty. Nothing is
booked and nobody is told.
"""

from __future__ import annotations

from hami.cluster import operations
from hami.cluster.state import Cluster
from hami.placement import decide
from hami.placement.request import PodRequest
from hami.wire import extender_api


def answer(cluster: Cluster, args: extender_api.Args, wanted: PodRequest | None) -> bytes:
    """Answer with the best node, as the very object that was sent."""
    assert args.nodes is not None
    assert args.raw_nodes is not None
    if wanted is None:
        return extender_api.encode_filter_result(
            nodes=args.raw_nodes, failed=args.bad_nodes or None
        )
    simulated = Cluster(cluster.vendors.values())
    for quota in cluster.quotas.all_limits().values():
        simulated.apply(operations.PutQuota(quota))
    for (namespace, word), (memory, cores) in cluster.quotas.all_used().items():
        simulated.quotas.add_use(namespace, word, memory=memory, cores=cores)
    for node in args.nodes:
        simulated.observe_node(node)
    placed = {
        row.uid: row
        for node in args.nodes
        for row in cluster.rows_on(node.name)
        if row.uid != wanted.uid
    }
    for row in placed.values():
        simulated.apply(operations.PutRow(row))
    # Use is counted above for all; what is placed here has just been counted again, and what the
    # pod itself holds anywhere does not count against it.
    own = cluster.rows.get(wanted.uid)
    for row in (*placed.values(), *((own,) if own is not None else ())):
        for word, memory, cores in row.quota_use():
            simulated.quotas.add_use(row.namespace, word, memory=-memory, cores=-cores)
    decision = decide.decide(simulated, wanted, [node.name for node in args.nodes])
    failed = decision.explanation.failed_nodes() | args.bad_nodes
    if decision.winner is None:
        return extender_api.encode_filter_result(nodes=(), failed=failed)
    names = [node.name for node in args.nodes]
    best = args.raw_nodes[names.index(decision.winner.node)]
    return extender_api.encode_filter_result(nodes=(best,), failed=failed or None)
