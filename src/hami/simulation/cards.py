"""Simulated cards of one vendor on one node: register, resources, device ids.

A card's id is made from the node's name, so that it is the same after a restart and differs from
the ids of all other nodes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import msgspec

from hami.simulation.catalogue import Offer, Plugin
from hami.simulation.description import CardGroup
from hami.vendors.table import Vendor
from hami.wire import codec, node_register
from hami.wire.node_register import RegisteredCard

_NAMESPACE = uuid.UUID("6d1f4a0e-6f5c-4e0b-9a55-0c6f2f3b7a11")
_MODE = "hami-core"
_GIB = 1024


class SimulatedDevice(msgspec.Struct, frozen=True):
    """A device id as kubelet gets it."""

    id: str
    healthy: bool
    numa: int | None = None


class VendorCards(msgspec.Struct, frozen=True, kw_only=True):
    """All cards of one vendor on one node, and how its plugin offers them."""

    vendor: Vendor
    plugin: Plugin
    node: str
    cards: tuple[RegisteredCard, ...]

    def register(self) -> dict[str, str]:
        """Return the node's annotation that lists the cards; empty: the vendor has none."""
        key = self.vendor.annotations.register
        form = self.vendor.register_codec
        if not key or form == "capacity":
            return {}
        if self.plugin.register == "drs":
            return {key: _drs(self.cards)}
        encode = node_register.encode_colon if form == "colon" else node_register.encode_json
        return {key: encode(self.cards)}

    def offered(self) -> dict[str, tuple[SimulatedDevice, ...]]:
        """Return the devices of each extended resource that kubelet is offered."""
        found = {}
        for offer in self.plugin.offers:
            resource = getattr(self.vendor.resources, offer.resource, offer.resource)
            if resource:
                found[resource] = tuple(self._devices(offer))
        return found

    def _devices(self, offer: Offer) -> Iterable[SimulatedDevice]:
        for card in self.cards:
            for number in range(self._number(offer, card)):
                yield SimulatedDevice(f"{card.id}-{number}", card.health)

    def _number(self, offer: Offer, card: RegisteredCard) -> int:
        if offer.per_card == "one":
            return 1
        if offer.per_card == "memory":
            return card.devmem // max(self.vendor.memory_factor, 1)
        if offer.per_card == "gib":
            return card.devmem // _GIB
        return card.count if offer.per_card == "shares" else card.devcore


def of_vendor(
    node: str, vendor: Vendor, plugin: Plugin, groups: Iterable[CardGroup]
) -> VendorCards:
    """Return the cards that groups of one vendor describe; indexes go on from group to group."""
    cards: list[RegisteredCard] = []
    for group in groups:
        for place in range(group.cards):
            index = len(cards)
            name = uuid.uuid5(_NAMESPACE, f"{node}/{vendor.name}/{index}")
            cards.append(
                RegisteredCard(
                    id=f"{plugin.id_prefix or vendor.name}-{name}",
                    index=index,
                    count=group.shares,
                    devmem=group.memory,
                    devcore=group.cores,
                    type=group.type,
                    numa=place * group.numa_nodes // group.cards,
                    mode=_MODE,
                    health=place not in group.unhealthy,
                )
            )
    return VendorCards(vendor=vendor, plugin=plugin, node=node, cards=tuple(cards))


def _drs(cards: Iterable[RegisteredCard]) -> str:
    """Write cards that are cut by profile as Enflame's plugin does: slices, and their profiles.

    A profile has slices that divide the card evenly, and their part of its memory.
    """
    listed = list(cards)
    whole = listed[0]
    sizes = [size for size in range(1, whole.count + 1) if whole.count % size == 0]
    gib = whole.devmem // _GIB
    return codec.encode_text(
        {
            "devices": [
                {"index": str(card.index), "minor": str(card.index), "capacity": card.count}
                for card in listed
            ],
            "profiles": {
                f"{size}g.{gib * size // whole.count}gb": str(number)
                for number, size in enumerate(sizes)
            },
        }
    )
