"""The checks that refuse nodes and cards, each for all nodes at once.

While all cards are checked at once a refusal is a bit. Two bytes per card are enough for what holds
for every vendor: `Fixed` for what does not depend on how full the card is, `Usage` for what does.
The bits are in the order in which reasons are reported (docs/placement.md, sections 3 and 4), so a
card's reason is its lowest bit, first of `Fixed`, then of `Usage`, then its family's own reason.

Masks have shape (card, node).
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec
import numpy as np

from hami.cluster import card_table
from hami.cluster.card_table import Cards, CardTable, Flags, Ints, Mask
from hami.cluster.quota import Headroom
from hami.placement.question import Question, State
from hami.placement.request import CardSelector
from hami.placement.score import Numbers
from hami.vendors.family import WHOLE_CARD, Amount, CardRequest, Family, Reason
from hami.wire import text_values

REASONS = tuple(Reason)
REASON_NUMBERS = {reason: number for number, reason in enumerate(REASONS, start=1)}
"""The number of a reason in arrays; 0 is no reason."""


class NodeReason(enum.StrEnum):
    """Why a whole node is refused, before any card is checked, in HAMi's words."""

    UNREGISTERED = "node unregistered"
    NO_SUCH_DEVICE = "Device type not found"
    TOO_FEW_CARDS = "NodeInsufficientDevice"
    #: The same word in HAMi; `NODE_DETAILS` has different ones.
    TOO_FEW_IDS = "NodeInsufficientDevice"


NODE_REASONS = (
    None,
    NodeReason.UNREGISTERED,
    NodeReason.NO_SUCH_DEVICE,
    NodeReason.TOO_FEW_CARDS,
    NodeReason.TOO_FEW_IDS,
)
"""A node's refusal is a number into this."""

NODE_DETAILS = (
    "",
    "kubelet offers no device id: the device plugin has not registered",
    "the node has no card of this vendor",
    "the node has fewer cards than one container asks for",
    "kubelet has fewer free device ids than the pod needs",
)
"""The same in words; HAMi's reasons do not say as much."""


class Fixed(enum.IntFlag):
    """Refusals that do not depend on use. The first three are kept in the card table."""

    ABSENT = card_table.ABSENT
    NOT_HEALTHY = card_table.NOT_HEALTHY
    CORDONED = card_table.CORDONED
    TYPE = 8
    MODE = 16
    UUID = 32


class Usage(enum.IntFlag):
    """Refusals that depend on what is used and on the request."""

    SHARES = 1
    NOT_IDLE = 2
    QUOTA = 4
    MEMORY = 8
    CORES = 16
    NOT_EXCLUSIVE = 32
    NO_COMPUTE_LEFT = 64


FIXED_REASONS: dict[int, Reason] = {
    Fixed.NOT_HEALTHY: Reason.CARD_NOT_HEALTH,
    Fixed.CORDONED: Reason.CARD_CORDONED,
    Fixed.TYPE: Reason.CARD_TYPE_MISMATCH,
    Fixed.MODE: Reason.MODE_NOT_FIT,
    Fixed.UUID: Reason.CARD_UUID_MISMATCH,
}

USAGE_REASONS: dict[int, Reason] = {
    Usage.SHARES: Reason.CARD_TIME_SLICING_EXHAUSTED,
    Usage.NOT_IDLE: Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
    Usage.QUOTA: Reason.RESOURCE_QUOTA_NOT_FIT,
    Usage.MEMORY: Reason.CARD_INSUFFICIENT_MEMORY,
    Usage.CORES: Reason.CARD_INSUFFICIENT_CORE,
    Usage.NOT_EXCLUSIVE: Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
    Usage.NO_COMPUTE_LEFT: Reason.CARD_COMPUTE_UNITS_EXHAUSTED,
}


class CardRefusals(msgspec.Struct, frozen=True):
    """Why each card (card, node) is refused for one request; all 0 is an eligible card."""

    #: Bits of Fixed.
    fixed: Flags
    #: Bits of Usage.
    usage: Flags
    #: Number of the family's own reason; None: the family refuses no card.
    own: Flags | None = None

    def eligible(self) -> Mask:
        refused = self.fixed | self.usage
        if self.own is not None:
            refused |= self.own
        eligible: Mask = refused == 0
        return eligible

    def of_row(self, row: int) -> CardRefusals:
        """Return the refusals on one node."""
        at = slice(row, row + 1)
        own = None if self.own is None else self.own[:, at]
        return CardRefusals(self.fixed[:, at], self.usage[:, at], own)

    def only(self, bit: Usage) -> list[int]:
        """Return the positions of the cards of one node that this refuses and nothing else."""
        usage = self.usage.ravel().tolist()
        if bit not in usage:
            return []
        others = self.fixed.ravel() if self.own is None else (self.fixed | self.own).ravel()
        return [at for at, bits in enumerate(usage) if bits == bit and not others[at]]

    def of_rows(self, rows: Ints) -> CardRefusals:
        """Return the refusals on some nodes."""
        if rows.size == self.fixed.shape[1]:  # picking all would cost more than all else
            return self
        own = None if self.own is None else self.own.take(rows, axis=1)
        return CardRefusals(self.fixed.take(rows, axis=1), self.usage.take(rows, axis=1), own)

    def replaced(self, nodes: Mask, by: CardRefusals) -> CardRefusals:
        """Return these refusals, but those of `by` on the given nodes."""
        own = None
        if self.own is not None or by.own is not None:
            before, after = (0 if own is None else own for own in (self.own, by.own))
            own = np.where(nodes, after, before).astype(np.uint8, copy=False)
        return CardRefusals(
            np.where(nodes, by.fixed, self.fixed), np.where(nodes, by.usage, self.usage), own
        )


