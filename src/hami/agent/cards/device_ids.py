"""Device ids that kubelet counts by: `<card UUID>-<number>`, one per share.

kubelet chooses ids, the scheduler chooses cards, and the two need not agree: the card in an id's
name is only a hint. So the health of a held id follows the cards behind its grant, and of the free
ids exactly as many are healthy as healthy cards have free shares, whatever their names. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from hami.wire.node_register import RegisteredCard

_DASHES = 6
_REPLICA = "::"


@dataclasses.dataclass(frozen=True, slots=True)
class ListedDevice:
    """One id as kubelet gets it."""

    id: str
    healthy: bool
    #: The NUMA node; None: not listed, not known, or not exactly one.
    numa: int | None = None


def ids_of(device: RegisteredCard) -> Iterator[str]:
    """Yield the ids that are named after a card."""
    for number in range(device.count):
        yield f"{device.id}-{number}"


def listed(
    devices: Iterable[RegisteredCard],
    held: Mapping[str, frozenset[str]],
    used_shares: Mapping[str, int],
    *,
    numa: Mapping[str, int],
) -> tuple[ListedDevice, ...]:
    """Return every id, with its health.

    `held`: the cards behind each id that a container has. `used_shares`: how many shares of a card
    are taken. `numa`: the NUMA node of each card that has a known one, empty if none is to be
    listed. A held id stays in the list although its card was removed or the split count became
    smaller: else kubelet would not start its container again.
    """
    cards = {device.id: device for device in devices}
    named = {name: device for device in cards.values() for name in ids_of(device)}
    healthy = _healthy_free(cards, named, held, used_shares)
    listing = []
    for name in (*named, *sorted(held.keys() - named.keys())):
        behind = held.get(name)
        if behind is None:
            listing.append(ListedDevice(name, name in healthy, numa.get(named[name].id)))
            continue
        found = [cards[card] for card in sorted(behind) if card in cards]
        healthy_now = len(found) == len(behind) > 0 and all(device.health for device in found)
        nodes = {numa.get(device.id) for device in found}
        listing.append(ListedDevice(name, healthy_now, nodes.pop() if len(nodes) == 1 else None))
    return tuple(listing)


def _healthy_free(
    cards: Mapping[str, RegisteredCard],
    named: Mapping[str, RegisteredCard],
    held: Mapping[str, frozenset[str]],
    used_shares: Mapping[str, int],
) -> set[str]:
    """Choose the free ids that are healthy: first those whose own card has a free share."""
    free = [name for name in named if name not in held]
    room = {
        card: max(device.count - used_shares.get(card, 0), 0) if device.health else 0
        for card, device in cards.items()
    }
    free_shares = sum(room.values())
    own: list[str] = []
    rest: list[str] = []
    for name in free:
        card = named[name].id
        if room[card] > 0:
            room[card] -= 1
            own.append(name)
        else:
            rest.append(name)
    rest.sort(key=lambda name: not named[name].health)
    return set((own + rest)[:free_shares])


def physical_id(device_id: str) -> str:
    """Return the card that an id is named after."""
    card, replica, _ = device_id.partition(_REPLICA)
    if replica:
        return card
    card, _, number = device_id.rpartition("-")
    if device_id.count("-") == _DASHES and number.isascii() and number.isdigit():
        return card
    return device_id


def preferred(
    available: Collection[str], must_include: Sequence[str], size: int, wanted: Sequence[str]
) -> tuple[str, ...]:
    """Choose `size` ids named after the cards that a container was granted; empty: impossible.

    `wanted` names a card once for each share of it.
    """
    chosen = list(dict.fromkeys(must_include))
    missing = list(wanted)
    for name in chosen:
        if physical_id(name) in missing:
            missing.remove(physical_id(name))
    by_card: dict[str, list[str]] = {}
    for name in sorted(set(available).difference(chosen), key=_order, reverse=True):
        by_card.setdefault(physical_id(name), []).append(name)
    for card in missing:
        if len(chosen) == size:
            break
        if not by_card.get(card):
            return ()
        chosen.append(by_card[card].pop())
    return tuple(chosen) if len(chosen) == size else ()


def _order(device_id: str) -> tuple[str, int, str]:
    """Return a sort key by card and number, so that equal questions have equal answers."""
    card = physical_id(device_id)
    number = device_id[len(card) + 1 :]
    return card, int(number) if number.isascii() and number.isdigit() else 0, device_id
