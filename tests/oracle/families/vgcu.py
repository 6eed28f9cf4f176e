"""Enflame of HAMi 2.8: percent of a card, rounded up to slices."""

from __future__ import annotations

import math
import re

from hami.wire import node_register, objects, quantity, shares
from tests.oracle.families import registering
from tests.oracle.families.family import Amounts, Family, Registered
from tests.oracle.reference_admission import SLICES, limits_of, requests_of, with_amounts
from tests.oracle.reference_cards import Card
from tests.oracle.reference_request import read_amount
from tests.oracle.reference_vendor import NOW, Grant, RefVendor
from tests.oracle.scenario_tape import Tape

_CARDS = "enflame.com/gcu-count"
_SHARED = "enflame.com/shared-gcu"
_PERCENT = "enflame.com/vgcu-percentage"


def _read_cards(node: objects.Node) -> list[node_register.RegisteredCard]:
    number = registering.capacity_of(node, _CARDS)
    return [
        node_register.RegisteredCard(
            id=f"{node.name}-enflame-{index}",
            index=index,
            count=100,
            devmem=100,
            devcore=100,
            type="Enflame",
            health=True,
            custominfo={SLICES: registering.capacity_of(node, _SHARED) // number},
        )
        for index in range(number)
    ]


def _admit(container: objects.Container, slices: int) -> objects.Container:
    """Round percent of one card up to slices; several cards are whole ones."""
    limits = limits_of(container)
    if limits.get(VGCU.count) is None:
        return container
    cards = read_amount(container, VGCU, VGCU.count) or 0
    if cards > 1:
        whole: Amounts = {_PERCENT: "100", _SHARED: str(slices * cards)}
        there = requests_of(container)
        both = {name: amount for name, amount in whole.items() if name in there}
        return with_amounts(container, limits=whole, requests=both)
    asked = limits.get(_PERCENT)
    percent = 100 if asked is None else quantity.rounded_up(asked, what=_PERCENT)
    for number in range(1, slices + 1):
        part = 100 / slices * number
        if max(percent, 1) <= part:
            rounded: Amounts = {_PERCENT: str(math.floor(part)), _SHARED: str(number)}
            return with_amounts(container, limits=rounded, requests=rounded)
    return container


def _held(_pod: objects.Pod, listed: shares.PodShares) -> shares.PodShares:
    """Leave out cards that are cut by profile: they have the same list."""
    return tuple(
        tuple(share for share in each if not re.search(r"-enflame-drs-\d+$", share.card))
        for each in listed
    )


def _record(grant: Grant) -> dict[str, str]:
    cards = next(each for each in grant.shares if each)
    return {
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": f"{NOW}000000000",
        "enflame.com/gcu-assigned-id": ",".join(str(grant.cards[s.card].index) for s in cards),
    }


VGCU = RefVendor(
    name="Enflame-VGCU",
    word="Enflame",
    count="enflame.com/vgcu",
    memory=_PERCENT,
    allocated="hami.io/enflame-vgpu-devices-allocated",
    use_uuid="enflame.com/use-gpuuuid",
    nouse_uuid="enflame.com/nouse-gpuuuid",
    enforces_quota=False,
    bounded_by_ids=False,
    read_cards=_read_cards,
    admit=_admit,
    held=_held,
    record=_record,
)


def _node(tape: Tape, _name: str, _vendor: RefVendor) -> Registered:
    number = tape.pick((1, 2, 3, 4))
    slices = number * tape.pick((4, 4, 4, 6, 8, 3, 0)) + tape.pick((0, 0, 1))
    return Registered(capacity={_CARDS: str(number), _SHARED: str(slices)})


def _request(tape: Tape, vendor: RefVendor, card: Card | None) -> Amounts:
    amounts: Amounts = {vendor.count: str(tape.pick((1, 1, 1, 2, 1, 1, 3)))}
    if tape.chance(80):
        left = 100 - card.memory if card is not None else 0
        amounts[_PERCENT] = str(tape.pick((25, 50, left, 10, 30, 75, left + 1, 1, 0, 100)))
    if tape.chance(4):
        amounts[_PERCENT] = tape.pick(("101", "-1", "many", "250m"))
    return amounts


FAMILY = Family(name="vgcu", vendors=(VGCU,), node=_node, request=_request)
