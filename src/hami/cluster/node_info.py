"""What a node object says of its cards, in the order the tables use.

Cards are sorted by (index, id), because writers list them in any order and a place in a table must
not depend on it. A register annotation that does not decode leaves the node without cards of that
vendor, with the reason kept: nothing new is placed there, and the pods on it stay in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hami.vendors.table import Vendor
from hami.wire import errors, node_register, objects, quantity, text_values

MAX_CARDS = 256
"""More cards of one vendor on one node than any machine has: beyond it an annotation is broken."""


class NodeInfo(msgspec.Struct, frozen=True):
    """The part of a node that placement depends on."""

    name: str
    #: Vendor word -> cards, sorted by (index, id); vendors without a card are absent.
    cards: Mapping[str, tuple[node_register.RegisteredCard, ...]]
    #: Vendor word -> device ids kubelet offers; absent is 0.
    allocatable: Mapping[str, int]
    #: Vendor word -> ids of cards closed for new pods.
    cordoned: Mapping[str, frozenset[str]]
    problems: tuple[str, ...] = ()

    @property
    def widest(self) -> int:
        """The largest number of cards of one vendor."""
        return max(map(len, self.cards.values()), default=0)


def read_node(node: objects.Node, vendors: Sequence[Vendor]) -> NodeInfo:
    """Read what every vendor has on the node; trouble with one vendor leaves the others alone."""
    cards: dict[str, tuple[node_register.RegisteredCard, ...]] = {}
    allocatable: dict[str, int] = {}
    cordoned: dict[str, frozenset[str]] = {}
    problems: list[str] = []
    for vendor in vendors:
        try:
            found = _cards(node, vendor)
            if found:
                cards[vendor.word] = found
            ids = _allocatable(node, vendor)
            if ids:
                allocatable[vendor.word] = ids
        except errors.WireError as error:
            problems.append(str(error))
        closed = text_values.comma_list(node.annotation(vendor.annotations.cordon))
        if closed:
            cordoned[vendor.word] = frozenset(closed)
    return NodeInfo(node.name, cards, allocatable, cordoned, tuple(problems))


def _cards(node: objects.Node, vendor: Vendor) -> tuple[node_register.RegisteredCard, ...]:
    key = vendor.annotations.register
    value = node.annotation(key)
    if not value:
        return ()
    what = f"node {node.name}, {key}"
    if vendor.register_codec == "json":
        devices = node_register.decode_json(value, what=what)
    else:
        devices = node_register.decode_colon(value, what=what)
    if len(devices) > MAX_CARDS:
        raise errors.WireError(
            what, f"{len(devices)} cards", f"is more than the {MAX_CARDS} a node can have"
        )
    return tuple(sorted(devices, key=lambda device: (device.index, device.id)))


def _allocatable(node: objects.Node, vendor: Vendor) -> int:
    amount = node.allocatable.get(vendor.resources.count)
    if amount is None:
        return 0
    what = f"node {node.name}, allocatable {vendor.resources.count}"
    return min(max(0, quantity.rounded_up(amount, what=what)), text_values.INT32_MAX)
