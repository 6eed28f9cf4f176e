"""Pods without a valid grant: the cards that they count on, and with how much.

A bound pod that asks for cards may run on them, whatever became of its annotations. If it counted
nothing, its cards would be placed a second time. So it counts with what it asks for, and at least
with what its annotation says. Where its cards are not known, it counts on the fullest card with
room (docs/placement.md, section 7), which takes the least from the pods to come.

The result depends on nothing but the node and the pods on it, so that every replica, and a replica
after a restart, counts the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from hami.cluster.card_table import CardTable
from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import Allocation, PodInfo
from hami.vendors.family import WHOLE_CARD, CardRequest, Family, OneCard
from hami.wire import annotation_keys, objects
from hami.wire.node_register import RegisteredCard
from hami.wire.objects import ContainerKind
from hami.wire.shares import PodShares, Share

Pods = Mapping[str, PodInfo]
"""By UID."""


class Asked(msgspec.Struct, frozen=True):
    """What a container asks for of one card: MiB, percent and shares."""

    memory: int
    cores: int
    slots: int = 1


class _Card:
    """A card, and what is left of it while the containers of one pod are counted."""

    def __init__(self, card: RegisteredCard, *, shares: int, memory: int, cores: int) -> None:
        self.id = card.id
        self.total_cores = card.devcore
        self.sizes = OneCard(card)
        self.used_shares = card.count - shares
        self.shares_left = shares
        self.memory_left = memory
        self.cores_left = cores

    def has_room(self, asked: Asked) -> bool:
        return (
            self.shares_left >= asked.slots
            and self.memory_left >= asked.memory
            and self.cores_left >= asked.cores
            and not self._excludes(asked)
        )

    def _excludes(self, asked: Asked) -> bool:
        """Return whether one of them has all compute of the card: nothing is beside it."""
        if asked.cores == 0:
            return self.total_cores != 0 and self.cores_left <= 0
        return asked.cores == self.total_cores == WHOLE_CARD and self.used_shares > 0

    def take(self, asked: Asked) -> None:
        self.shares_left -= asked.slots
        self.used_shares += asked.slots
        self.memory_left -= asked.memory
        self.cores_left -= asked.cores


class UnprovenUse:
    """What the pods without a valid grant count with, node by node."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        #: Node name -> UIDs of its pods without a valid grant.
        self._uids: dict[str, dict[str, None]] = {}
        #: Node name -> what is counted for them in its row.
        self._counted: dict[str, list[Allocation]] = {}

    def nodes_of(self, *pods: PodInfo | None) -> Collection[str]:
        """Return the nodes of these pods on which any pod has no valid grant; mostly none."""
        return {pod.node for pod in pods if pod and (pod.unproven or pod.node in self._uids)}

    def put(self, pod: PodInfo) -> None:
        """Take note of a pod, which counts from the next `count` on."""
        if pod.unproven:
            self._uids.setdefault(pod.node, {})[pod.uid] = None

    def drop(self, pod: PodInfo) -> None:
        if pod.unproven:
            uids = self._uids[pod.node]
            del uids[pod.uid]
            if not uids:
                del self._uids[pod.node]

    def clear(self, node: str) -> None:
        """Forget what is counted on a node whose row was made again."""
        self._counted.pop(node, None)

    def uncount(self, node: str, located: tuple[CardTable, int] | None) -> None:
        """Take out of a node's row what was counted, before its pods change."""
        counted = self._counted.pop(node, None)
        if counted and located is not None:
            table, row = located
            for allocation in counted:
                table.use(row, allocation, -1)

    def count(
        self, info: NodeInfo | None, located: tuple[CardTable, int] | None, pods: Pods
    ) -> None:
        """Add them to their node's row, after all other pods of the node.

        In the order of their UIDs, so that the order of events does not matter.
        """
        if info is None or located is None or info.name not in self._uids:
            return
        table, row = located
        counted = self._counted.setdefault(info.name, [])
        for pod in (pods[uid] for uid in sorted(self._uids[info.name])):
            for vendor, _ in pod.unproven:
                cards = info.cards.get(vendor, ())
                if not cards:
                    continue
                for allocation in _allocations(
                    pod, vendor, self._families[vendor], cards=cards, table=table, row=row
                ):
                    table.use(row, allocation, +1)
                    counted.append(allocation)


