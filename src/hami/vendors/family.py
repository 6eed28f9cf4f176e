"""Families of vendors: how cards are read, sized, refused, chosen and recorded.

The core (cluster, placement) handles cards of all vendors alike and asks a family where vendors
differ. `Plain` is the family of a vendor that its row describes completely; a family of its own
derives from it and changes what is special. `hami.vendors.families` finds the family of a vendor.

A family is asked about all cards of all nodes at once. The columns of numbers that it gets and
returns are the core's; here they are used through their operators only, without numpy, so that
admission can call a family too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from hami.vendors import card_request
from hami.vendors.card_request import WHOLE_CARD as WHOLE_CARD  # noqa: PLC0414 exported, too
from hami.vendors.card_request import CardRequest as CardRequest  # noqa: PLC0414 exported, too
from hami.vendors.table import Vendor
from hami.wire import errors, node_register, objects, quantity, shares, text_values
from hami.wire.node_register import RegisteredCard

MAX_CARDS = 256
"""More cards of one vendor on one node than any machine has: beyond it an annotation is broken."""

Column = TypeVar("Column")
Column_co = TypeVar("Column_co", covariant=True)
Mask_co = TypeVar("Mask_co", covariant=True)
Mask = TypeVar("Mask")


class Reason(enum.StrEnum):
    """Why a card is refused, in HAMi's words: users and tools read them."""

    CARD_NOT_HEALTH = "CardNotHealth"
    CARD_CORDONED = "CardCordoned"
    CARD_TYPE_MISMATCH = "CardTypeMismatch"
    MODE_NOT_FIT = "ModeNotFit"
    CARD_UUID_MISMATCH = "CardUuidMismatch"
    CARD_TIME_SLICING_EXHAUSTED = "CardTimeSlicingExhausted"
    EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT = "ExclusiveDeviceAllocateConflict"
    RESOURCE_QUOTA_NOT_FIT = "ResourceQuotaNotFit"
    CARD_INSUFFICIENT_MEMORY = "CardInsufficientMemory"
    CARD_INSUFFICIENT_CORE = "CardInsufficientCore"
    CARD_COMPUTE_UNITS_EXHAUSTED = "CardComputeUnitsExhausted"
    CARD_MIG_TOPOLOGY_INFEASIBLE = "CardMigTopologyInfeasible"
    CARD_NOT_FOUND_CUSTOM_FILTER_RULE = "CardNotFoundCustomFilterRule"
    NUMA_NOT_FIT = "NumaNotFit"
    ALLOCATED_CARDS_INSUFFICIENT_REQUEST = "AllocatedCardsInsufficientRequest"


class Amount(msgspec.Struct, Generic[Column], frozen=True):
    """What a request takes of a card: one number, or a column with one for each card."""

    #: MiB.
    memory: Column
    #: Percent, or compute units; 0 reserves nothing.
    cores: Column | int
    #: Of the shares that the card has.
    slots: Column | int = 1


class ChosenShare(msgspec.Struct, frozen=True):
    """One container's part of one card, as a family chose it."""

    #: Id of the card.
    card: str
    amount: Amount[int]
    #: TYPE in the device list; empty: the vendor's name.
    type: str = ""
    #: Where on the card: an instance or template, where the vendor has such; None is anywhere.
    placement: object = None


class CardSizes(Protocol[Column_co]):
    """One card, or the cards of one vendor on many nodes: what they have when nothing is used."""

    @property
    def memory(self) -> Column_co: ...

    @property
    def cores(self) -> Column_co: ...

    def by_mode(self, number: Callable[[str], int]) -> Column_co:
        """Return what a function makes of the mode with which each card is registered."""


class CardState(Protocol[Mask_co]):
    """The cards of one vendor on many nodes, as full as they are now."""

    def in_mode(self, mode: str) -> Mask_co | None:
        """Return which cards are registered with a mode; None if no card is."""

    def where_mode(self, accepts: Callable[[str], bool]) -> Mask_co:
        """Return the cards whose mode a function accepts."""

    def lacks_slots(self, slots: Callable[[str], int]) -> Mask_co:
        """Return the cards with fewer shares left than a function makes of their mode."""


