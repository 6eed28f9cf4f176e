"""Pods without a valid grant, as in section 7 of docs/placement.md.

tests/oracle/reference_holdings.py adds them to the cards of a node after all other pods.
"""

from __future__ import annotations

from hami.wire import annotation_keys as keys
from hami.wire import objects, shares
from tests.oracle.reference_cards import Card
from tests.oracle.reference_request import Kind, read_ask, read_count
from tests.oracle.reference_vendor import Ask, RefVendor, take_of

FORGED = "forged"
"""The signature that is not valid, in scenarios; every other one is."""


def asks_for_cards(pod: objects.Pod, vendor: RefVendor) -> bool:
    return any(read_count(container, vendor) for _, container in pod.containers())


def is_forged(pod: objects.Pod) -> bool:
    return pod.annotation(keys.GRANT_MAC) == FORGED


def is_unproven(pod: objects.Pod, vendor: RefVendor) -> bool:
    if not asks_for_cards(pod, vendor):
        return False
    return not pod.annotation(vendor.allocated) or is_forged(pod)


def listed_shares(pod: objects.Pod, vendor: RefVendor) -> list[tuple[shares.Share, ...]]:
    """Return what the annotation lists for each container; scenarios list all or none."""
    containers = list(pod.containers())
    listed = shares.decode(pod.annotation(vendor.allocated))
    if listed and vendor.held is not None:
        listed = vendor.held(pod, listed)
    return list(listed) or [()] * len(containers)


def unproven_shares(
    pod: objects.Pod, vendor: RefVendor, cards: list[Card]
) -> list[tuple[Kind, tuple[shares.Share, ...]]]:
    """Return the shares that the pod counts with; `cards` have what all before it use."""
    now = [Card(c.device, c.column, c.cordoned, c.shares, c.memory, c.cores) for c in cards]
    result = []
    for (kind, container), listed in zip(pod.containers(), listed_shares(pod, vendor), strict=True):
        ask = read_ask(container, vendor)
        counted = of_container(vendor, ask, listed, now)
        if kind is not Kind.INIT:
            for share in counted:
                (card,) = (c for c in now if c.device.id == share.card)
                card.shares += share.slots
                card.memory += share.memory_mib
                card.cores += share.cores
        result.append((kind, () if kind is Kind.INIT and pod.init_done else counted))
    return result


def of_container(
    vendor: RefVendor, ask: Ask | None, listed: tuple[shares.Share, ...], cards: list[Card]
) -> tuple[shares.Share, ...]:
    known = {card.device.id: card for card in cards}
    counted = [
        share_on(known[share.card], vendor, ask, share) for share in listed if share.card in known
    ]
    without_card: list[shares.Share | None] = [share for share in listed if share.card not in known]
    if ask is not None:
        without_card += [None] * max(0, ask.count - len(listed))
    for share in without_card:
        candidates = [
            (card, share_on(card, vendor, ask, share))
            for card in cards
            if card.device.id not in [each.card for each in counted]
        ]
        if not candidates:
            continue
        with_room = [(card, part) for card, part in candidates if has_room(card, part)]
        if with_room:
            best = sorted(with_room, key=lambda pair: (memory_left(pair[0]), pair[0].column))
        else:
            best = sorted(candidates, key=lambda pair: (-memory_left(pair[0]), pair[0].column))
        counted.append(best[0][1])
    return tuple(counted)


def memory_left(card: Card) -> int:
    return card.device.devmem - card.memory


def has_room(card: Card, share: shares.Share) -> bool:
    if card.shares + share.slots > card.device.count:
        return False
    if share.cores == 0 and 0 < card.device.devcore <= card.cores:
        return False
    if share.cores == card.device.devcore == shares.WHOLE_CARD and card.shares > 0:
        return False
    return memory_left(card) >= share.memory_mib and card.device.devcore - card.cores >= share.cores


def share_on(
    card: Card, vendor: RefVendor, ask: Ask | None, share: shares.Share | None
) -> shares.Share:
    """Return the larger of what is listed and what is asked for."""
    memory, cores, slots = 0, 0, 1
    if share is not None:
        memory, cores, slots = share.memory_mib, share.cores, share.slots
    if ask is not None:
        take = take_of(vendor, card.device, ask)
        memory, cores = max(memory, take.memory), max(cores, take.cores)
        slots = max(slots, take.shares)
    return shares.Share(card.device.id, vendor.name, memory, cores, slots)


def unproven_quota(pod: objects.Pod, vendor: RefVendor) -> list[tuple[Kind, int, int]]:
    """Return the memory and cores by which each container counts in its quota."""
    result = []
    for (kind, container), listed in zip(pod.containers(), listed_shares(pod, vendor), strict=True):
        ask = read_ask(container, vendor)
        memory = sum(share.memory_mib for share in listed)
        cores = sum(share.cores for share in listed)
        if ask is not None:
            memory = max(memory, ask.count * ask.memory)
            cores = max(cores, ask.count * ask.cores)
        ended = kind is Kind.INIT and pod.init_done
        result.append((kind, 0 if ended else memory, 0 if ended else cores))
    return result
