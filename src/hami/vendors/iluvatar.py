"""Iluvatar: several cards are whole ones, the plugin reads container names."""

from __future__ import annotations

from hami.vendors import container_edits
from hami.vendors.card_request import WHOLE_CARD
from hami.vendors.family import Fleet, Plain
from hami.wire import objects, quantity

CONTAINER_NAME = "SOL_CONTINER_NAME"
"""Misspelt, but Iluvatar's plugin reads it so."""


class Iluvatar(Plain):
    def complete(self, container: objects.Container, fleet: Fleet) -> objects.Container:  # noqa: ARG002 the protocol's
        """Ask for all compute of several cards, and name the container to the plugin."""
        names = self.vendor.resources
        limits = (container.resources and container.resources.limits) or {}
        count = limits.get(names.count)
        if count is None:
            return container
        cards = quantity.rounded_up(count, what=f"container {container.name}, {names.count}")
        if cards > 1 and names.cores:
            every = {names.cores: str(cards * WHOLE_CARD)}
            container = container_edits.limits_of(container, every)
        named = any(
            variable and variable.name == CONTAINER_NAME for variable in container.env or ()
        )
        if container.name and not named:
            container = container_edits.variable(container, CONTAINER_NAME, container.name)
        return container
