"""The ids that kubelet counts by: `<card UUID>-<number>`, one for each share of a card.

kubelet chooses ids, the scheduler chooses cards, and the two need not agree: an id is a ticket, its
name only a hint. So the health of an id that is held follows the cards behind its grant, and of the
free ones exactly as many are healthy as healthy cards have free places, whatever they are called.
Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from hami.wire.node_register import RegisteredCard

_DASHES = 6
_REPLICA = "::"


@dataclasses.dataclass(frozen=True, slots=True)
class ListedDevice:
    """One id as kubelet is told of it."""

    id: str
    healthy: bool
    #: The NUMA node; None: kubelet is not told, or there is not one.
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
    numa: bool,
) -> tuple[ListedDevice, ...]:
    """Return every id, with its health.

    `held` says which cards stand behind an id that a container has; `used_shares` how many places
    of a card are taken. A held id stays in the list when its name has left it (a card that is gone,
    a smaller split count): else kubelet would not start its container again.
    """
    cards = {device.id: device for device in devices}
    named = {name: device for device in cards.values() for name in ids_of(device)}
    healthy = _healthy_free(cards, named, held, used_shares)
    listing = []
    for name in (*named, *sorted(held.keys() - named.keys())):
        behind = held.get(name)
        if behind is None:
            listing.append(ListedDevice(name, name in healthy, named[name].numa if numa else None))
            continue
        found = [cards[card] for card in sorted(behind) if card in cards]
        well = len(found) == len(behind) > 0 and all(device.health for device in found)
        places = {device.numa for device in found}
        listing.append(
            ListedDevice(name, well, places.pop() if numa and len(places) == 1 else None)
        )
    return tuple(listing)


def _healthy_free(
    cards: Mapping[str, RegisteredCard],
    named: Mapping[str, RegisteredCard],
    held: Mapping[str, frozenset[str]],
    used_shares: Mapping[str, int],
) -> set[str]:
    """Choose the free ids that are healthy: first those whose own card has the place."""
    free = [name for name in named if name not in held]
    room = {
        card: max(device.count - used_shares.get(card, 0), 0) if device.health else 0
        for card, device in cards.items()
    }
    places = sum(room.values())
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
    return set((own + rest)[:places])


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
    """Choose `size` ids named after the cards that a container was given; (): no such choice.

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
    """Sort ids of a card by their number, so that the same question has the same answer."""
    card = physical_id(device_id)
    number = device_id[len(card) + 1 :]
    return card, int(number) if number.isascii() and number.isdigit() else 0, device_id