def node_refusals(table: CardTable, rows: slice, question: Question) -> Flags:
    """Find the first check of the node itself that fails, for every row."""
    nodes = table.totals.occupied[rows].shape
    unregistered, absent, too_few, no_ids = (np.zeros(nodes, dtype=np.bool_) for _ in range(4))
    for vendor, total in question.totals.items():
        ids = table.ids[vendor]
        cards, offered = ids.cards[rows], ids.offered[rows]
        absent |= cards == 0
        too_few |= cards < question.most_cards[vendor]
        row = question.families[vendor].vendor
        if row.bounded_by_ids or row.needs_offer:
            unregistered |= (cards > 0) & (offered == 0)
        if row.bounded_by_ids:
            no_ids |= offered - ids.held[rows] < total.count
    refusal = np.zeros(nodes, dtype=np.uint8)
    in_order = (unregistered, absent, too_few, no_ids)  # as in NODE_REASONS; the first one counts
    for number, failing in reversed(list(enumerate(in_order, start=1))):
        refusal[failing] = number
    return refusal


def fixed_refusals(cards: Cards, rows: int, selector: CardSelector) -> Flags:
    """Collect what refuses a card however empty it is: health, cordon and the user's selector."""
    refused: Flags = cards.refused[:, :rows].copy()  # explanations outlive the tables
    for column, row in cards.closed:
        refused[column, row] |= Fixed.CORDONED
    if selector.use_types or selector.nouse_types:
        wrong = [0 if _type_accepted(t, selector) else Fixed.TYPE for t in cards.types.texts]
        refused |= np.array(wrong, dtype=np.uint8)[cards.type_number[:, :rows]]
    if selector.mode:
        wrong = [0 if mode in selector.mode else Fixed.MODE for mode in cards.modes.texts]
        refused |= np.array(wrong, dtype=np.uint8)[cards.mode_number[:, :rows]]
    if selector.use_uuids or selector.nouse_uuids:
        unwanted = np.full(refused.shape, Fixed.UUID if selector.use_uuids else 0, dtype=np.uint8)
        for accepted, uuids in ((0, selector.use_uuids), (Fixed.UUID, selector.nouse_uuids)):
            for uuid in uuids:
                for row, column in cards.cells.get(uuid, ()):
                    unwanted[column, row] = accepted
        refused |= unwanted
    return refused


def _type_accepted(card_type: str, selector: CardSelector) -> bool:
    if any(text_values.matches_product(part, card_type) for part in selector.nouse_types):
        return False
    return not selector.use_types or any(
        text_values.matches_product(part, card_type) for part in selector.use_types
    )


def usage_refusals(
    request: CardRequest,
    cards: Cards,
    rows: slice,
    *,
    state: State,
    amount: Amount[Numbers],
    headroom: Headroom,
    idle_only: bool,
    applied: Collection[str],
) -> Flags:
    """Collect what refuses a card as full as it is now, by the checks that the vendor applies."""
    if "shares" in applied:
        refused = (state.used >= cards.count[:, rows]).view(np.uint8)  # Usage.SHARES is 1
    else:
        refused = np.zeros(state.used.shape, dtype=np.uint8)

    def refuse(failing: Mask, bit: Usage) -> None:
        np.bitwise_or(refused, failing.view(np.uint8) * np.uint8(bit), out=refused)

    if idle_only or "idle" in applied:
        refuse(state.used > 0, Usage.NOT_IDLE)
    for left, own, each in (
        (headroom.memory, state.own_memory.now, amount.memory),
        (headroom.cores, state.own_cores.now, amount.cores),
    ):
        if left is not None:
            more = np.asarray(request.count * each)
            refuse((more > 0) & (own + more > left), Usage.QUOTA)
    if "memory" in applied:
        refuse(state.memory_left < amount.memory, Usage.MEMORY)
    if "cores" in applied:
        refuse(state.cores_left < amount.cores, Usage.CORES)
    if "exclusive" in applied and isinstance(amount.cores, int) and amount.cores == WHOLE_CARD:
        refuse((cards.cores[:, rows] == WHOLE_CARD) & (state.used > 0), Usage.NOT_EXCLUSIVE)
    if "exhausted" in applied and isinstance(amount.cores, int) and amount.cores == 0:
        refuse((state.cores_left <= 0) & (cards.cores[:, rows] != 0), Usage.NO_COMPUTE_LEFT)
    return refused


def own_refusals(family: Family, request: CardRequest, state: State) -> Flags | None:
    """Return numbers of the reasons that only the family has; None: it refuses no card."""
    refusals = family.refuse(request, state)
    if not refusals:
        return None
    numbers = np.zeros(state.used.shape, dtype=np.uint8)
    for reason, refused in reversed(list(refusals.items())):  # the first one counts
        numbers[refused] = REASON_NUMBERS[reason]
    return numbers