class OneCard:
    """The sizes of one card."""

    def __init__(self, card: RegisteredCard) -> None:
        self.memory = card.devmem
        self.cores = card.devcore
        self._mode = card.mode

    def by_mode(self, number: Callable[[str], int]) -> int:
        return number(self._mode)


class Grant(msgspec.Struct, frozen=True):
    """What a Binding knows beside the shares that it records."""

    #: One per container, init containers first.
    containers: tuple[str, ...]
    #: The vendor's cards on the node, by id.
    cards: Mapping[str, RegisteredCard]
    #: Seconds since the epoch.
    now: float


class Fleet(Protocol):
    """What admission knows of the nodes."""

    def slices(self, vendor: str) -> int:
        """Return into how many parts nodes cut each card of a vendor; 0: not known."""


class Family(Protocol):
    """The behaviour of one vendor's cards."""

    vendor: Vendor

    def asking(self) -> tuple[str, ...]:
        """Return the resources of which a container that asks for cards names at least one."""

    def claims(self, container: objects.Container) -> bool:
        """Return whether a container makes its pod ours, even if it asks for no card."""

    def complete(self, container: objects.Container, fleet: Fleet) -> objects.Container:
        """Return a container with what admission adds; raises WireError for a bad request."""

    def request(self, container: objects.Container) -> CardRequest | None:
        """Return what a container asks for; None: no card. Raises WireError."""

    def count(self, container: objects.Container) -> int:
        """Return how many cards a container asks for; raises WireError for what is no number."""

    def read_cards(self, node: objects.Node) -> tuple[RegisteredCard, ...]:
        """Return the vendor's cards on a node, sorted by (index, id)."""

    def amounts(self, request: CardRequest, cards: CardSizes[Column]) -> Amount[Column | int]:
        """Return what a request takes of a card, or of each of a column."""

    def refuse(self, request: CardRequest, state: CardState[Mask]) -> Mapping[Reason, Mask]:
        """Return the cards that only this vendor refuses, by reason; the first reason counts."""

    def choose(
        self, request: CardRequest, cards: Sequence[RegisteredCard]
    ) -> tuple[ChosenShare, ...]:
        """Return a container's shares of the cards that the policy took on the best node."""

    def record(self, pod_shares: shares.PodShares, grant: Grant) -> dict[str, str]:
        """Return the annotations that give a pod its shares."""

    def recorded(self, pod_shares: shares.PodShares, pod: objects.Pod) -> shares.PodShares:
        """Return of a pod's device list the vendor's shares, with what its other keys tell."""


def _too_many(what: str, cards: int) -> errors.WireError:
    rule = f"is more than the {MAX_CARDS} a node can have"
    return errors.WireError(what, f"{cards} cards", rule)


def capacity(node: objects.Node, resource: str) -> int:
    """Return what a node has of a resource, 0 for none; raises WireError for what is no amount."""
    amount = node.capacity.get(resource) if resource else None
    if amount is None:
        return 0
    return quantity.exact_integer(amount, what=f"node {node.name}, capacity {resource}")


