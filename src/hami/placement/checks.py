"""The checks that refuse nodes and cards, each for all nodes at once.

Masks have shape (card, node). The order of the checks, and with it the reported reason, is the
order of the bits in `hami.placement.reasons`; the conditions stand in docs/placement.md, sections 3
and 4.
"""

from __future__ import annotations

import numpy as np

from hami.cluster.card_table import Cards, CardTable, Flags
from hami.cluster.quota import Headroom
from hami.placement import rules
from hami.placement.question import Question, State
from hami.placement.reasons import NodeReason, Standing, Usage
from hami.placement.request import WHOLE_CARD, CardRequest, Wishes
from hami.placement.rules import Mask
from hami.placement.score import Amounts
from hami.wire import text_values

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


def node_refusals(shelf: CardTable, rows: slice, question: Question) -> Flags:
    """Find the first check of the node itself that fails, for every row."""
    nodes = shelf.totals.occupied[rows].shape
    unregistered, absent, too_few, no_ids = (np.zeros(nodes, dtype=np.bool_) for _ in range(4))
    for word, total in question.totals.items():
        ids = shelf.ids[word]
        cards, offered = ids.cards[rows], ids.offered[rows]
        absent |= cards == 0
        too_few |= cards < question.most_cards[word]
        if question.vendors[word].bounded_by_ids:
            unregistered |= (cards > 0) & (offered == 0)
            no_ids |= offered - ids.held[rows] < total.count
    refusal = np.zeros(nodes, dtype=np.uint8)
    in_order = (unregistered, absent, too_few, no_ids)  # as in NODE_REASONS; the first one stays
    for number, failing in reversed(list(enumerate(in_order, start=1))):
        refusal[failing] = number
    return refusal


def standing_refusals(cards: Cards, rows: int, wishes: Wishes) -> Flags:
    """Collect what refuses a card however empty it is: tables and the user's wishes."""
    refused: Flags = cards.refused[:, :rows].copy()  # explanations outlive the tables
    for column, row in cards.closed:
        refused[column, row] |= Standing.CORDONED
    if wishes.use_types or wishes.nouse_types:
        wrong = [0 if _type_accepted(t, wishes) else Standing.TYPE for t in cards.types.texts]
        refused |= np.array(wrong, dtype=np.uint8)[cards.type_number[:, :rows]]
    if wishes.mode:
        wrong = [0 if mode in wishes.mode else Standing.MODE for mode in cards.modes.texts]
        refused |= np.array(wrong, dtype=np.uint8)[cards.mode_number[:, :rows]]
    if wishes.use_uuids or wishes.nouse_uuids:
        unwanted = np.full(refused.shape, Standing.UUID if wishes.use_uuids else 0, dtype=np.uint8)
        for accepted, uuids in ((0, wishes.use_uuids), (Standing.UUID, wishes.nouse_uuids)):
            for uuid in uuids:
                for row, column in cards.cells.get(uuid, ()):
                    unwanted[column, row] = accepted
        refused |= unwanted
    return refused


def _type_accepted(card_type: str, wishes: Wishes) -> bool:
    if any(text_values.matches_product(token, card_type) for token in wishes.nouse_types):
        return False
    return not wishes.use_types or any(
        text_values.matches_product(token, card_type) for token in wishes.use_types
    )


def memory_wanted(request: CardRequest, cards: Cards, rows: slice) -> Amounts:
    """Return the MiB a request takes of a card; of each card where it is a percentage."""
    if request.memory:
        return request.memory
    if request.percentage == WHOLE_CARD:
        return cards.memory[:, rows]
    return cards.memory[:, rows] * request.percentage // WHOLE_CARD


def usage_refusals(
    request: CardRequest,
    cards: Cards,
    rows: slice,
    *,
    state: State,
    memory: Amounts,
    headroom: Headroom,
    idle_only: bool,
    rule: rules.CardRule | None,
) -> Flags:
    """Collect what refuses a card as full as it is now."""
    total_cores = cards.cores[:, rows]
    refused = (state.used >= cards.count[:, rows]).view(np.uint8)  # Usage.SLOTS is 1

    def refuse(failing: Mask, bit: Usage) -> None:
        np.bitwise_or(refused, failing.view(np.uint8) * np.uint8(bit), out=refused)

    if idle_only:
        refuse(state.used > 0, Usage.NOT_IDLE)
    for left, own, each in (
        (headroom.memory, state.own_memory.now, memory),
        (headroom.cores, state.own_cores.now, request.cores),
    ):
        if left is not None:
            more = np.asarray(request.count * each)
            refuse((more > 0) & (own + more > left), Usage.QUOTA)
    refuse(state.memory_left < memory, Usage.MEMORY)
    refuse(state.cores_left < request.cores, Usage.CORES)
    if request.cores == WHOLE_CARD:
        refuse((total_cores == WHOLE_CARD) & (state.used > 0), Usage.NOT_EXCLUSIVE)
    if request.cores == 0:
        refuse((state.cores_left <= 0) & (total_cores != 0), Usage.NO_COMPUTE_LEFT)
    if rule is not None:
        refuse(rule.refused(cards, rows), Usage.RULE)
    return refused
