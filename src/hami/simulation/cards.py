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
from hami.wire import node_register
from hami.wire.node_register import RegisteredCard

_NAMESPACE = uuid.UUID("6d1f4a0e-6f5c-4e0b-9a55-0c6f2f3b7a11")
_MODE = "hami-core"


class SimulatedDevice(msgspec.Struct, frozen=True):
    """A device id as kubelet gets it."""

    id: str
    healthy: bool
    numa: int | None


class VendorCards(msgspec.Struct, frozen=True, kw_only=True):
    """All cards of one vendor on one node, and how its plugin offers them."""

    vendor: Vendor
    plugin: Plugin
    node: str
    cards: tuple[RegisteredCard, ...]

    def register(self) -> dict[str, str]:
        """Return the node's annotation that lists the cards; empty: the vendor has none."""
        key = self.vendor.annotations.register
        if not key:
            return {}
        encode = (
            node_register.encode_json
            if self.vendor.register_codec == "json"
            else node_register.encode_colon
        )
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
                yield SimulatedDevice(f"{card.id}-{number}", card.health, card.numa)

    def _number(self, offer: Offer, card: RegisteredCard) -> int:
        if offer.per_card == "one":
            return 1
        if offer.per_card == "memory":
            return card.devmem // max(self.vendor.memory_factor, 1)
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
