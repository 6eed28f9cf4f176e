"""How well the cards of a node are linked, as a node annotation carries it.

One entry per card, with a score for every other card of the node: a sum over the links between
the two, where more is better (NVLink counts hundreds, PCIe tens). Written by the device plugin,
read by the topology policy. A bad value rejects the whole annotation.
"""

from __future__ import annotations

from collections.abc import Iterable

from hami.wire import codec, errors, go_values

_WHAT = "pair score annotation"


class PairScores(codec.Object, frozen=True, omit_defaults=False):
    """The scores of one card."""

    uuid: str
    #: Score by the other card's UUID.
    score: dict[str, int]


class _PairScores(codec.Object, frozen=True):
    """PairScores as it may arrive: any field missing or null."""

    uuid: str | None = None
    score: dict[str, int | None] | None = None


def decode(value: str, *, what: str = _WHAT) -> tuple[PairScores, ...]:
    """Read the scores of all cards of a node."""
    read = codec.decode(value, list[_PairScores | None], what=what)
    return _checked((_card(raw or _PairScores()) for raw in read), what)


def encode(cards: Iterable[PairScores]) -> str:
    """Write the scores of all cards of a node; what could not be read back is an error."""
    return codec.encode_text(_checked(cards, _WHAT))


def _card(raw: _PairScores) -> PairScores:
    score = {other: number or 0 for other, number in (raw.score or {}).items()}
    return PairScores(uuid=raw.uuid or "", score=score)


def _checked(cards: Iterable[PairScores], what: str) -> tuple[PairScores, ...]:
    seen: dict[str, PairScores] = {}
    for card in cards:
        if not card.uuid:
            raise errors.WireError(what, card.uuid, "is no card id: an entry must name its card")
        if card.uuid in seen:
            raise errors.WireError(what, card.uuid, "stands there twice")
        seen[card.uuid] = card
        for other, number in card.score.items():
            if abs(number) > go_values.INT32_MAX:
                pair = f"{errors.shorten(card.uuid)} and {errors.shorten(other)}"
                raise errors.WireError(f"{what}, score of {pair}", number, "is outside 32 bits")
    return tuple(seen.values())
