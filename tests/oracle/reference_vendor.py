"""A vendor of the reference: names, defaults and rules of its own.

The product has rows of its own (hami.vendors); the two are kept apart, so that a wrong row cannot
be wrong on both sides. tests/oracle/sample_vendors.py has two vendors for hand-made cases,
tests/oracle/families all that are built in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from hami.wire import node_register, objects
from hami.wire.shares import PodShares, Share
from tests.oracle.reference_cards import Card

NOW = 1_700_000_000
"""Seconds since the epoch when grants of the reference are written."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """What one container asks of one vendor."""

    count: int
    #: MiB; 0: the percentage holds.
    memory: int
    #: Percent of each card; 0: absent.
    percentage: int
    cores: int
    #: Parts of a card, where a vendor cuts cards into such; 0: the rest decides.
    slices: int = 0


@dataclasses.dataclass(frozen=True)
class Take:
    """What a request takes of one card."""

    #: MiB.
    memory: int
    cores: int
    shares: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grant:
    """What a vendor's annotations are written from."""

    #: Names of containers, init containers first, and their shares.
    containers: Sequence[str]
    shares: PodShares
    #: By id, the vendor's cards on the node.
    cards: Mapping[str, node_register.RegisteredCard]

    def in_order(self) -> list[tuple[str, Share]]:
        """Return (name of the container, share) for all shares, in their order."""
        pairs = zip(self.containers, self.shares, strict=True)
        return [(name, share) for name, each in pairs for share in each]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefVendor:
    """What the filter must know of a vendor; an empty name or key: the vendor has none."""

    name: str
    # Resources.
    count: str
    memory: str = ""
    percentage: str = ""
    cores: str = ""
    memory_factor: int = 1
    default_memory: int = 0
    default_cores: int = 0
    reads_requests: bool = True
    # Annotation keys: of the node, of the pod, of the pod's user.
    register: str = ""
    cordon: str = ""
    to_allocate: str = ""
    allocated: str = ""
    use_type: str = ""
    nouse_type: str = ""
    use_uuid: str = ""
    nouse_uuid: str = ""
    mode: str = ""
    numa_bind: str = ""
    enforces_quota: bool = True
    bounded_by_ids: bool = True
    needs_offer: bool = False
    checks: tuple[str, ...] = ("shares", "memory", "cores", "exclusive", "exhausted")
    #: TYPE in device lists; empty: its name.
    word: str = ""

    # Rules of its own; None: as all other vendors. A rule of reading may raise WireError.
    #: The cards that a node has; None: a JSON register.
    read_cards: Callable[[objects.Node], list[node_register.RegisteredCard]] | None = None
    #: A container as admission leaves it; the number is the slices of a card in this fleet.
    admit: Callable[[objects.Container, int], objects.Container] | None = None
    read_ask: Callable[[objects.Container], Ask | None] | None = None
    #: What a request takes of a card; None: the card has nothing like it.
    takes: Callable[[node_register.RegisteredCard, Ask], Take | None] | None = None
    #: The reason to refuse a card that all other checks accept.
    rule: Callable[[Card, Ask], str | None] | None = None
    #: TYPE in device lists, if it depends on the card.
    word_of: Callable[[node_register.RegisteredCard], str] | None = None
    #: The vendor's shares of a pod's list, with what other annotations say of them.
    held: Callable[[objects.Pod, PodShares], PodShares] | None = None
    #: Annotations beside the list.
    record: Callable[[Grant], dict[str, str]] | None = None


def take_of(vendor: RefVendor, device: node_register.RegisteredCard, ask: Ask) -> Take:
    """Return what a request takes of a card; of one that has nothing like it, nothing."""
    if vendor.takes is not None:
        return vendor.takes(device, ask) or Take(0, 0, 0)
    return plain_take(device, ask)


def plain_take(device: node_register.RegisteredCard, ask: Ask) -> Take:
    """Return the m and c of section 4."""
    memory = ask.memory if ask.memory > 0 else device.devmem * ask.percentage // 100
    return Take(memory, ask.cores)
