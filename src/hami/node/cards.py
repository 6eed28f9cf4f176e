"""A node's GPUs as its driver tells them: what is there, and what is wrong with which.

Plain values: nothing here asks the driver. Names and sizes are NVML's own; what of them is offered
to pods is decided elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

#: The far end of an NVLink that goes to a switch and not straight to another card.
NVSWITCH = "switch"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A part of a card that was cut off by MIG, before us and not by us."""

    uuid: str
    #: As NVIDIA names it: 1g.10gb.
    profile: str
    #: Bytes.
    memory: int
    gpu_instance_id: int
    compute_instance_id: int
    #: The card's UUID.
    parent: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    uuid: str
    #: NVML's: the place among the cards in the order of the bus.
    index: int
    #: Of /dev/nvidia<minor>; None: the driver does not tell.
    minor: int | None
    #: NVML's product name, unchanged.
    name: str
    #: Bytes; 0: the driver does not tell.
    memory: int
    #: The NUMA node that the card is next to; 0 where that is not known.
    numa: int
    #: As the kernel writes it: 0000:1a:00.0.
    bus_id: str
    mig_enabled: bool
    mig: tuple[MigDevice, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that concerns one card (or part of it) and leaves the others as they are."""

    #: The card by index or UUID, or both.
    subject: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.rule}; {self.remedy}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardLinks:
    """How a card reaches the others of its node, as the card itself tells it."""

    uuid: str
    bus_id: str
    #: NVML's topology level by the other card's UUID; one that is missing could not be told.
    ancestors: Mapping[str, int]
    #: The far end of each NVLink that is up: a card's bus id, or NVSWITCH.
    nvlinks: tuple[str, ...] = ()
