"""The limits of a card, as one rule for now and for any moment.

Cards in mode `mig` are not judged: their slices are placed by a later step, and so counted then.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tests.e2e.auditor.node_annotations import Card
from tests.e2e.auditor.pods import Holding

_WHOLE = 100


class Measure(enum.StrEnum):
    COUNT = "count"
    MEMORY = "memory"
    CORES = "cores"
    EXCLUSIVE = "exclusive"


class Excess(NamedTuple):
    measure: Measure
    value: int
    what: str


def excesses(card: Card, holders: Mapping[str, Holding]) -> Iterable[Excess]:
    """Yield what the holders, by their names, have too much of a card."""
    if card.mode == "mig":
        return
    shares = [
        (Measure.COUNT, "slots", card.count, {n: h.slots for n, h in holders.items()}),
        (Measure.MEMORY, "MiB", card.memory, {n: h.memory for n, h in holders.items()}),
        (Measure.CORES, "% of its cores", card.cores, {n: h.cores for n, h in holders.items()}),
    ]
    for measure, unit, limit, amounts in shares:
        total = sum(amounts.values())
        if total > limit:
            parts = ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items()))
            yield Excess(
                measure, total, f"{total} {unit} held, the card registers {limit}: {parts}"
            )
    whole = sorted(name for name, holding in holders.items() if holding.whole)
    if card.cores == _WHOLE and whole and len(holders) > 1:
        yield Excess(
            Measure.EXCLUSIVE,
            len(holders),
            f"{', '.join(whole)} has all {_WHOLE} % of its cores to itself, yet "
            f"{', '.join(sorted(holders))} hold it",
        )
