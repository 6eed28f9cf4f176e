"""Check again that the cards held for a pod are there, healthy, and have room.

Between /filter and the Binding a pod's node may change: a card leaves or fails, another scheduler
puts a pod on it, a quota shrinks. The pod's own shares are counted in the card table, so what it
holds is good while nothing is overdrawn. That is a look at a few numbers of one row, and no work on
any other node.

Where something is overdrawn, the pod may be the cause and not the victim: pods without a valid
grant move when it is counted (`hami.cluster.unproven`). So it is then looked at as when its cards
were chosen, on what is used without it. What `decide` gives a pod it can therefore always keep.

Rules that decide between pods on one card (`mutex` for example) held when the pod was placed, and a
pod that came later may share its card by them. They are not checked again here.
"""

from __future__ import annotations

from hami.cluster import state
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
    if _fits(cluster, table, row, held, more=0):
        return True
    counted = cluster.apply(state.DropPod(held.uid))
    try:
        return _fits(cluster, table, row, held, more=1)
    finally:
        cluster.apply(counted)


def _fits(cluster: Cluster, table: CardTable, row: int, held: PodInfo, *, more: int) -> bool:
    """Return whether all that a pod holds has room; `more` is 1 if it is not counted yet."""
    return (
        all(_card_fits(cluster, (table, row), held, each, more) for each in held.allocations())
        and all(_ids_fit(cluster, table, row, vendor, more * ids) for vendor, ids in held.ids)
        and _within_quota(cluster, held, more)
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


def _card_fits(
    cluster: Cluster,
    located: tuple[CardTable, int],
    held: PodInfo,
    allocation: Allocation,
    more: int,
) -> bool:
    table, row = located
    cards = table.cards.get(allocation.vendor)
    column = cards.column(row, allocation.card) if cards is not None else None
    if cards is None or column is None:
        return False
    cell = (column, row)
    used = int(cards.used[cell]) + more * allocation.share_count
    return not (
        cards.refused[cell]
        or cell in cards.closed
        or used > cards.count[cell]
        or cards.memory_left[cell] < more * allocation.memory
        or cards.cores_left[cell] < more * allocation.cores
        or (
            used > allocation.share_count
            and "exclusive" in cluster.vendors[allocation.vendor].checks
            and _is_exclusive(cards, cell, held, allocation)
        )
    )


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


def _ids_fit(cluster: Cluster, table: CardTable, row: int, vendor: str, more: int) -> bool:
    row_of_vendor, ids = cluster.vendors[vendor], table.ids[vendor]
    if row_of_vendor.bounded_by_ids:
        return bool(ids.offered[row] > 0 and ids.held[row] + more <= ids.offered[row])
    return not row_of_vendor.needs_offer or bool(ids.offered[row] > 0)


def _within_quota(cluster: Cluster, held: PodInfo, more: int) -> bool:
    for vendor, memory, cores in held.quota_use():
        left = cluster.quotas.headroom(held.namespace, cluster.vendors[vendor])
        if (memory and left.memory is not None and left.memory < more * memory) or (
            cores and left.cores is not None and left.cores < more * cores
        ):
            return False
    return True