class Plain:
    """A vendor that its row describes completely."""

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor

    def asking(self) -> tuple[str, ...]:
        return (self.vendor.resources.count,)

    def claims(self, container: objects.Container) -> bool:  # noqa: ARG002 the protocol's
        """Claim no container without cards."""
        return False

    def complete(self, container: objects.Container, fleet: Fleet) -> objects.Container:  # noqa: ARG002 the protocol's
        """Change nothing."""
        return container

    def request(self, container: objects.Container) -> CardRequest | None:
        """Read the resources that the row names."""
        return card_request.read(container, self.vendor)

    def count(self, container: objects.Container) -> int:
        return card_request.count(container, self.vendor)

    def read_cards(self, node: objects.Node) -> tuple[RegisteredCard, ...]:
        """Read the register annotation; raises WireError if it does not decode.

        Writers list cards in any order, and a position in the card table must not depend on it.
        """
        codec = self.vendor.register_codec
        if codec == "capacity":
            return self._cards_of_capacity(node)
        key = self.vendor.annotations.register
        value = node.annotation(key)
        if not value:
            return ()
        what = f"node {node.name}, {key}"
        if codec == "json":
            cards = node_register.decode_json(value, what=what)
        elif codec == "colon":
            cards = node_register.decode_colon(value, what=what)
        else:
            cards = self.decode_cards(node, value, what=what)
        if len(cards) > MAX_CARDS:
            raise _too_many(what, len(cards))
        if (cores := self.vendor.card_cores) != 0:
            cards = tuple(msgspec.structs.replace(card, devcore=cores) for card in cards)
        return tuple(sorted(cards, key=lambda card: (card.index, card.id)))

    def decode_cards(
        self, node: objects.Node, value: str, *, what: str
    ) -> tuple[RegisteredCard, ...]:
        """Read a register annotation of the family's own format."""
        raise NotImplementedError

    def _cards_of_capacity(self, node: objects.Node) -> tuple[RegisteredCard, ...]:
        """Make the cards that the node's capacity tells of."""
        row, names = self.vendor.capacity, self.vendor.resources
        assert row is not None, "the table has checked it"
        total = capacity(node, getattr(names, row.resource, row.resource))
        cards = -(-total // row.per_card)
        if cards > MAX_CARDS:
            raise _too_many(f"node {node.name}, capacity", cards)
        memory = row.memory
        if total and not memory and names.memory:
            units = capacity(node, names.memory) * self.vendor.memory_factor
            memory = min(units * row.per_card // total, text_values.INT32_MAX)
        return tuple(
            RegisteredCard(
                id=f"{node.name}-{row.id}-{index}",
                index=index,
                count=row.count,
                devmem=memory,
                devcore=row.cores,
                type=row.type,
                health=True,
            )
            for index in range(cards)
        )

    def amounts(self, request: CardRequest, cards: CardSizes[Column]) -> Amount[Column | int]:
        """Take MiB as they are, and a percentage rounded down."""
        if not self.vendor.sized:
            return Amount(0, 0)
        memory: Any = request.memory  # a number or a column: both multiply and divide
        if not memory:
            memory = cards.memory
            if request.percentage != WHOLE_CARD:
                memory = memory * request.percentage // WHOLE_CARD
        return Amount(memory, request.cores)

    def refuse(self, request: CardRequest, state: CardState[Mask]) -> Mapping[Reason, Mask]:  # noqa: ARG002 the protocol's
        """Refuse nothing: the checks of all vendors are enough."""
        return {}

    def choose(
        self, request: CardRequest, cards: Sequence[RegisteredCard]
    ) -> tuple[ChosenShare, ...]:
        """Share every card that the policy took."""
        product = self.vendor.lists_product
        return tuple(
            ChosenShare(
                card.id,
                self.amounts(request, OneCard(card)),
                card.type if product else self.vendor.type_word,
            )
            for card in cards
        )

    def record(self, pod_shares: shares.PodShares, grant: Grant) -> dict[str, str]:  # noqa: ARG002 the protocol's
        """Write the list twice: HAMi's device plugins consume the first, the second stays.

        An empty key is left out: it is no valid name of an annotation.
        """
        devices = shares.encode(pod_shares)
        keys = self.vendor.annotations
        return {key: devices for key in (keys.to_allocate, keys.allocated) if key}

    def recorded(self, pod_shares: shares.PodShares, pod: objects.Pod) -> shares.PodShares:  # noqa: ARG002 the protocol's
        """Take the list as it is."""
        return pod_shares
