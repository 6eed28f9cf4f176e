"""NVIDIA: requests are completed, and cards that are cut by MIG take no shares.

Pods get MIG instances that an administrator has cut beforehand as resources of their own (the
agent advertises them); placing shares on such instances is not built.
"""

from __future__ import annotations

from collections.abc import Mapping

from hami.vendors import container_edits
from hami.vendors.card_request import WHOLE_CARD, CardRequest
from hami.vendors.family import CardState, Fleet, Mask, Plain, Reason
from hami.wire.objects import Amount, Container

MIG_MODE = "mig"
"""The mode with which a card is registered that is cut into instances."""


class Nvidia(Plain):
    def complete(self, container: Container, fleet: Fleet) -> Container:  # noqa: ARG002 the protocol's
        """Add the number of cards if only a size is named, and all compute of whole cards.

        So no other container is placed on a card that was asked for as a whole.
        """
        vendor, names = self.vendor, self.vendor.resources
        limits = (container.resources and container.resources.limits) or {}
        sizes = (names.cores, names.memory, names.memory_percentage)
        given: dict[str, Amount] = {}
        if limits.get(names.count) is None:
            asked = container.amount(names.count)
            if asked is not None and container_edits.asks(container, names.count):
                # The API server requires a limit beside a request for such a resource.
                given[names.count] = asked
            elif asked is None and vendor.default_count and any(n and n in limits for n in sizes):
                given[names.count] = str(vendor.default_count)
        if given:
            container = container_edits.amounts(container, limits=given)
        if container_edits.asks(container, names.count) and self._wants_whole_cards(container):
            every = {names.cores: str(WHOLE_CARD)}
            container = container_edits.amounts(container, limits=every)
        return container

    def _wants_whole_cards(self, container: Container) -> bool:
        """Tell whether a container names neither a part of a card's memory nor compute."""
        names = self.vendor.resources
        if not names.cores or container.amount(names.cores) is not None:
            return False
        percentage = container.amount(names.memory_percentage) if names.memory_percentage else None
        if percentage is not None:
            return container_edits.is_number(percentage, WHOLE_CARD)
        return not names.memory or container.amount(names.memory) is None

    def refuse(self, request: CardRequest, state: CardState[Mask]) -> Mapping[Reason, Mask]:  # noqa: ARG002 the protocol's
        """Refuse cards in MIG mode."""
        in_mig_mode = state.in_mode(MIG_MODE)
        if in_mig_mode is None:
            return {}
        return {Reason.CARD_MIG_TOPOLOGY_INFEASIBLE: in_mig_mode}
