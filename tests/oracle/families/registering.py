"""Parts of families: registers, capacity, sizes of requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hami.wire import node_register, objects, quantity
from tests.oracle.families.family import Amounts
from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import RefVendor
from tests.oracle.scenario_tape import Tape

COUNTS = (1, 1, 1, 2, 1, 2, 3)
"""Cards for one container."""


def cards(
    tape: Tape,
    prefix: str,
    *,
    types: Sequence[str],
    memories: Sequence[int],
    cores: Sequence[int] = (100,),
    counts: Sequence[int] = (10, 4, 2, 1),
) -> list[dict[str, Any]]:
    """Draw the cards of a node, mostly equal, as a register lists them."""
    size = tape.pick((2, 1, 3, 4, 2))
    mixed = tape.chance(25)
    type_, memory, core, count = (tape.pick(each) for each in (types, memories, cores, counts))
    found = []
    for index in range(size):
        if mixed:
            type_, memory, core = tape.pick(types), tape.pick(memories), tape.pick(cores)
        found.append(
            {
                "id": f"{prefix}-{index}",
                "index": index,
                "count": count,
                "devmem": memory,
                "devcore": core,
                "type": type_,
                "numa": tape.pick((0, 0, 1)),
                "mode": "hami-core",
                "health": not tape.chance(6),
            }
        )
    return found


def as_json(listed: list[dict[str, Any]]) -> str:
    """Write cards as Go does: zero, empty and false are left out."""
    return json.dumps([{key: value for key, value in card.items() if value} for card in listed])


def as_colons(listed: list[dict[str, Any]]) -> str:
    """Write cards in the colon format, nine fields each."""
    order = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index", "mode")
    written = ""
    for card in listed:
        values = card | {"health": "true" if card["health"] else "false"}
        written += ",".join(str(values[field]) for field in order) + ":"
    return written


def read_colons(key: str, node: objects.Node) -> list[node_register.RegisteredCard]:
    """Read a register in the colon format."""
    value = node.annotation(key)
    return list(node_register.decode_colon(value)) if value else []


def capacity_of(node: objects.Node, resource: str) -> int:
    amount = node.capacity.get(resource)
    return 0 if amount is None else quantity.exact_integer(amount, what=resource)


def offer(tape: Tape, vendor: RefVendor, number: int) -> Amounts:
    """Draw what kubelet offers of the count resource; now and then its plugin has stopped."""
    return {vendor.count: "0" if tape.chance(4) else str(number)}


def sizes(
    tape: Tape, vendor: RefVendor, card: Card | None, *, cores: Sequence[int] = (10, 25, 50, 100, 0)
) -> Amounts:
    """Draw memory and compute, often exactly what the card has left, give or take one."""
    amounts: Amounts = {}
    how = tape.below(100)
    if vendor.memory and card is not None and how < 70:
        left = max(card.device.devmem - card.memory, 0) // vendor.memory_factor
        whole = card.device.devmem // vendor.memory_factor
        exact = tape.pick((whole // 4, left, whole // 2, whole // 8, left + 1, left // 2, left - 1))
        amounts[vendor.memory] = str(max(exact, 0))
    if vendor.cores and tape.chance(70):
        amounts[vendor.cores] = str(tape.pick(cores))
    return amounts
