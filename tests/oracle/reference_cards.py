"""A card of a node in the reference, and what is used of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hami.wire import node_register


@dataclasses.dataclass
class Card:
    """A card of a node, and what is used of it in a state."""

    device: node_register.RegisteredCard
    column: int
    cordoned: bool
    shares: int = 0
    memory: int = 0
    cores: int = 0


State = Mapping[str, list[Card]]
"""The cards of one node by vendor name."""
