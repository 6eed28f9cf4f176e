"""How well the cards of a node are linked, as a node annotation carries it.

One entry per card, with a score for every other card of the node: a sum over the links between
the two, where more is better (NVLink counts hundreds, PCIe tens). Written by the device plugin,
read by the topology policy. A bad value rejects the whole annotation.
"""

from __future__ import annotations

from collections.abc import Iterable

from hami.wire import codec, errors, go_values


class PairScores(codec.Object, frozen=True, omit_defaults=False):
    """The scores of one card."""

    uuid: str
    #: Score by the other card's UUID.
    score: dict[str, int]


class _PairScores(codec.Object, frozen=True):
    """PairScores as it may arrive: any field missing or null."""

    uuid: str | None = None
    score: dict[str, int | None] | None = None


def decode(value: str, *, what: str = "pair score annotation") -> tuple[PairScores, ...]:
    """Read the scores of all cards of a node."""
    cards: dict[str, PairScores] = {}
    for raw in codec.decode(value, list[_PairScores | None], what=what):
        card = _card(raw or _PairScores(), what)
        if card.uuid in cards:
            raise errors.WireError(what, card.uuid, "stands there twice")
        cards[card.uuid] = card
    return tuple(cards.values())


def encode(cards: Iterable[PairScores]) -> str:
    """Write the scores of all cards of a node."""
    return codec.encode_text(list(cards))


def _card(raw: _PairScores, what: str) -> PairScores:
    if not raw.uuid:
        raise errors.WireError(what, raw.uuid, "is no card id: an entry must name its card")
    score = {other: number or 0 for other, number in (raw.score or {}).items()}
    for other, number in score.items():
        if abs(number) > go_values.INT32_MAX:
            pair = f"{errors.shorten(raw.uuid)} and {errors.shorten(other)}"
            raise errors.WireError(f"{what}, score of {pair}", number, "is outside 32 bits")
    return PairScores(uuid=raw.uuid, score=score)
