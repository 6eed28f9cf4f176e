"""A family of the oracle: vendors, random nodes and requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hami.wire import objects
from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import RefVendor
from tests.oracle.scenario_tape import Tape

Amounts = dict[str, objects.Amount | None]


@dataclasses.dataclass(kw_only=True)
class Registered:
    """What one node has of a vendor, as its plugin registers it."""

    annotations: dict[str, str | None] = dataclasses.field(default_factory=dict)
    capacity: Amounts = dataclasses.field(default_factory=dict)
    #: What kubelet offers, where it is not the capacity.
    allocatable: Amounts | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """The vendors of a module, and how their nodes and requests are drawn."""

    name: str
    #: In the order of the table. A node has cards of one of them.
    vendors: tuple[RefVendor, ...]
    #: Draw what the node with this name registers for a vendor.
    node: Callable[[Tape, str, RefVendor], Registered]
    #: Draw the limits of a container; the card is of the vendor, as full as it is. None: there is
    #: no card in the fleet.
    request: Callable[[Tape, RefVendor, Card | None], Amounts]
