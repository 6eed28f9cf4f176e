"""AMD: compute is counted in compute units, and shares name the product.

A container asks for percent, of which each card makes as many units as it has, at least one. A card
that is registered without units can give none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hami.vendors import card_request
from hami.vendors.card_request import WHOLE_CARD, CardRequest
from hami.vendors.family import Amount, CardSizes, CardState, Column, Mask, Plain, Reason
from hami.wire import errors, objects, shares
from hami.wire.node_register import RegisteredCard


class Amd(Plain):
    def claims(self, container: objects.Container) -> bool:
        """Claim a container that limits memory or compute alone, as HAMi does."""
        names = self.vendor.resources
        limits = (container.resources and container.resources.limits) or {}
        return any(limits.get(name) is not None for name in (names.memory, names.cores) if name)

    def request(self, container: objects.Container) -> CardRequest | None:
        asked = super().request(container)
        cores = self.vendor.resources.cores
        given = card_request.amount(container, self.vendor, cores) if cores else None
        if asked is not None and given is not None:
            remedy = "write a whole number from 1 to 100, or leave it out for the whole card"
            percent = card_request.whole_number(
                container, self.vendor, cores, high=WHOLE_CARD, remedy=remedy
            )
            if percent < 1:
                what = f"container {container.name}, {cores}"
                raise errors.WireError(what, given, "is no percentage from 1 to 100", remedy)
        return asked

    def read_cards(self, node: objects.Node) -> tuple[RegisteredCard, ...]:
        """Read the register annotation; device lists must be able to carry the product type."""
        cards = super().read_cards(node)
        for card in cards:
            if not shares.SEPARATORS.isdisjoint(card.type):
                what = f"node {node.name}, {self.vendor.annotations.register}, card {card.id}, type"
                rule = "holds one of , : ; which no device list can carry"
                raise errors.WireError(what, card.type, rule)
        return cards

    def amounts(self, request: CardRequest, cards: CardSizes[Column]) -> Amount[Column | int]:
        """Take percent of each card's compute units, rounded down, but one at least."""
        total: Any = cards.cores
        units = total * request.cores // WHOLE_CARD
        units = units + (units < 1)  # percent are 1 to 100: of no units none, so one too many
        return Amount(super().amounts(request, cards).memory, units)

    def refuse(self, request: CardRequest, state: CardState[Mask]) -> Mapping[Reason, Mask]:  # noqa: ARG002 the protocol's
        """Refuse nothing more: a card without units is too small for one."""
        return {}
