"""A scenario while it is made: tape, nodes and pods so far, what they leave free.

The modules scenario_nodes, scenario_placed_pods, scenario_incoming_pod and scenario_quotas take a
draft and add their part; scenarios.py calls them in this order.
"""

from __future__ import annotations

import dataclasses

from hami.wire import node_register, objects
from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import RefVendor
from tests.oracle.scenario_flavours import Flavour
from tests.oracle.scenario_tape import Tape

Amounts = dict[str, objects.Amount | None]

NAMESPACE = "team"
UID = "uid-incoming"


@dataclasses.dataclass
class Draft:
    """What is decided so far."""

    tape: Tape
    flavour: Flavour
    vendors: tuple[RefVendor, ...]
    #: Cards by node and vendor name.
    nodes: dict[str, dict[str, list[node_register.RegisteredCard]]] = dataclasses.field(
        default_factory=dict
    )
    cordons: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Of which node a node is a copy.
    originals: dict[str, str] = dataclasses.field(default_factory=dict)
    pods: list[objects.Pod] = dataclasses.field(default_factory=list)
    #: Cards with what is used of them, by node and vendor name, once the pods are placed.
    cards: dict[str, dict[str, list[Card]]] = dataclasses.field(default_factory=dict)

    @property
    def nvidia(self) -> RefVendor:
        """NVIDIA's row here, which may have other defaults than the shipped one."""
        return next(vendor for vendor in self.vendors if vendor.name == "NVIDIA")

    def counting_pods(self) -> list[objects.Pod]:
        """Return the pods that use something: neither finished nor the incoming one."""
        return [pod for pod in self.pods if pod.uid != UID and not pod.finished]

    def some_card(self, vendor: str) -> Card | None:
        """Pick a card whose room gives a request its size."""
        cards = [card for cards in self.cards.values() for card in cards[vendor]]
        return self.tape.pick(cards) if cards else None