def _allocations(
    pod: PodInfo,
    vendor: str,
    family: Family,
    *,
    cards: Sequence[RegisteredCard],
    table: CardTable,
    row: int,
) -> Iterator[Allocation]:
    """Yield what a pod counts with of one vendor, on a row in which it does not count yet."""
    listed = dict(pod.shares).get(vendor, ((),) * len(pod.kinds))
    left = _cards(table, row, vendor, cards)
    counted: list[tuple[Share, ...]] = []
    for kind, request, shares in zip(pod.kinds, dict(pod.unproven)[vendor], listed, strict=True):
        container = _container(vendor, family, request, shares, left)
        counted.append(container)
        if kind is not ContainerKind.INIT:
            for share in container:
                left[share.card].take(Asked(share.memory_mib, share.cores, share.slots))
    shown: tuple[tuple[str, PodShares], ...] = ((vendor, tuple(counted)),)
    yield from msgspec.structs.replace(pod, shares=shown, unproven=()).allocations()


def _cards(
    table: CardTable, row: int, vendor: str, registered: Sequence[RegisteredCard]
) -> dict[str, _Card]:
    """Return the cards of a node by id, in the order of their columns."""
    cards = table.cards[vendor]
    free = (cards.count[:, row] - cards.used[:, row]).tolist()
    memory, cores = cards.memory_left[:, row].tolist(), cards.cores_left[:, row].tolist()
    return {
        card.id: _Card(card, shares=free[column], memory=memory[column], cores=cores[column])
        for column, card in enumerate(registered)
    }


def _container(
    vendor: str,
    family: Family,
    request: CardRequest | None,
    listed: Sequence[Share],
    left: dict[str, _Card],
) -> tuple[Share, ...]:
    """Return the shares that one container counts with; each has a card of the node."""

    def asked(card: _Card, share: Share | None) -> Asked:
        memory, cores, slots = 0, 0, 1
        if share is not None:
            memory, cores, slots = share.memory_mib, share.cores, share.slots
        if request is not None:
            amount = family.amounts(request, card.sizes)
            memory, cores = max(memory, amount.memory), max(cores, amount.cores)
            slots = max(slots, amount.slots)
        return Asked(memory, cores, slots)

    found: list[tuple[_Card, Asked]] = [
        (left[share.card], asked(left[share.card], share)) for share in listed if share.card in left
    ]
    # A user writes the count, which may be 2 billion: no more than there are cards can count.
    more = min((request.count if request is not None else 0) - len(listed), len(left))
    elsewhere: list[Share | None] = [share for share in listed if share.card not in left]
    for share in elsewhere + [None] * more:
        taken = {card.id for card, _ in found}
        free = [(card, asked(card, share)) for card in left.values() if card.id not in taken]
        if not free:
            break
        with_room = [(card, amount) for card, amount in free if card.has_room(amount)]
        # Of equal cards both functions take the first, which has the lowest column.
        if with_room:
            found.append(min(with_room, key=lambda each: each[0].memory_left))
        else:
            found.append(max(free, key=lambda each: each[0].memory_left))
    return tuple(
        Share(card.id, vendor, amount.memory, amount.cores, amount.slots) for card, amount in found
    )


def why(pod: objects.Pod, info: PodInfo) -> str:
    """Return why a pod's cards are not what its annotations say, for its owner."""
    (vendor, _), *_ = info.unproven
    if vendor not in dict(info.shares) and not pod.annotation(annotation_keys.GRANT_MAC):
        return f"on {info.node} without a grant of the {vendor} cards that it asks for"
    if not pod.annotation(annotation_keys.GRANT_MAC):
        return f"its grant is not signed: it has no annotation {annotation_keys.GRANT_MAC}"
    return (
        f"its list of {vendor} cards is not what {annotation_keys.GRANT_MAC} was made for: one of "
        "them was removed or changed, or its key or form is not accepted here any more"
    )
