"""NVIDIA: its row beside other vendors, and after admission."""

from __future__ import annotations

import dataclasses

from hami.wire import objects, quantity
from tests.oracle.families import registering
from tests.oracle.families.family import Amounts, Family, Registered
from tests.oracle.reference_admission import limits_of, with_amounts
from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import RefVendor
from tests.oracle.sample_vendors import NVIDIA as PLAIN
from tests.oracle.scenario_tape import Tape


def _admit(container: objects.Container, _slices: int) -> objects.Container:
    """Add the count if only a size is named, and all compute of whole cards."""
    limits = limits_of(container)
    if limits.get(PLAIN.count) is None:
        asked = container.amount(PLAIN.count)
        sizes = (PLAIN.cores, PLAIN.memory, PLAIN.percentage)
        if asked is not None and quantity.parse(asked, what=PLAIN.count) != 0:
            container = with_amounts(container, limits={PLAIN.count: asked}, requests={})
        elif asked is None and any(size in limits for size in sizes):
            container = with_amounts(container, limits={PLAIN.count: "1"}, requests={})
    count, percent = container.amount(PLAIN.count), container.amount(PLAIN.percentage)
    if count is None or quantity.parse(count, what=PLAIN.count) == 0:
        return container
    part = container.amount(PLAIN.cores) is not None
    if percent is not None:
        part = part or quantity.parse(percent, what=PLAIN.percentage) != 100
    else:
        part = part or container.amount(PLAIN.memory) is not None
    return container if part else with_amounts(container, limits={PLAIN.cores: "100"}, requests={})


NVIDIA = dataclasses.replace(PLAIN, admit=_admit)


def _node(tape: Tape, name: str, vendor: RefVendor) -> Registered:
    listed = registering.cards(
        tape,
        f"GPU-{name}",
        types=("NVIDIA A100-SXM4-40GB", "NVIDIA H20", "NVIDIA A10"),
        memories=(40960, 97871, 23028),
    )
    if tape.chance(10):
        listed[0]["mode"] = "mig"
    annotations: dict[str, str | None] = {vendor.register: registering.as_json(listed)}
    if tape.chance(10):
        annotations[vendor.cordon] = listed[-1]["id"]
    ids = sum(card["count"] for card in listed)
    return Registered(annotations=annotations, capacity=registering.offer(tape, vendor, ids))


def _request(tape: Tape, vendor: RefVendor, card: Card | None) -> Amounts:
    amounts: Amounts = {vendor.count: str(tape.pick(registering.COUNTS))}
    amounts |= registering.sizes(tape, vendor, card)
    if vendor.memory not in amounts and tape.chance(70):
        amounts[vendor.percentage] = str(tape.pick((25, 50, 100, 10)))
    if len(amounts) > 1 and tape.chance(5):
        del amounts[vendor.count]  # only a size
    return amounts


FAMILY = Family(name="nvidia", vendors=(NVIDIA,), node=_node, request=_request)
