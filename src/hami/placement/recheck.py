"""Check again that the cards held for a pod are there, healthy, and have room.

Between /filter and the Binding a pod's node may change: a card leaves or fails, another scheduler
puts a pod on it, a quota shrinks. The pod's own shares are counted in the card table, so what it
holds is good while nothing is overdrawn. That is a look at a few numbers of one row, and no work on
any other node.

Rules that decide between pods on one card (`mutex` for example) held when the pod was placed, and a
pod that came later may share its card by them. They are not checked again here.
"""

from __future__ import annotations

from hami.cluster.card_table import Cards, CardTable
from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import Allocation, PodInfo
from hami.cluster.state import Cluster
from hami.vendors.family import WHOLE_CARD
from hami.wire.node_register import RegisteredCard


def still_fits(cluster: Cluster, held: PodInfo, decided_on: NodeInfo | None) -> bool:
    """Return whether a pod can keep the cards that are held for it.

    `decided_on` is its node as it was when the cards were chosen.
    """
    located, node = cluster.locate(held.node), cluster.nodes.get(held.node)
    if located is None or node is None:
        return False
    table, row = located
    if node is not decided_on and not _same_kind(held, node, decided_on):
        return False
    return (
        all(_card_fits(table, row, held, allocation) for allocation in held.allocations())
        and all(_ids_fit(cluster, table, row, vendor) for vendor, _ in held.ids)
        and _within_quota(cluster, held)
    )


def _same_kind(held: PodInfo, node: NodeInfo, before: NodeInfo | None) -> bool:
    """Return whether the held cards are still what the pod's selectors accepted."""
    if before is None:
        return False
    for vendor, pod_shares in held.shares:
        now, then = (_kinds(info.cards.get(vendor, ())) for info in (node, before))
        cards = {share.card for each in pod_shares for share in each}
        if any(card not in now or now[card] != then.get(card) for card in cards):
            return False
    return True


def _kinds(cards: tuple[RegisteredCard, ...]) -> dict[str, tuple[str, str, int]]:
    return {card.id: (card.type, card.mode, card.numa) for card in cards}


def _card_fits(table: CardTable, row: int, held: PodInfo, allocation: Allocation) -> bool:
    cards = table.cards.get(allocation.vendor)
    column = cards.column(row, allocation.card) if cards is not None else None
    if cards is None or column is None:
        return False
    cell = (column, row)
    return not (
        cards.refused[cell]
        or cell in cards.closed
        or cards.used[cell] > cards.count[cell]
        or cards.memory_left[cell] < 0
        or cards.cores_left[cell] < 0
        or (_has_others(cards, cell, allocation) and _is_exclusive(cards, cell, held, allocation))
    )


def _has_others(cards: Cards, cell: tuple[int, int], allocation: Allocation) -> bool:
    return bool(cards.used[cell] > allocation.share_count)


def _is_exclusive(
    cards: Cards, cell: tuple[int, int], held: PodInfo, allocation: Allocation
) -> bool:
    """Return whether a container of the pod has all compute of the card: nothing is beside it."""
    if cards.cores[cell] != WHOLE_CARD:
        return False
    pod_shares = dict(held.shares)[allocation.vendor]
    return any(
        share.card == allocation.card and share.cores == WHOLE_CARD
        for each in pod_shares
        for share in each
    )


def _ids_fit(cluster: Cluster, table: CardTable, row: int, vendor: str) -> bool:
    if not cluster.vendors[vendor].bounded_by_ids:
        return True
    ids = table.ids[vendor]
    return bool(ids.offered[row] > 0 and ids.held[row] <= ids.offered[row])


def _within_quota(cluster: Cluster, held: PodInfo) -> bool:
    for vendor, memory, cores in held.quota_use():
        left = cluster.quotas.headroom(held.namespace, cluster.vendors[vendor])
        if (memory and left.memory is not None and left.memory < 0) or (
            cores and left.cores is not None and left.cores < 0
        ):
            return False
    return True
