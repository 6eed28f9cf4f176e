"""A Node, read once: its cards in the order of the card table.

A register annotation that does not decode leaves the node without cards of that vendor, with the
reason kept: nothing new is placed there, and the pods on it keep what they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hami.vendors.family import Family
from hami.vendors.table import Vendor
from hami.wire import errors, node_marks, objects, quantity, text_values
from hami.wire.node_register import RegisteredCard


class NodeInfo(msgspec.Struct, frozen=True):
    """The part of a node that placement depends on."""

    name: str
    #: Vendor name -> cards, sorted by (index, id); vendors without a card are absent.
    cards: Mapping[str, tuple[RegisteredCard, ...]]
    #: Vendor name -> device ids kubelet offers; absent is 0.
    allocatable: Mapping[str, int]
    #: Vendor name -> ids of cards closed for new pods.
    cordoned: Mapping[str, frozenset[str]]
    problems: tuple[str, ...] = ()

    @property
    def widest(self) -> int:
        """The largest number of cards of one vendor."""
        return max(map(len, self.cards.values()), default=0)


def read_node(node: objects.Node, families: Iterable[Family]) -> NodeInfo:
    """Read what every vendor has on the node; trouble with one vendor leaves the others alone."""
    cards: dict[str, tuple[RegisteredCard, ...]] = {}
    allocatable: dict[str, int] = {}
    cordoned: dict[str, frozenset[str]] = {}
    problems: list[str] = []
    for family in families:
        vendor = family.vendor
        try:
            found = family.read_cards(node)
            closed = _closed(node, vendor, found)
            if found:
                cards[vendor.name] = found
            if closed:
                cordoned[vendor.name] = closed
            ids = _allocatable(node, vendor)
            if ids:
                allocatable[vendor.name] = ids
        except errors.WireError as error:
            problems.append(str(error))
    return NodeInfo(node.name, cards, allocatable, cordoned, tuple(problems))


def _closed(node: objects.Node, vendor: Vendor, cards: Iterable[RegisteredCard]) -> frozenset[str]:
    """Return the ids of the cards that administrator or agent have closed."""
    cordoned = frozenset(text_values.comma_list(node.annotation(vendor.annotations.cordon)))
    if node_marks.CORDON_ALL in cordoned:
        cordoned |= {card.id for card in cards}
    return cordoned.union(node_marks.decode_closed(node.annotation(vendor.annotations.closed)))


def _allocatable(node: objects.Node, vendor: Vendor) -> int:
    """Return the device ids that kubelet offers; raises WireError for what is no amount."""
    amount = node.allocatable.get(vendor.resources.count)
    if amount is None:
        return 0
    what = f"node {node.name}, allocatable {vendor.resources.count}"
    return min(max(0, quantity.rounded_up(amount, what=what)), text_values.INT32_MAX)
