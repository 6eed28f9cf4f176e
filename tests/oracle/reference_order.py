"""Order of cards: section 5 of docs/placement.md.

`choose` takes the cards for one container and one vendor, or says why there are too few. It is
called for one pair after the other by tests/oracle/reference.py.
"""

from __future__ import annotations

import math

from tests.oracle.reference_cards import Card
from tests.oracle.reference_checks import Case, failure_text, refuse_card
from tests.oracle.reference_quota import Running
from tests.oracle.reference_request import Weights, numa_bound
from tests.oracle.reference_vendor import Ask, RefVendor, Take, take_of


def device_score(card: Card, take: Take, weights: Weights) -> int:
    """Return the score as it is compared."""
    device = card.device
    if device.count == 0 or device.devcore == 0 or device.devmem == 0:
        raw = 0.0
    else:
        share = weights.slot * ((card.shares + take.shares) / device.count)
        core = weights.core * ((card.cores + take.cores) / device.devcore)
        memory = weights.memory * ((card.memory + take.memory) / device.devmem)
        raw = (share + core + memory) * 10
    total = weights.slot + weights.core + weights.memory
    return min(math.floor(raw / total * 1048576 + 0.5), 2**40)


def chain_order(words: list[str], *, bound: bool) -> list[str]:
    """Return what a chain sorts by, in order and without duplicates."""
    names = {"binpack": "score high", "spread": "score low", "numa": "numa high"}
    order: list[str] = []
    for word in words:
        if word in names and names[word] not in order:
            order.append(names[word])
    if not order:
        order = ["score low"]
    if bound:
        order = ["numa high", *(name for name in order if name != "numa high")]
    return order


def card_order(words: list[str], *, bound: bool) -> list[str]:
    """Return what the cards are sorted by, as `score high`, `numa low` and so on."""
    if len(words) != 1 or words == ["numa"]:
        return chain_order(words, bound=bound)
    word = words[0]
    if bound:
        return ["numa low", "score high"] if word == "binpack" else ["numa high", "score low"]
    if word == "binpack":
        return ["score high", "numa high"]
    if word == "mutex":
        return ["shares low", "numa high"]
    return ["score low", "numa high"]


def sort_key(
    case: Case, vendor: RefVendor, card: Card, ask: Ask, *, bound: bool
) -> tuple[int, ...]:
    """Return the key that puts the preferred card first, without the last tie-break."""
    wanted = case.wanted
    values = {
        "score": device_score(card, take_of(vendor, card.device, ask), wanted.weights),
        "numa": card.device.numa,
        "shares": card.shares,
    }
    key: list[int] = []
    for order in card_order(wanted.gpu_words, bound=bound):
        name, direction = order.split()
        key.append(-values[name] if direction == "high" else values[name])
    return tuple(key)


def groups_by_numa(cards: list[Card]) -> list[list[Card]]:
    """Return the NUMA groups, in the order in which their first cards stand."""
    groups: dict[int, list[Card]] = {}
    for card in cards:
        groups.setdefault(card.device.numa, []).append(card)
    return list(groups.values())


def choose(
    case: Case, vendor: RefVendor, cards: list[Card], ask: Ask, running: Running
) -> tuple[list[Card], str]:
    """Return the cards for one container and vendor, or no cards and the node's text."""
    reasons: list[str] = []
    eligible: list[Card] = []
    for card in cards:
        reason = refuse_card(case, vendor, card, ask, running)
        if reason is None:
            eligible.append(card)
        else:
            reasons.append(reason)
    if ask.memory == 0 and len({card.device.devmem for card in eligible}) > 1:
        case.traits.add("percentage of mixed memory")

    bound = numa_bound(case.wanted.pod, vendor)
    groups = groups_by_numa(eligible) if bound else [eligible]
    if not any(len(group) >= ask.count for group in groups):
        enough = len(eligible) >= ask.count
        reason = "NumaNotFit" if enough else "AllocatedCardsInsufficientRequest"
        reasons += [reason] * len(eligible)
        return [], failure_text(reasons, len(cards))
    return first_cards(case, vendor, eligible, ask, bound=bound), ""


def first_cards(
    case: Case, vendor: RefVendor, eligible: list[Card], ask: Ask, *, bound: bool
) -> list[Card]:
    """Take the first cards in the order of the policy; there are enough."""

    def key(card: Card) -> tuple[int, ...]:
        return sort_key(case, vendor, card, ask, bound=bound)

    # Highest column first, and Python's sort is stable: so goes the last tie.
    ordered = sorted(eligible, key=lambda card: card.column, reverse=True)
    ordered = sorted(ordered, key=key)
    if bound:
        groups = groups_by_numa(ordered)
        ordered = next(group for group in groups if len(group) >= ask.count)
    if len(ordered) > ask.count and key(ordered[ask.count - 1]) == key(ordered[ask.count]):
        case.traits.add("cards tied")
    return ordered[: ask.count]


def by_column(cards: list[Card]) -> list[Card]:
    """Return the chosen cards as they are listed, whatever the order of preference."""
    return sorted(cards, key=lambda card: card.column)
